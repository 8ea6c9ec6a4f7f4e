// FP8 E4M3: every code against the definition, encoding against the nearest number found by search and against another implementation's values.
#include "base/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/bf16.h"

namespace inflight {
namespace {

// (1 + m / 8) * 2^(e - 7), or m / 8 * 2^-6 where e is 0.
double by_definition(int code) {
  const int e = code >> 3 & 15, m = code & 7;
  return std::ldexp(e == 0 ? m : 8 + m, (e == 0 ? 1 : e) - 7 - 3) * (code & 0x80 ? -1 : 1);
}

TEST(E4m3, every_code_means_what_the_format_says_and_is_exact_in_bf16) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    if (code == 0x7f || code == 0xff) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(e4m3_is_nan(static_cast<std::uint8_t>(code)));
      EXPECT_EQ(float_to_e4m3(value), code);
      continue;
    }
    EXPECT_FALSE(e4m3_is_nan(static_cast<std::uint8_t>(code)));
    EXPECT_EQ(double{value}, by_definition(code)) << code;
    EXPECT_EQ(bf16_to_float(float_to_bf16(value)), value) << code;
    EXPECT_EQ(float_to_e4m3(value), code);
    const int within = (code & 0x7f) > 0x77 ? (code & 0x80) | 0x77 : code;
    EXPECT_EQ(float_to_e4m3(value, kGaudiE4m3Max), within) << code;
  }
}

// Computed with PyTorch 2.15: clamp to +-448 or +-240, then to(torch.float8_e4m3fn).
TEST(E4m3, encodes_as_pytorch_does) {
  const struct {
    float value;
    int ocp, gaudi;
  } cases[] = {
      {0x0p+0f, 0x00, 0x00},         {-0x0p+0f, 0x80, 0x80},         {0x1p-10f, 0x00, 0x00},         {0x1.000002p-10f, 0x01, 0x01}, {-0x1p-10f, 0x80, 0x80},     {0x1.8p-9f, 0x02, 0x02},
      {0x1.4p-8f, 0x02, 0x02},       {0x1.cp-7f, 0x07, 0x07},        {0x1.ep-7f, 0x08, 0x08},        {0x1.dfffffp-7f, 0x08, 0x08},  {0x1p-6f, 0x08, 0x08},       {0x1.1p-6f, 0x08, 0x08},
      {0x1.3p-6f, 0x0a, 0x0a},       {0x1.10001p-6f, 0x09, 0x09},    {0x1p+0f, 0x38, 0x38},          {0x1.1p+0f, 0x38, 0x38},       {0x1.3p+0f, 0x3a, 0x3a},     {-0x1.5p+2f, 0xca, 0xca},
      {0x1.e8p+7f, 0x77, 0x77},      {0x1.f0p+7f, 0x78, 0x77},       {0x1.cp+8f, 0x7e, 0x77},        {0x1.cffp+8f, 0x7e, 0x77},     {0x1.dp+8f, 0x7e, 0x77},     {0x1.d1p+8f, 0x7e, 0x77},
      {0x1p+20f, 0x7e, 0x77},        {0x1.921fb6p+1f, 0x45, 0x45},   {-0x1.47ae14p-7f, 0x85, 0x85},  {0x1.99999ap-4f, 0x1d, 0x1d},  {0x1p-149f, 0x00, 0x00},     {0x1.7ffffep-9f, 0x01, 0x01},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(int{float_to_e4m3(c.value)}, c.ocp) << c.value;
    EXPECT_EQ(int{float_to_e4m3(c.value, kGaudiE4m3Max)}, c.gaudi) << c.value;
  }
}

TEST(E4m3, what_is_beyond_saturates_and_nan_stays) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(float_to_e4m3(infinity), 0x7e);
  EXPECT_EQ(float_to_e4m3(-infinity), 0xfe);
  EXPECT_EQ(float_to_e4m3(infinity, kGaudiE4m3Max), 0x77);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::max(), kGaudiE4m3Max), 0xf7);
  EXPECT_EQ(float_to_e4m3(465.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(nan), 0x7f);
  EXPECT_EQ(float_to_e4m3(-nan), 0xff);
  EXPECT_EQ(float_to_e4m3(std::bit_cast<float>(0x7f800001u), kGaudiE4m3Max), 0x7f);
}

// The nearest of all finite numbers, found by search; in the middle the even code.
TEST(E4m3, rounds_to_the_nearest_and_in_the_middle_to_the_even_code) {
  const auto nearest = [](float value) {
    int best = 0;
    double least = 1e9;
    for (int code = 0; code < 0x7f; ++code) {
      const double away = std::fabs(std::fabs(double{value}) - by_definition(code));
      if (away < least || (away == least && code % 2 == 0)) {
        least = away;
        best = code;
      }
    }
    return best | (std::signbit(value) ? 0x80 : 0);
  };
  for (int code = 0; code < 0x7e; ++code) {  // every middle, and the floats beside it
    const auto middle = static_cast<float>((by_definition(code) + by_definition(code + 1)) / 2);
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1000.0f), -middle}) EXPECT_EQ(int{float_to_e4m3(value)}, nearest(value)) << value;
  }
  std::mt19937 rng(7);
  std::uniform_int_distribution<std::uint32_t> bits(0x30000000u, 0x44000000u);  // 2^-31 to 512
  for (int i = 0; i < 20000; ++i) {
    const float value = std::bit_cast<float>(bits(rng) | (i % 2 ? 0x80000000u : 0));
    ASSERT_EQ(int{float_to_e4m3(value)}, nearest(value)) << value;
  }
}

}  // namespace
}  // namespace inflight
