// Every format: the rule against plain arithmetic written here, rows out and back, padding, scales that FP16 cannot hold.
#include "quant/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/bf16.h"
#include "kernels/dispatch.h"
#include "kernels/lut4_rule_for_test.h"
#include "quant/apply.h"
#include "quant/integer_formats.h"
#include "quant/store.h"

namespace inflight::quant {
namespace {

const kernels::Kernels& kernels_in_use() { return **kernels::choose(); }

// One matrix in a store of its own.
struct Loaded {
  ParamStore store;
  Matrix& matrix() { return store.matrix(0); }
};

std::unique_ptr<Loaded> load(const Format& format, const std::vector<float>& weights, std::int64_t outputs, std::int64_t inputs) {
  params::ParamTable table;
  table.rows.push_back({.name = "w", .pieces = {{"w", outputs}}, .inputs = inputs});
  const ParamPlan plan = plan_params(table, {}, {.linear = &format}, {format.codes == Codes::kF32}, {nullptr}).value();
  auto loaded = std::make_unique<Loaded>();
  loaded->store.allocate(plan).value();
  Matrix& matrix = loaded->matrix();
  begin(matrix).value();
  for (std::int64_t row = 0; row < outputs; ++row) {  // row by row: lanes must not disturb each other
    std::vector<std::uint16_t> bf16(static_cast<std::size_t>(inputs));
    for (std::int64_t k = 0; k < inputs; ++k) bf16[static_cast<std::size_t>(k)] = float_to_bf16(weights[static_cast<std::size_t>(row * inputs + k)]);
    EXPECT_EQ(matrix.format->store(kernels_in_use(), {.data = bf16.data(), .dtype = DType::kBF16, .stride = inputs, .rows = 1, .inputs = inputs}, row, matrix), -1);
  }
  finish(matrix);
  return loaded;
}

std::vector<float> random_weights(std::int64_t count, unsigned seed, float scale = 0.05f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& w : weights) w = bf16_to_float(float_to_bf16(normal(random)));
  return weights;
}

// The rule of design: symmetric, round half away from zero, group scales rounded to FP16 after the codes are chosen.
std::vector<float> by_the_rule(const std::vector<float>& weights, std::int64_t inputs, int bound, std::int64_t group) {
  std::vector<float> result(weights.size());
  const std::int64_t width = group ? group : inputs;
  for (std::size_t row = 0; row < weights.size(); row += static_cast<std::size_t>(inputs))
    for (std::int64_t first = 0; first < inputs; first += width) {
      const std::int64_t last = std::min(first + width, inputs);
      float absmax = 0;
      for (std::int64_t k = first; k < last; ++k) absmax = std::max(absmax, std::fabs(weights[row + static_cast<std::size_t>(k)]));
      const float scale = absmax / static_cast<float>(bound);
      const float kept = group ? fp16_to_float(float_to_fp16(scale)) : scale;
      for (std::int64_t k = first; k < last; ++k) {
        const float r = scale == 0 ? 0 : weights[row + static_cast<std::size_t>(k)] / scale;
        const float q = std::min(std::max(std::trunc(r + std::copysign(0.5f, r)), static_cast<float>(-bound)), static_cast<float>(bound));
        result[row + static_cast<std::size_t>(k)] = q * kept;
      }
    }
  return result;
}

std::vector<float> by_the_lut4_rule(const std::vector<float>& weights, std::int64_t inputs) {
  std::vector<float> result;
  for (std::size_t row = 0; row < weights.size(); row += static_cast<std::size_t>(inputs))
    std::ranges::copy(kernels::lut4_dequantized(kernels::lut4_by_the_rule(weights.data() + row, inputs)), std::back_inserter(result));
  return result;
}

class EveryFormat : public testing::TestWithParam<const Format*> {};

TEST_P(EveryFormat, dequantizes_to_what_the_rule_says) {
  const Format& format = *GetParam();
  if (format.codes == Codes::kE4M3) GTEST_SKIP() << "scales of many rows: fp8_test.cc";
  for (const auto& [outputs, inputs] : std::vector<std::pair<std::int64_t, std::int64_t>>{{16, 128}, {40, 96}, {3, 50}, {17, 257}, {1, 1}, {33, 72}}) {
    auto weights = random_weights(outputs * inputs, 5);
    if (outputs > 2) std::fill_n(weights.begin() + 2 * inputs, inputs, 0.0f);  // a row of zeros
    const auto loaded = load(format, weights, outputs, inputs);
    const auto expected = format.codes == Codes::kLut4 ? by_the_lut4_rule(weights, inputs) : format.quantized() ? by_the_rule(weights, inputs, format.codes == Codes::kU8 ? 127 : 7, format.group) : weights;
    std::vector<float> row(static_cast<std::size_t>(inputs));
    for (std::int64_t r = 0; r < outputs; ++r) {
      format.dequantize(loaded->matrix(), r, row.data());
      for (std::int64_t k = 0; k < inputs; ++k) ASSERT_EQ(row[static_cast<std::size_t>(k)], expected[static_cast<std::size_t>(r * inputs + k)]) << format.name << " " << r << "," << k;
    }
  }
}

TEST_P(EveryFormat, rows_survive_export_and_import_with_all_padding) {
  const Format& format = *GetParam();
  const std::int64_t outputs = 37, inputs = 83;
  const auto loaded = load(format, random_weights(outputs * inputs, 9), outputs, inputs);
  const auto copy = load(format, random_weights(outputs * inputs, 10), outputs, inputs);  // other contents, to be overwritten
  Matrix &a = loaded->matrix(), &b = copy->matrix();
  begin(b).value();
  b.scales_fp16 = false;
  const auto stored = format.stored(outputs, inputs, format.group, format.group != 0 && !a.scales_fp16);
  for (std::size_t t = 0; t < stored.size(); ++t) {
    if (stored[t].row_bytes == 0) continue;
    std::vector<std::byte> bytes(static_cast<std::size_t>(stored[t].row_bytes));
    for (std::int64_t row = 0; row < outputs; ++row) {
      format.export_row(a, row, t, bytes.data());
      ASSERT_TRUE(format.import_row(b, row, t, stored[t].dtype, bytes.data()));
    }
  }
  finish(b);
  const PackedBytes bytes = format.bytes(outputs, inputs, format.group);
  EXPECT_EQ(std::memcmp(a.codes, b.codes, static_cast<std::size_t>(bytes.codes)), 0);
  EXPECT_EQ(std::memcmp(a.scales, b.scales, static_cast<std::size_t>(bytes.scales)), 0);
}

TEST_P(EveryFormat, half_scales_that_are_all_stored_so_are_kept_without_staging) {
  const Format& format = *GetParam();
  if (!format.half_scales || format.group == 0) GTEST_SKIP() << "no such road";
  const std::int64_t outputs = 37, inputs = 500;
  const auto loaded = load(format, random_weights(outputs * inputs, 9), outputs, inputs);
  const auto copy = load(format, random_weights(outputs * inputs, 10), outputs, inputs);
  Matrix &a = loaded->matrix(), &b = copy->matrix();
  ASSERT_TRUE(a.scales_fp16);
  begin(b, true).value();
  EXPECT_EQ(b.wide_scales.bytes(), 0u);
  std::vector<std::uint16_t> row(static_cast<std::size_t>(a.groups()));
  for (std::int64_t r = 0; r < outputs; ++r) {
    format.export_row(a, r, 1, row.data());
    ASSERT_TRUE(format.import_row(b, r, 1, DType::kF16, row.data()));
  }
  finish(b);
  EXPECT_TRUE(b.scales_fp16);
  EXPECT_EQ(b.view().scales, b.scales);
  EXPECT_EQ(std::memcmp(a.scales, b.scales, static_cast<std::size_t>(format.bytes(outputs, inputs, format.group).scales)), 0);
  for (const std::uint16_t bad : {0x7c00, 0x7e00, 0xfc00, 0xbc00, 0x8001}) {  // infinity, NaN, -infinity, -1, the smallest below zero
    auto changed = row;
    changed.back() = bad;
    EXPECT_FALSE(format.import_row(b, 5, 1, DType::kF16, changed.data())) << bad;
  }
}

TEST_P(EveryFormat, codes_imported_many_rows_at_once_are_the_same) {
  const Format& format = *GetParam();
  if (!format.import_codes) GTEST_SKIP() << "no such road";
  const Kernels& kernels = *kernels::choose().value();
  for (const std::int64_t inputs : {1, 8, 83, 128, 160, 517}) {
    const std::int64_t outputs = 53, first = 3;  // starts and ends within a panel
    const auto loaded = load(format, random_weights(outputs * inputs, 9), outputs, inputs);
    const auto copy = load(format, random_weights(outputs * inputs, 10), outputs, inputs), slow = load(format, random_weights(outputs * inputs, 10), outputs, inputs);
    const std::int64_t row_bytes = format.stored(outputs, inputs, format.group, false)[0].row_bytes, stride = row_bytes + 3;
    std::vector<std::byte> bytes(static_cast<std::size_t>(outputs * stride));
    for (std::int64_t row = first; row < outputs; ++row) {
      format.export_row(loaded->matrix(), row, 0, bytes.data() + row * stride);
      ASSERT_TRUE(format.import_row(slow->matrix(), row, 0, DType::kI32, bytes.data() + row * stride));
    }
    for (std::int64_t row = first; row < outputs;) {
      const int rows = static_cast<int>(std::min(kPanelRows - row % kPanelRows, outputs - row));
      ASSERT_TRUE(format.import_codes(kernels, copy->matrix(), row, rows, bytes.data() + row * stride, stride));
      row += rows;
    }
    EXPECT_EQ(std::memcmp(copy->matrix().codes, slow->matrix().codes, static_cast<std::size_t>(format.bytes(outputs, inputs, format.group).codes)), 0) << inputs;
    // A bit of padding that is set, or a code that no quantizer writes, is left to the slow road, which says where it is.
    auto* last = reinterpret_cast<std::uint8_t*>(bytes.data() + 7 * stride) + row_bytes - 1;
    *last = format.codes == Codes::kU8 ? 0x80 : format.codes == Codes::kE4M3 ? 0x7f : 0x01;
    const bool fast = format.import_codes(kernels, copy->matrix(), 7, 2, bytes.data() + 7 * stride, stride);
    const auto said = format.import_row(slow->matrix(), 7, 0, DType::kI32, bytes.data() + 7 * stride);
    EXPECT_EQ(fast, said.has_value()) << inputs;
    EXPECT_EQ(fast, format.codes == Codes::kLut4 && inputs % 8 == 0) << inputs;
  }
}

TEST_P(EveryFormat, products_agree_with_dequantized_rows_and_not_with_the_batch_or_threads) {
  const Format& format = *GetParam();
  const std::int64_t outputs = 70, inputs = 131, tokens = 19, stride = 80;
  const auto loaded = load(format, random_weights(outputs * inputs, 21), outputs, inputs);
  const auto x = random_weights(tokens * inputs, 22, 1.0f);
  for (const Arithmetic arithmetic : {Arithmetic::kFp32, Arithmetic::kBf16, Arithmetic::kInt8, Arithmetic::kInt8Grouped}) {
    std::vector<float> together(static_cast<std::size_t>(tokens * stride)), alone(static_cast<std::size_t>(stride));
    Buffer scratch = Buffer::map(apply_scratch(loaded->matrix(), arithmetic, kernels_in_use(), tokens) + 64).value();
    ThreadPool one(1), three(3);
    apply(loaded->matrix(), arithmetic, kernels_in_use(), three, x.data(), inputs, tokens, together.data(), stride, scratch.data());
    std::vector<float> row(static_cast<std::size_t>(inputs));
    for (std::int64_t t = 0; t < tokens; ++t) {
      apply(loaded->matrix(), arithmetic, kernels_in_use(), one, x.data() + t * inputs, inputs, 1, alone.data(), stride, scratch.data());
      for (std::int64_t n = 0; n < outputs; ++n) {
        const float got = together[static_cast<std::size_t>(t * stride + n)];
        ASSERT_EQ(got, alone[static_cast<std::size_t>(n)]) << format.name << ", token " << t << ", output " << n;
        format.dequantize(loaded->matrix(), n, row.data());
        double exact = 0, magnitude = 0;
        for (std::int64_t k = 0; k < inputs; ++k) {
          const double product = static_cast<double>(row[static_cast<std::size_t>(k)]) * static_cast<double>(x[static_cast<std::size_t>(t * inputs + k)]);
          exact += product;
          magnitude += std::fabs(product);
        }
        // x is BF16 here, so kBf16 is exact too; int8 has 15 bits of the token's largest value, or 8 of the group's.
        const double error = arithmetic == Arithmetic::kInt8Grouped ? 2e-2 : arithmetic == Arithmetic::kInt8 ? 2e-3 : 2e-5;
        ASSERT_NEAR(got, exact, magnitude * error) << format.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryFormat, testing::ValuesIn([] {
                           std::vector<const Format*> all(formats().begin(), formats().end());
                           all.push_back(&f32_format());
                           return all;
                         }()),
                         [](const auto& test) {
                           std::string name(test.param->name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(GroupScales, stay_fp32_for_the_whole_matrix_where_fp16_would_lose_one) {
  auto weights = random_weights(16 * 64, 3);
  for (const float tiny : {1e-6f, 3e5f * 7}) {
    auto changed = weights;
    for (std::int64_t k = 0; k < 32; ++k) changed[static_cast<std::size_t>(5 * 64 + k)] = bf16_to_float(float_to_bf16(tiny));
    const auto loaded = load(wint4_g32_format(), changed, 16, 64);
    EXPECT_FALSE(loaded->matrix().scales_fp16);
    std::vector<float> row(64);
    wint4_g32_format().dequantize(loaded->matrix(), 5, row.data());
    EXPECT_FLOAT_EQ(row[0], bf16_to_float(float_to_bf16(tiny)));
  }
  EXPECT_TRUE(load(wint4_g32_format(), weights, 16, 64)->matrix().scales_fp16);
}

TEST(Import, codes_that_the_format_does_not_have_are_refused) {
  const auto eight = load(wint8_format(), random_weights(16 * 8, 1), 16, 8);
  const std::int8_t codes[8] = {0, 1, -128, 3, 4, 5, 6, 7};
  EXPECT_THAT(wint8_format().import_row(eight->matrix(), 3, 0, DType::kI8, codes).error().message, testing::HasSubstr("-128"));
  const auto four = load(wint4_g32_format(), random_weights(16 * 8, 1), 16, 8);
  begin(four->matrix()).value();
  const std::uint8_t packed[4] = {0x88, 0x80, 0x88, 0x88};  // element 2 is code -8
  EXPECT_THAT(wint4_g32_format().import_row(four->matrix(), 0, 0, DType::kI32, packed).error().message, testing::HasSubstr("column 2"));
  for (const float bad : {-1.0f, std::nanf(""), HUGE_VALF}) EXPECT_FALSE(wint8_format().import_row(eight->matrix(), 0, 1, DType::kF32, &bad));
}

TEST(Import, wlut4_rows_that_no_rule_gives_are_refused) {
  const auto loaded = load(wlut4_format(), random_weights(16 * 12, 1), 16, 12);
  std::uint8_t packed[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0x88, 0x88};
  EXPECT_TRUE(wlut4_format().import_row(loaded->matrix(), 3, 0, DType::kI32, packed));
  packed[6] = 0x80;  // column 12 is padding
  EXPECT_THAT(wlut4_format().import_row(loaded->matrix(), 3, 0, DType::kI32, packed).error().message, testing::HasSubstr("padding past column 12"));
  for (const std::uint8_t bad : {238, 255})
    EXPECT_THAT(wlut4_format().import_row(loaded->matrix(), 0, 2, DType::kU8, &bad).error().message, testing::HasSubstr("above 237"));
  const std::uint8_t largest = 237;
  EXPECT_TRUE(wlut4_format().import_row(loaded->matrix(), 0, 2, DType::kU8, &largest));
}

TEST(Policy, auto_head_is_wint8_with_integer_formats_and_as_stored_otherwise) {
  EXPECT_EQ(make_policy("wint4-g128", "auto")->head, &wint8_format());
  EXPECT_EQ(make_policy("", "auto")->head, nullptr);
  EXPECT_EQ(make_policy("bf16", "auto")->linear, nullptr);
  EXPECT_EQ(make_policy("wint8", "bf16")->head, nullptr);
  EXPECT_THAT(make_policy("wint6", "auto").error().message, testing::HasSubstr("Did you mean \"wint8\"?"));
}

}  // namespace
}  // namespace inflight::quant
