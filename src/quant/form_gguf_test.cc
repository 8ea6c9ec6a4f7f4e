// Blocks that ggml's layouts make (tests/gguf/blocks.bin: tools/make_gguf_fixtures.py), against the `gguf` package's numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/file.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kRows = 4, kInputs = 512;
constexpr DType kTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

struct Parts {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, offsets;
  RowParts parts;
  Parts(const FormSettings& settings, int rows, std::int64_t inputs) {
    const auto groups = static_cast<std::size_t>(inputs / settings.group);
    codes.resize(static_cast<std::size_t>(rows * inputs));
    scales.resize(static_cast<std::size_t>(rows) * groups);
    offsets.resize(scales.size());
    parts = {.kind = settings.kind, .rows = rows, .inputs = inputs, .group = settings.group, .codes = codes.data(), .scales = scales.data(), .offsets = settings.offsets ? offsets.data() : nullptr};
  }
};

struct Fixture {
  std::string raw;
  std::vector<float> numbers;
};
Fixture fixture_of(DType wanted) {
  const std::string file = read_file(std::string(INFLIGHT_TEST_DATA) + "/gguf/blocks.bin").value();
  std::size_t at = 0;
  for (const DType type : kTypes) {
    const auto bytes = static_cast<std::size_t>(kRows * row_bytes(type, kInputs));
    Fixture fixture{file.substr(at, bytes), std::vector<float>(kRows * kInputs)};
    std::memcpy(fixture.numbers.data(), file.data() + at + bytes, fixture.numbers.size() * 4);
    at += bytes + fixture.numbers.size() * 4;
    if (type == wanted) return fixture;
  }
  return {};
}

class GgufForm : public testing::TestWithParam<DType> {};

TEST_P(GgufForm, numbers_are_those_of_the_gguf_package) {
  const DType type = GetParam();
  const Fixture fixture = fixture_of(type);
  const FormSettings settings = gguf_settings(type);
  Parts all(settings, kRows, kInputs);
  const FormBytes bytes{reinterpret_cast<const std::byte*>(fixture.raw.data()), row_bytes(type, kInputs), 0, type};
  const auto taken = gguf_form().take_apart(settings, {&bytes, 1}, 0, all.parts);
  ASSERT_TRUE(taken) << taken.error().message;
  std::vector<float> numbers(kRows * kInputs);
  dequantize_parts(all.parts, numbers.data());
  // Where an offset is moved to the zero of 4-bit codes, scale * 8 and the minimum are added in FP32 first; else the sum is the same.
  const bool moved = settings.offsets && settings.kind == CodeKind::kU4;
  std::int64_t equal = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    equal += numbers[i] == fixture.numbers[i];
    if (!moved) {
      ASSERT_EQ(numbers[i], fixture.numbers[i]) << "row " << i / kInputs << ", input " << i % kInputs;
      continue;
    }
    const std::size_t group = i / static_cast<std::size_t>(settings.group);
    const float largest = std::max(std::abs(8 * all.scales[group]), std::abs(all.offsets[group]));
    ASSERT_NEAR(numbers[i], fixture.numbers[i], 0x1p-23 * largest) << "row " << i / kInputs << ", input " << i % kInputs;
  }
  EXPECT_GT(equal, kRows * kInputs * 6 / 10);  // most sums are exact
}

TEST_P(GgufForm, rows_from_the_middle_are_the_same_rows) {
  const DType type = GetParam();
  const Fixture fixture = fixture_of(type);
  const FormSettings settings = gguf_settings(type);
  Parts all(settings, kRows, kInputs), one(settings, 1, kInputs);
  const std::int64_t stride = row_bytes(type, kInputs);
  const FormBytes bytes{reinterpret_cast<const std::byte*>(fixture.raw.data()), stride, 0, type};
  ASSERT_TRUE(gguf_form().take_apart(settings, {&bytes, 1}, 0, all.parts));
  const FormBytes later{reinterpret_cast<const std::byte*>(fixture.raw.data()) + 2 * stride, stride, 102, type};  // the bytes begin at output 102
  ASSERT_TRUE(gguf_form().take_apart(settings, {&later, 1}, 103, one.parts));
  EXPECT_EQ(std::memcmp(one.codes.data(), all.codes.data() + 3 * kInputs, static_cast<std::size_t>(kInputs)), 0);
  EXPECT_EQ(std::memcmp(one.scales.data(), all.scales.data() + 3 * one.scales.size(), one.scales.size() * 4), 0);
  EXPECT_EQ(std::memcmp(one.offsets.data(), all.offsets.data() + 3 * one.scales.size(), one.scales.size() * 4), 0);
}

TEST_P(GgufForm, codes_are_in_range) {
  const FormSettings settings = gguf_settings(GetParam());
  const Fixture fixture = fixture_of(GetParam());
  Parts all(settings, kRows, kInputs);
  const FormBytes bytes{reinterpret_cast<const std::byte*>(fixture.raw.data()), row_bytes(GetParam(), kInputs), 0, GetParam()};
  ASSERT_TRUE(gguf_form().take_apart(settings, {&bytes, 1}, 0, all.parts));
  if (settings.kind == CodeKind::kU4) EXPECT_LE(*std::ranges::max_element(all.codes), 15);
}

TEST_P(GgufForm, a_scale_that_is_no_number_is_named) {
  const DType type = GetParam();
  const FormSettings settings = gguf_settings(type);
  const std::int64_t stride = row_bytes(type, kInputs), size = block_bytes(type);
  std::string raw(static_cast<std::size_t>(2 * stride), '\0');
  // Every pair of bytes that could be an FP16 number of the second block of the second row: at least one is, and infinity there is refused.
  int refused = 0;
  for (std::int64_t at = 0; at + 1 < size; at += 2) {
    std::string bad = raw;
    bad[static_cast<std::size_t>(stride + size + at + 1)] = 0x7c;
    Parts all(settings, 2, kInputs);
    const FormBytes bytes{reinterpret_cast<const std::byte*>(bad.data()), stride, 0, type};
    const auto taken = gguf_form().take_apart(settings, {&bytes, 1}, 0, all.parts);
    if (taken) continue;
    ++refused;
    EXPECT_THAT(taken.error().message, AllOf(HasSubstr("row 1"), HasSubstr(fmt::format("columns {} to", block_elements(type))), HasSubstr("inf")));
  }
  EXPECT_EQ(refused, type == DType::kQ4_0 || type == DType::kQ5_0 || type == DType::kQ8_0 || type == DType::kQ3_K || type == DType::kQ6_K ? 1 : 2);
}

INSTANTIATE_TEST_SUITE_P(types, GgufForm, testing::ValuesIn(kTypes), [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST(GgufFormSizes, rows_must_be_whole_blocks) {
  for (const DType type : kTypes) {
    const FormSettings settings = gguf_settings(type);
    const auto tensors = gguf_form().tensors(settings, 3, 256);
    ASSERT_TRUE(tensors);
    ASSERT_EQ(tensors->size(), 1u);
    EXPECT_EQ(tensors->front().suffix, "weight");
    EXPECT_EQ(tensors->front().shape, (std::vector<std::int64_t>{3, 256}));
    EXPECT_FALSE(gguf_form().tensors(settings, 3, 256 + block_elements(type) / 2));
  }
}

TEST(GgufFormSizes, bytes_of_rows) {
  EXPECT_EQ(row_bytes(DType::kQ4_0, 64), 36);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420);
  EXPECT_EQ(row_bytes(DType::kBF16, 5), 10);
  EXPECT_EQ(dtype_from_name("Q4_0"), std::nullopt);  // no element type of safetensors
}

}  // namespace
}  // namespace inflight::quant
