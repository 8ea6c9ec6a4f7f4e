// The FP8 formats: scales and codes by the rule, rows out and back, parts of other tools' checkpoints, products against plain sums.
#include "quant/fp8_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "quant/apply.h"
#include "quant/store.h"
#include "quant/stored_form.h"

namespace inflight::quant {
namespace {

const Kernels& kernels_in_use() { return **kernels::choose(); }

struct Loaded {
  ParamStore store;
  Matrix& matrix() { return store.matrix(0); }
};

std::unique_ptr<Loaded> empty(const Format& format, std::int64_t outputs, std::int64_t inputs) {
  params::ParamTable table;
  table.rows.push_back({.name = "w", .pieces = {{"w", outputs}}, .inputs = inputs});
  const ParamPlan plan = plan_params(table, {}, {.linear = &format}, {false}, {nullptr}).value();
  auto loaded = std::make_unique<Loaded>();
  loaded->store.allocate(plan).value();
  begin(loaded->matrix()).value();
  return loaded;
}

std::vector<float> random_weights(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& w : weights) w = bf16_to_float(float_to_bf16(normal(random)));
  return weights;
}

struct Case {
  const Format& format;
  std::int64_t rows_of_scale, inputs_of_scale;  // 0: all
};
std::vector<Case> cases() { return {{tensor_wise_fp8_format(), 0, 0}, {block_wise_fp8_format(), 128, 128}}; }

struct Blocks {
  std::int64_t rows, inputs;  // of a block
  std::int64_t across;        // blocks along the inputs
  Blocks(const Case& c, std::int64_t outputs, std::int64_t all_inputs)
      : rows(c.rows_of_scale ? c.rows_of_scale : outputs), inputs(c.inputs_of_scale ? c.inputs_of_scale : all_inputs), across((all_inputs + inputs - 1) / inputs) {}
};

// Sets scales from the absmax of every block and stores row by row: lanes must not disturb each other.
std::unique_ptr<Loaded> load(const Case& c, const std::vector<float>& weights, std::int64_t outputs, std::int64_t inputs, float bound = kE4m3Max) {
  auto loaded = empty(c.format, outputs, inputs);
  Matrix& m = loaded->matrix();
  const Blocks block(c, outputs, inputs);
  for (std::int64_t row = 0; row < outputs; row += block.rows) {
    std::vector<float> absmax(static_cast<std::size_t>(block.across));
    const std::int64_t end = std::min(outputs, row + block.rows);
    for (std::int64_t r = row; r < end; ++r)
      for (std::int64_t k = 0; k < inputs; ++k) absmax[static_cast<std::size_t>(k / block.inputs)] = std::fmax(absmax[static_cast<std::size_t>(k / block.inputs)], std::fabs(weights[static_cast<std::size_t>(r * inputs + k)]));
    set_fp8_scales(m, row, end, absmax, bound);
  }
  for (std::int64_t row = 0; row < outputs; ++row) {
    const SourceRows source{.data = weights.data() + row * inputs, .dtype = DType::kF32, .stride = inputs, .rows = 1, .inputs = inputs};
    EXPECT_EQ(m.format->store(kernels_in_use(), source, row, m), -1);
  }
  finish(m);
  return loaded;
}

const std::vector<std::pair<std::int64_t, std::int64_t>> kShapes = {{16, 128}, {40, 96}, {3, 50}, {17, 257}, {1, 1}, {300, 130}, {129, 384}};

TEST(Fp8Formats, dequantize_to_what_the_rule_says) {
  for (const Case& c : cases())
    for (const float bound : {kE4m3Max, kGaudiE4m3Max})
      for (const auto& [outputs, inputs] : kShapes) {
        auto weights = random_weights(outputs * inputs, 5);
        for (std::int64_t r = 0; r < std::min<std::int64_t>(outputs, 128); ++r)
          if (inputs > 200) std::fill_n(weights.begin() + r * inputs, 128, 0.0f);  // a block of zeros
        const auto loaded = load(c, weights, outputs, inputs, bound);
        const Blocks block(c, outputs, inputs);
        std::vector<float> row(static_cast<std::size_t>(inputs));
        std::vector<std::uint8_t> codes(row.size());
        for (std::int64_t r = 0; r < outputs; ++r) {
          c.format.dequantize(loaded->matrix(), r, row.data());
          c.format.export_row(loaded->matrix(), r, 0, codes.data());
          float scale = 0;  // of the block in work
          for (std::int64_t k = 0; k < inputs; ++k) {
            float absmax = 0;
            const std::int64_t top = r / block.rows * block.rows, left = k / block.inputs * block.inputs;
            if (k == left)
              for (std::int64_t i = top; i < std::min(outputs, top + block.rows); ++i)
                for (std::int64_t j = left; j < std::min(inputs, left + block.inputs); ++j) absmax = std::fmax(absmax, std::fabs(weights[static_cast<std::size_t>(i * inputs + j)]));
            if (k == left) scale = absmax / bound;
            const std::uint8_t code = scale == 0 ? 0 : float_to_e4m3(weights[static_cast<std::size_t>(r * inputs + k)] / scale);
            ASSERT_EQ(int{codes[static_cast<std::size_t>(k)]}, int{code}) << c.format.name << " " << r << "," << k;
            ASSERT_EQ(row[static_cast<std::size_t>(k)], e4m3_to_float(code) * scale) << c.format.name << " " << r << "," << k;
            if (bound == kGaudiE4m3Max) ASSERT_LE(code & 0x7f, 0x77);
          }
        }
      }
}

TEST(Fp8Formats, rows_survive_export_and_import_with_all_padding) {
  for (const Case& c : cases()) {
    const std::int64_t outputs = 149, inputs = 183;
    const auto a = load(c, random_weights(outputs * inputs, 9), outputs, inputs), b = load(c, random_weights(outputs * inputs, 10), outputs, inputs), fast = load(c, random_weights(outputs * inputs, 11), outputs, inputs);
    const auto stored = c.format.stored(outputs, inputs, 0, false);
    ASSERT_EQ(stored.size(), 2u);
    EXPECT_EQ(stored[0].suffix, "weight");
    EXPECT_EQ(stored[0].dtype, DType::kF8E4M3);
    EXPECT_THAT(stored[0].shape, testing::ElementsAre(outputs, inputs));
    EXPECT_EQ(stored[1].suffix, "weight_scale");
    EXPECT_THAT(stored[1].shape, testing::ElementsAre(outputs, c.inputs_of_scale ? 2 : 1));
    std::vector<std::uint8_t> all(static_cast<std::size_t>(outputs * stored[0].row_bytes));
    for (std::size_t t = 0; t < stored.size(); ++t) {
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(stored[t].row_bytes));
      for (std::int64_t row = 0; row < outputs; ++row) {
        c.format.export_row(a->matrix(), row, t, bytes.data());
        ASSERT_TRUE(c.format.import_row(b->matrix(), row, t, stored[t].dtype, bytes.data()));
        if (t == 0) std::copy(bytes.begin(), bytes.end(), all.begin() + row * inputs);
        else ASSERT_TRUE(c.format.import_row(fast->matrix(), row, t, stored[t].dtype, bytes.data()));
      }
    }
    for (std::int64_t row = 0; row < outputs; row += 16)
      ASSERT_TRUE(c.format.import_codes(kernels_in_use(), fast->matrix(), row, static_cast<int>(std::min<std::int64_t>(16, outputs - row)), all.data() + row * inputs, inputs));
    const PackedBytes bytes = c.format.bytes(outputs, inputs, 0);
    EXPECT_EQ(bytes.codes, 160 * 184);
    EXPECT_EQ(bytes.scales, 160 * 4 * (c.inputs_of_scale ? 2 : 1));
    for (const auto* other : {&b, &fast}) {
      EXPECT_EQ(std::memcmp(a->matrix().codes, (*other)->matrix().codes, static_cast<std::size_t>(bytes.codes)), 0);
      EXPECT_EQ(std::memcmp(a->matrix().scales, (*other)->matrix().scales, static_cast<std::size_t>(bytes.scales)), 0);
    }
  }
}

TEST(Fp8Formats, what_is_no_number_is_refused) {
  for (const Case& c : cases()) {
    const auto loaded = empty(c.format, 20, 130);
    std::vector<std::uint8_t> codes(130 * 16, 0x38);
    ASSERT_TRUE(c.format.import_codes(kernels_in_use(), loaded->matrix(), 0, 16, codes.data(), 130));
    codes[5 * 130 + 129] = 0xff;
    EXPECT_FALSE(c.format.import_codes(kernels_in_use(), loaded->matrix(), 0, 16, codes.data(), 130));
    const auto bad = c.format.import_row(loaded->matrix(), 5, 0, DType::kF8E4M3, codes.data() + 5 * 130);
    ASSERT_FALSE(bad);
    EXPECT_THAT(bad.error().message, testing::HasSubstr("row 5, column 129: code 0xff"));
    const float scales[2] = {INFINITY, -1.0f};
    EXPECT_FALSE(c.format.import_row(loaded->matrix(), 5, 1, DType::kF32, scales));
    EXPECT_FALSE(c.format.import_row(loaded->matrix(), 5, 1, DType::kF32, scales + 1));
    std::vector<float> row(130, 1.0f);
    row[77] = NAN;
    EXPECT_EQ(c.format.store(kernels_in_use(), {.data = row.data(), .dtype = DType::kF32, .stride = 130, .rows = 1, .inputs = 130}, 3, loaded->matrix()), 77);
  }
}

TEST(Fp8Formats, parts_of_other_tools_are_kept_as_they_are) {
  for (const Case& c : cases()) {
    const std::int64_t outputs = 45, inputs = 300, groups = c.inputs_of_scale ? 3 : 1;
    const auto loaded = empty(c.format, outputs, inputs);
    std::mt19937 rng(3);
    std::uniform_int_distribution<int> any(0, 0x7e), sign(0, 1);
    std::uniform_real_distribution<float> size(1e-4f, 1e-2f);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(outputs * inputs));
    std::vector<float> scales(static_cast<std::size_t>(outputs * groups));
    for (auto& code : codes) code = static_cast<std::uint8_t>(any(rng) | (sign(rng) ? 0x80 : 0));
    for (float& s : scales) s = size(rng);
    for (std::int64_t row = 0; row < outputs; row += 16) {
      const int rows = static_cast<int>(std::min<std::int64_t>(16, outputs - row));
      const RowParts parts{.kind = CodeKind::kE4M3, .rows = rows, .inputs = inputs, .group = c.inputs_of_scale, .codes = codes.data() + row * inputs, .scales = scales.data() + row * groups};
      c.format.import_parts(kernels_in_use(), parts, row, loaded->matrix());
    }
    std::vector<float> row(static_cast<std::size_t>(inputs));
    for (std::int64_t r = 0; r < outputs; ++r) {
      c.format.dequantize(loaded->matrix(), r, row.data());
      for (std::int64_t k = 0; k < inputs; ++k)
        ASSERT_EQ(row[static_cast<std::size_t>(k)], e4m3_to_float(codes[static_cast<std::size_t>(r * inputs + k)]) * scales[static_cast<std::size_t>(r * groups + (groups == 1 ? 0 : k / 128))]);
    }
  }
}

TEST(Fp8Formats, products_are_those_of_the_dequantized_numbers) {
  ThreadPool pool(2);
  for (const Case& c : cases())
    for (const std::int64_t tokens : {1, 5, 20})
      for (const Arithmetic arithmetic : {Arithmetic::kFp32, Arithmetic::kBf16, Arithmetic::kInt8}) {  // the last is taken as FP32
        const std::int64_t outputs = 70, inputs = 300, ldy = 80;
        const auto loaded = load(c, random_weights(outputs * inputs, 21), outputs, inputs);
        const Matrix& m = loaded->matrix();
        std::mt19937 rng(8);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<std::size_t>(tokens * inputs)), y(static_cast<std::size_t>(tokens * ldy)), row(static_cast<std::size_t>(inputs));
        for (float& v : x) v = normal(rng);
        std::vector<std::byte> scratch(apply_scratch(m, arithmetic, kernels_in_use(), tokens) + 64);
        auto* at = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
        apply(m, arithmetic, kernels_in_use(), pool, x.data(), inputs, tokens, y.data(), ldy, at);
        for (std::int64_t n = 0; n < outputs; ++n) {
          c.format.dequantize(m, n, row.data());
          for (std::int64_t t = 0; t < tokens; ++t) {
            double sum = 0, size = 0;
            for (std::int64_t k = 0; k < inputs; ++k) {
              const float input = x[static_cast<std::size_t>(t * inputs + k)];
              const double term = double{row[static_cast<std::size_t>(k)]} * (arithmetic == Arithmetic::kBf16 ? bf16_to_float(float_to_bf16(input)) : input);
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(y[static_cast<std::size_t>(t * ldy + n)], sum, size * static_cast<double>(inputs) * 8 * 0x1p-24) << c.format.name << " " << arithmetic_name(arithmetic);
          }
        }
      }
}

TEST(Fp8Formats, compute_policy_never_makes_their_activations_integers) {
  const Format& fp8 = tensor_wise_fp8_format();
  for (const char* compute : {"auto", "int8"}) {
    EXPECT_EQ(make_compute_policy(compute, "avx512_bf16")->prefill(fp8), Arithmetic::kBf16);
    EXPECT_EQ(make_compute_policy(compute, "avx512")->prefill(fp8), Arithmetic::kFp32);
    EXPECT_EQ(make_compute_policy(compute, "avx2")->decode(fp8), Arithmetic::kFp32);
  }
  EXPECT_EQ(make_compute_policy("fp32", "avx512_bf16")->prefill(fp8), Arithmetic::kFp32);
  EXPECT_EQ(make_compute_policy("bf16", "avx2")->decode(fp8), Arithmetic::kBf16);
}

}  // namespace
}  // namespace inflight::quant
