// Integers of other tools: what is packed, what comes back, products against exact sums, rows out and in, and what is refused.
#include "quant/affine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "kernels/dispatch.h"
#include "quant/apply.h"
#include "quant/derive.h"
#include "quant/fp8_formats.h"
#include "quant/policy.h"
#include "quant/store.h"
#include "quant/stored_form.h"

namespace inflight::quant {
namespace {

const Kernels& kernels_in_use() { return **kernels::choose(); }

enum class Scales { kFp16, kAny };

// Random parts of a matrix, with the ends of the codes in every row.
struct Numbers {
  const Format& format;
  std::int64_t outputs, inputs, groups;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, offsets;
  std::vector<std::int32_t> order;

  int top() const { return format.codes == Codes::kU4 ? 15 : 255; }
  bool has_offsets() const { return format.name.ends_with("-zp"); }

  Numbers(const Format& f, std::int64_t n, std::int64_t k, Scales kind, bool ordered, unsigned seed)
      : format(f), outputs(n), inputs(k), groups(f.group == 0 ? 1 : (k + f.group - 1) / f.group), codes(static_cast<std::size_t>(n * k)), scales(static_cast<std::size_t>(n * groups)), offsets(scales.size()) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> code(0, top());
    std::normal_distribution<float> normal(0, 0.02f);
    for (auto& c : codes) c = static_cast<std::uint8_t>(code(random));
    for (std::int64_t row = 0; row < n; ++row) {
      codes[static_cast<std::size_t>(row * k)] = 0;
      codes[static_cast<std::size_t>(row * k + k - 1)] = static_cast<std::uint8_t>(top());
    }
    for (float& s : scales) s = kind == Scales::kFp16 ? fp16_to_float(float_to_fp16(normal(random))) : normal(random);  // negative ones too
    for (float& o : offsets) o = normal(random) * 4;
    if (!ordered) return;
    order.resize(static_cast<std::size_t>(k));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
  }

  // Written a second time, from the definition: a row in the order of the model's inputs.
  std::vector<float> row(std::int64_t n) const {
    std::vector<float> values(static_cast<std::size_t>(inputs));
    for (std::int64_t j = 0; j < inputs; ++j) {
      const auto at = static_cast<std::size_t>(n * groups + (format.group == 0 ? 0 : j / format.group));
      const int q = codes[static_cast<std::size_t>(n * inputs + j)] - (top() + 1) / 2;
      values[static_cast<std::size_t>(order.empty() ? j : order[static_cast<std::size_t>(j)])] = std::fma(scales[at], static_cast<float>(q), has_offsets() ? offsets[at] : 0.0f);
    }
    return values;
  }
};

struct Loaded {
  ParamStore store;
  Matrix& matrix() { return store.matrix(0); }
};

std::unique_ptr<Loaded> empty(const Numbers& n) {
  params::ParamTable table;
  table.rows.push_back({.name = "w", .pieces = {{"w", n.outputs}}, .inputs = n.inputs});
  const ParamPlan plan = plan_params(table, {}, {}, {false}, {&n.format}).value();
  auto loaded = std::make_unique<Loaded>();
  loaded->store.allocate(plan).value();
  Matrix& matrix = loaded->matrix();
  if (!n.order.empty()) matrix.order = std::make_shared<const std::vector<std::int32_t>>(n.order);
  begin(matrix).value();
  return loaded;
}

void import(const Numbers& n, std::int64_t first, int rows, Matrix& matrix) {
  std::vector<std::uint8_t> codes(n.codes.begin() + first * n.inputs, n.codes.begin() + (first + rows) * n.inputs);  // memory ends with the last code
  std::vector<float> scales(n.scales.begin() + first * n.groups, n.scales.begin() + (first + rows) * n.groups), offsets(n.offsets.begin() + first * n.groups, n.offsets.begin() + (first + rows) * n.groups);
  n.format.import_parts(kernels_in_use(), {.kind = n.format.codes == Codes::kU4 ? CodeKind::kU4 : CodeKind::kU8, .rows = rows, .inputs = n.inputs, .group = n.format.group, .codes = codes.data(),
                                           .scales = scales.data(), .offsets = n.has_offsets() ? offsets.data() : nullptr, .order = n.order.empty() ? nullptr : n.order.data()},
                        first, matrix);
}

std::unique_ptr<Loaded> load(const Numbers& n) {
  auto loaded = empty(n);
  for (std::int64_t first = 0; first < n.outputs;) {  // panels in two parts, as two threads might
    const auto rows = static_cast<int>(std::min({n.outputs - first, kPanelRows - first % kPanelRows, first % kPanelRows == 0 ? std::int64_t{5} : kPanelRows}));
    import(n, first, rows, loaded->matrix());
    first += rows;
  }
  finish(loaded->matrix());
  return loaded;
}

class EveryForm : public testing::TestWithParam<const Format*> {};

TEST_P(EveryForm, means_scale_times_code_less_zero_plus_offset) {
  for (const auto& [outputs, inputs] : std::vector<std::pair<std::int64_t, std::int64_t>>{{16, 128}, {40, 1536}, {3, 50}, {17, 257}, {1, 1}, {33, 72}})
    for (const bool ordered : {false, true})
      for (const Scales kind : {Scales::kFp16, Scales::kAny}) {
        const Numbers numbers(*GetParam(), outputs, inputs, kind, ordered, 5);
        const auto loaded = load(numbers);
        EXPECT_EQ(loaded->matrix().scales_fp16, GetParam()->group != 0 && kind == Scales::kFp16);
        std::vector<float> row(static_cast<std::size_t>(inputs));
        for (std::int64_t r = 0; r < outputs; ++r) {
          GetParam()->dequantize(loaded->matrix(), r, row.data());
          ASSERT_EQ(row, numbers.row(r)) << outputs << " x " << inputs << ", row " << r;
        }
      }
}

TEST_P(EveryForm, rows_in_one_panel_do_not_disturb_each_other) {
  const Numbers some(*GetParam(), 16, 83, Scales::kAny, false, 6), others(*GetParam(), 16, 83, Scales::kAny, false, 7);
  const auto loaded = empty(others);
  import(others, 0, 16, loaded->matrix());
  import(some, 5, 4, loaded->matrix());
  finish(loaded->matrix());
  std::vector<float> row(83);
  for (std::int64_t r = 0; r < 16; ++r) {
    GetParam()->dequantize(loaded->matrix(), r, row.data());
    EXPECT_EQ(row, (r < 5 || r >= 9 ? others : some).row(r)) << r;
  }
}

TEST_P(EveryForm, products_agree_with_the_rows_and_not_with_the_batch_or_threads) {
  const Format& format = *GetParam();
  for (const bool ordered : {false, true})
    for (const std::int64_t tokens : {1, 19, 37}) {
      const std::int64_t outputs = 70, inputs = format.group > 128 ? 1100 : 331, stride = 80;
      const Numbers numbers(format, outputs, inputs, tokens == 19 ? Scales::kAny : Scales::kFp16, ordered, 21);
      const auto loaded = load(numbers);
      std::mt19937 random(22);
      std::normal_distribution<float> normal(0.3f, 1);
      std::vector<float> x(static_cast<std::size_t>(tokens * inputs));
      for (float& v : x) v = bf16_to_float(float_to_bf16(normal(random)));
      for (const Arithmetic arithmetic : {Arithmetic::kFp32, Arithmetic::kBf16, Arithmetic::kInt8, Arithmetic::kInt8Grouped}) {
        std::vector<float> together(static_cast<std::size_t>(tokens * stride)), alone(static_cast<std::size_t>(stride));
        Buffer scratch = Buffer::map(apply_scratch(loaded->matrix(), arithmetic, kernels_in_use(), tokens) + 64).value();
        ThreadPool one(1), three(3);
        apply(loaded->matrix(), arithmetic, kernels_in_use(), three, x.data(), inputs, tokens, together.data(), stride, scratch.data());
        for (std::int64_t t = 0; t < tokens; ++t) {
          apply(loaded->matrix(), arithmetic, kernels_in_use(), one, x.data() + t * inputs, inputs, 1, alone.data(), stride, scratch.data());
          for (std::int64_t n = 0; n < outputs; ++n) {
            const float got = together[static_cast<std::size_t>(t * stride + n)];
            ASSERT_EQ(got, alone[static_cast<std::size_t>(n)]) << "token " << t << ", output " << n;
            const std::vector<float> row = numbers.row(n);
            double exact = 0, magnitude = 0;
            for (std::int64_t k = 0; k < inputs; ++k) {
              exact += static_cast<double>(row[static_cast<std::size_t>(k)]) * static_cast<double>(x[static_cast<std::size_t>(t * inputs + k)]);
              // What is rounded: the codes' part and the offsets' part by themselves.
              const auto at = static_cast<std::size_t>(n * numbers.groups + (format.group == 0 ? 0 : k / format.group));
              magnitude += (std::fabs(numbers.scales[at]) * static_cast<float>(numbers.top()) + std::fabs(numbers.offsets[at])) * std::fabs(x[static_cast<std::size_t>(t * inputs + k)]);
            }
            const double error = arithmetic == Arithmetic::kInt8Grouped ? 2e-3 : arithmetic == Arithmetic::kInt8 ? 5e-5 : 1e-6;  // x is BF16 here
            ASSERT_NEAR(got, exact, magnitude * error) << "token " << t << ", output " << n;
          }
          for (std::int64_t n = outputs; n < stride; ++n) ASSERT_EQ(together[static_cast<std::size_t>(t * stride + n)], 0);
        }
      }
    }
}

TEST_P(EveryForm, rows_survive_export_and_import_with_all_padding) {
  const Format& format = *GetParam();
  for (const Scales kind : {Scales::kFp16, Scales::kAny}) {
    const Numbers numbers(format, 37, 83, kind, false, 9), others(format, 37, 83, Scales::kAny, false, 10);
    const auto loaded = load(numbers), copy = empty(others);
    Matrix &a = loaded->matrix(), &b = copy->matrix();
    import(others, 0, 16, b);
    const auto stored = format.stored(37, 83, format.group, format.group != 0 && !a.scales_fp16);
    for (std::size_t t = 0; t < stored.size(); ++t) {
      if (stored[t].row_bytes == 0) continue;
      std::vector<std::byte> bytes(static_cast<std::size_t>(stored[t].row_bytes));
      for (std::int64_t row = 0; row < 37; ++row) {
        format.export_row(a, row, t, bytes.data());
        ASSERT_TRUE(format.import_row(b, row, t, stored[t].dtype, bytes.data()));
        ASSERT_TRUE(t != 0 || row % 2 == 0 || format.import_codes(kernels_in_use(), b, row, 1, bytes.data(), stored[t].row_bytes));
      }
    }
    finish(b);
    EXPECT_EQ(a.scales_fp16, b.scales_fp16);
    EXPECT_EQ(a.bytes(), b.bytes());
    const PackedBytes bytes = format.bytes(37, 83, format.group);
    EXPECT_EQ(std::memcmp(a.codes, b.codes, static_cast<std::size_t>(bytes.codes)), 0);
    ASSERT_EQ(a.wide_scales.bytes(), b.wide_scales.bytes());
    EXPECT_EQ(std::memcmp(a.view().scales, b.view().scales, static_cast<std::size_t>(a.bytes() - bytes.codes - bytes.offsets)), 0);
    EXPECT_EQ(a.offsets != nullptr, bytes.offsets != 0);
    EXPECT_TRUE(!a.offsets || std::memcmp(a.offsets, b.offsets, static_cast<std::size_t>(bytes.offsets)) == 0);
  }
}

TEST_P(EveryForm, plain_rows_are_stored_to_the_nearest_code) {
  const Format& format = *GetParam();
  const Numbers shape(format, 19, 300, Scales::kAny, true, 3);
  const auto loaded = empty(shape);
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.01f, 0.02f);
  std::vector<float> x(19 * 300), row(300);
  for (float& v : x) v = normal(random);
  for (std::int64_t r = 0; r < 19; ++r) ASSERT_EQ(format.store(kernels_in_use(), {.data = x.data() + r * 300, .dtype = DType::kF32, .stride = 300, .rows = 1, .inputs = 300}, r, loaded->matrix()), -1);
  finish(loaded->matrix());
  for (std::int64_t r = 0; r < 19; ++r) {
    format.dequantize(loaded->matrix(), r, row.data());
    const float most = *std::ranges::max_element(x.begin() + r * 300, x.begin() + (r + 1) * 300, {}, [](float v) { return std::fabs(v); });
    for (std::size_t k = 0; k < 300; ++k) EXPECT_NEAR(row[k], x[static_cast<std::size_t>(r) * 300 + k], std::fabs(most) / static_cast<float>(shape.top() - 1) * 1.001f);
  }
  x[7] = HUGE_VALF;
  EXPECT_EQ(format.store(kernels_in_use(), {.data = x.data(), .dtype = DType::kF32, .stride = 300, .rows = 1, .inputs = 300}, 0, loaded->matrix()), 7);
}

INSTANTIATE_TEST_SUITE_P(All, EveryForm, testing::ValuesIn(forms().begin(), forms().end()), [](const auto& test) {
  std::string name(test.param->name);
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(Forms, are_found_by_what_they_keep) {
  EXPECT_EQ(native_format(CodeKind::kU4, 128, true)->name, "int4-g128-zp");
  EXPECT_EQ(native_format(CodeKind::kU4, 0, false)->name, "int4");
  EXPECT_EQ(native_format(CodeKind::kU8, 0, true)->name, "int8-zp");
  EXPECT_EQ(native_format(CodeKind::kU8, 16, false)->name, "int8-g16");
  for (const std::int64_t group : {1, 8, 24, 48, 96, 1024}) EXPECT_EQ(native_format(CodeKind::kU4, group, true), nullptr) << group;
  EXPECT_EQ(native_format(CodeKind::kE4M3, 0, false), &tensor_wise_fp8_format());
  EXPECT_EQ(native_format(CodeKind::kE4M3, 128, false), &block_wise_fp8_format());
  EXPECT_EQ(native_format(CodeKind::kE4M3, 64, false), nullptr);
  EXPECT_EQ(native_format(CodeKind::kE4M3, 128, true), nullptr);
  for (const Format* format : forms()) EXPECT_EQ(find_format(format->name).value(), format);
}

TEST(Forms, are_not_what_a_user_may_ask_for) {
  for (const Format* format : formats()) EXPECT_EQ(std::ranges::find(forms(), format), forms().end());
  EXPECT_THAT(make_policy("int4-g128-zp", "auto").error().message, testing::HasSubstr("weights of other tools"));
  EXPECT_THAT(make_policy("wint8", "int8").error().message, testing::HasSubstr("weights of other tools"));
  EXPECT_THAT(make_policy("int4-g127", "auto").error().message, testing::Not(testing::HasSubstr("-zp")));
}

TEST(Forms, the_bytes_of_a_matrix_are_codes_scales_and_offsets) {
  const auto sizes = [](std::string_view name, Scales kind) { return load(Numbers(*find_format(name).value(), 32, 256, kind, false, 1))->matrix().bytes(); };
  EXPECT_EQ(sizes("int4", Scales::kAny), 32 * 128 + 32 * 4);
  EXPECT_EQ(sizes("int4-g128", Scales::kFp16), 32 * 128 + 32 * 2 * 2);
  EXPECT_EQ(sizes("int4-g128", Scales::kAny), 32 * 128 + 32 * 2 * 4);
  EXPECT_EQ(sizes("int8-g64-zp", Scales::kFp16), 32 * 256 + 32 * 4 * (2 + 4));
}

TEST(Forms, derived_matrices_follow_from_the_inputs_in_their_natural_order) {
  const Numbers numbers(*native_format(CodeKind::kU4, 32, true), 32, 64, Scales::kAny, true, 2);
  params::ParamTable table;
  table.rows.push_back({.name = "w", .pieces = {{"w", 32}}, .inputs = 64});
  table.rows.push_back({.name = "d", .pieces = {{"d", 16}}, .inputs = 64, .derivation = params::Derivation{.source = 0, .unit = 32, .first = 16, .rows = 16}});
  ParamStore store;
  store.allocate(plan_params(table, {}, {.wide_derived = true}, {false, false}, {&numbers.format, nullptr}).value()).value();
  store.matrix(0).order = std::make_shared<const std::vector<std::int32_t>>(numbers.order);
  begin(store.matrix(0)).value();
  import(numbers, 0, 16, store.matrix(0));
  import(numbers, 16, 16, store.matrix(0));
  finish(store.matrix(0));
  ASSERT_TRUE(derive(kernels_in_use(), store.matrix(0), *table.rows[1].derivation, store.matrix(1)));
  std::vector<float> row(64);
  for (std::int64_t n = 0; n < 16; ++n) {
    store.matrix(1).format->dequantize(store.matrix(1), n, row.data());
    EXPECT_EQ(row, numbers.row(16 + n));
  }
}

TEST(Import, of_forms_refuses_what_is_not_finite_and_padding_that_is_set) {
  const Format& four = *native_format(CodeKind::kU4, 32, true);
  const auto loaded = load(Numbers(four, 16, 12, Scales::kAny, false, 1));
  Matrix& matrix = loaded->matrix();
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    EXPECT_THAT(four.import_row(matrix, 3, 1, DType::kF32, &bad).error().message, testing::HasSubstr("row 3, group 0: scale"));
    EXPECT_THAT(four.import_row(matrix, 3, 2, DType::kF32, &bad).error().message, testing::HasSubstr("offset"));
  }
  const std::uint16_t infinite = 0x7c00;
  EXPECT_FALSE(four.import_row(matrix, 0, 1, DType::kF16, &infinite));
  std::uint8_t packed[8] = {0x00, 0x32, 0x54, 0x76, 0x98, 0xff, 0x88, 0x88};
  EXPECT_TRUE(four.import_row(matrix, 0, 0, DType::kI32, packed));
  EXPECT_TRUE(four.import_codes(kernels_in_use(), matrix, 0, 1, packed, 8));
  packed[6] = 0x80;
  EXPECT_THAT(four.import_row(matrix, 0, 0, DType::kI32, packed).error().message, testing::HasSubstr("padding past column 12"));
  EXPECT_FALSE(four.import_codes(kernels_in_use(), matrix, 0, 1, packed, 8));
}

}  // namespace
}  // namespace inflight::quant
