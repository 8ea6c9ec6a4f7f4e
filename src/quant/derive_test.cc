// Derived parameters against their definition, element by element, from every kind of source.
#include "quant/derive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/bf16.h"
#include "kernels/dispatch.h"
#include "quant/store.h"

namespace inflight::quant {
namespace {

struct Made {
  params::ParamTable table;
  ParamPlan plan;
  ParamStore store;
};

constexpr std::int64_t kHeads = 3, kFirst = 20, kSecond = 24, kInputs = 48, kUnit = kFirst + kSecond;

std::unique_ptr<Made> make(const Format* format, bool stored_wide, bool wide_derived) {
  auto made = std::make_unique<Made>();
  made->table.rows.push_back({.name = "kv_b", .pieces = {{"kv_b", kHeads * kUnit}}, .inputs = kInputs, .unit = kUnit});
  made->table.rows.push_back({.name = "k_b", .role = params::Role::kDerived, .pieces = {{"k_b", kHeads * kInputs}}, .inputs = kFirst, .unit = kInputs,
                              .derivation = params::Derivation{.source = 0, .unit = kUnit, .first = 0, .rows = kFirst, .transposed = true}});
  made->table.rows.push_back({.name = "v_b", .role = params::Role::kDerived, .pieces = {{"v_b", kHeads * 32}}, .inputs = kInputs, .unit = 32,
                              .derivation = params::Derivation{.source = 0, .unit = kUnit, .first = kFirst, .rows = kSecond}});
  FormatPolicy policy{.linear = format};
  policy.wide_derived = wide_derived;
  made->plan = plan_params(made->table, {}, policy, {stored_wide, false, false}, {nullptr, nullptr, nullptr}).value();
  made->store.allocate(made->plan).value();
  return made;
}

bool fill(Made& made, float largest = 1) {
  const kernels::Kernels& kernels = **kernels::choose();
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.1f);
  Matrix& source = made.store.matrix(0);
  begin(source).value();
  for (std::int64_t row = 0; row < source.outputs; ++row) {
    std::vector<float> values(kInputs);
    for (float& x : values) x = normal(random) * largest;
    EXPECT_EQ(source.format->codes == Codes::kBf16 ? [&] {
      std::vector<std::uint16_t> narrow(kInputs);
      for (std::size_t k = 0; k < narrow.size(); ++k) narrow[k] = float_to_bf16(values[k]);
      return source.format->store(kernels, {.data = narrow.data(), .dtype = DType::kBF16, .stride = kInputs, .rows = 1, .inputs = kInputs}, row, source);
    }() : source.format->store(kernels, {.data = values.data(), .dtype = DType::kF32, .stride = kInputs, .rows = 1, .inputs = kInputs}, row, source), -1);
  }
  finish(source);
  return derive(kernels, source, *made.table.rows[1].derivation, made.store.matrix(1)) && derive(kernels, source, *made.table.rows[2].derivation, made.store.matrix(2));
}

void expect_definition(const Made& made, bool wide) {
  const auto row_of = [](const Matrix& matrix, std::int64_t row) {
    std::vector<float> values(static_cast<std::size_t>(matrix.inputs));
    matrix.format->dequantize(matrix, row, values.data());
    return values;
  };
  const Matrix &source = made.store.matrix(0), &k_b = made.store.matrix(1), &v_b = made.store.matrix(2);
  const auto kept = [&](float x) { return wide ? x : bf16_to_float(float_to_bf16(x)); };
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t n = 0; n < kUnit; ++n) {
      const std::vector<float> original = row_of(source, h * kUnit + n);
      for (std::int64_t k = 0; k < kInputs; ++k) {
        const float want = kept(original[static_cast<std::size_t>(k)]);
        if (n < kFirst) ASSERT_EQ(row_of(k_b, h * kInputs + k)[static_cast<std::size_t>(n)], want) << h << " " << n << " " << k;
        else ASSERT_EQ(row_of(v_b, h * 32 + n - kFirst)[static_cast<std::size_t>(k)], want) << h << " " << n << " " << k;
      }
    }
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t n = kSecond; n < 32; ++n) EXPECT_EQ(row_of(v_b, h * 32 + n), std::vector<float>(kInputs, 0.0f));
}

TEST(Derive, follows_from_any_format_in_bf16_and_in_fp32) {
  for (const char* name : {"", "wint8", "wint4", "wint4-g32"})
    for (const bool wide : {false, true}) {
      SCOPED_TRACE(std::string(name) + (wide ? " fp32" : " bf16"));
      const auto made = make(*name ? find_format(name).value() : nullptr, false, wide);
      EXPECT_EQ(made->store.matrix(1).format, wide ? &f32_format() : &bf16_format());
      EXPECT_EQ(made->plan.slots[1].bytes.codes, kHeads * kInputs * kFirst * (wide ? 4 : 2));
      EXPECT_EQ(made->plan.slots[2].bytes.codes, kHeads * 32 * kInputs * (wide ? 4 : 2));
      EXPECT_GE(made->plan.weight_bytes, made->plan.slots[2].offset + made->plan.slots[2].bytes.codes);
      ASSERT_TRUE(fill(*made));
      expect_definition(*made, wide);
    }
}

TEST(Derive, an_fp32_source_is_not_squeezed) {
  const auto made = make(nullptr, true, false);
  EXPECT_EQ(made->store.matrix(1).format, &f32_format());
  ASSERT_TRUE(fill(*made));
  expect_definition(*made, true);
}

TEST(Derive, what_overflows_bf16_is_reported) {
  const auto made = make(find_format("wint8").value(), false, false);
  EXPECT_TRUE(fill(*made, 1e30f));
  const auto large = make(find_format("wint8").value(), false, false);
  begin(large->store.matrix(0)).value();
  std::vector<float> values(kInputs, std::numeric_limits<float>::max());
  Matrix& source = large->store.matrix(0);
  for (std::int64_t row = 0; row < source.outputs; ++row)
    ASSERT_EQ(source.format->store(**kernels::choose(), {.data = values.data(), .dtype = DType::kF32, .stride = kInputs, .rows = 1, .inputs = kInputs}, row, source), -1);
  EXPECT_FALSE(derive(**kernels::choose(), source, *large->table.rows[1].derivation, large->store.matrix(1)));
}

}  // namespace
}  // namespace inflight::quant
