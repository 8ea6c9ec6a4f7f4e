// Packing and quantizing against the rules of kernels.h, written out here a second time: bit for bit, on the ISA under test.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

constexpr std::uint8_t kUntouched8 = 0xa5;

std::size_t width_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Rows of a checkpoint, `stride` elements apart, at an odd address, in memory that ends with the last element.
struct Rows {
  std::vector<float> values;  // [rows][inputs], what the stored elements widen to
  std::vector<char> bytes;
  SourceRows source;

  Rows(DType dtype, int rows, std::int64_t inputs, std::int64_t stride, const std::vector<float>& wanted) {
    const std::size_t width = width_of(dtype);
    bytes.resize(1 + ((rows - 1) * stride + inputs) * width);
    bytes.shrink_to_fit();
    values.resize(rows * inputs);
    for (int row = 0; row < rows; ++row)
      for (std::int64_t k = 0; k < inputs; ++k) {
        const float want = wanted[row * inputs + k];
        char* at = bytes.data() + 1 + (row * stride + k) * width;
        if (dtype == DType::kF32) {
          std::memcpy(at, &want, 4);
          values[row * inputs + k] = want;
        } else {
          const std::uint16_t bits = dtype == DType::kBF16 ? float_to_bf16(want) : float_to_fp16(want);
          std::memcpy(at, &bits, 2);
          values[row * inputs + k] = dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
        }
      }
    source = SourceRows{.data = bytes.data() + 1, .dtype = dtype, .stride = stride, .rows = rows, .inputs = inputs};
  }
  float at(int row, std::int64_t k) const { return values[row * source.inputs + k]; }
};

int code_of(float w, float scale, float bound) {
  if (scale == 0) return 0;
  const float r = w / scale;
  const float rounded = std::trunc(r + std::copysign(0.5f, r));
  return static_cast<int>(std::fmin(std::fmax(rounded, -bound), bound));
}

enum class Values { kNormal, kZero, kTies, kTiny, kHuge, kMixed };

std::vector<float> make_values(Values kind, int rows, std::int64_t inputs, DType dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 0.02f);
  std::uniform_int_distribution<int> quarter(-508, 508), sign(0, 1), exponent(-140, 120);
  std::vector<float> out(rows * inputs);
  for (std::size_t i = 0; i < out.size(); ++i) {
    switch (kind) {
      case Values::kNormal: out[i] = normal(rng); break;
      case Values::kZero: out[i] = sign(rng) ? 0.0f : -0.0f; break;
      case Values::kTies: out[i] = static_cast<float>(quarter(rng)) * 0.25f; break;  // with absmax 127: scale 1, halves are ties
      case Values::kTiny: out[i] = static_cast<float>(quarter(rng)) * 0x1p-149f * (dtype == DType::kF16 ? 0x1p125f : 1); break;
      case Values::kHuge: out[i] = (sign(rng) ? 1.0f : -1.0f) * (dtype == DType::kF16 ? 65504.0f : dtype == DType::kBF16 ? 0x1.fep127f : FLT_MAX) * (sign(rng) ? 1.0f : 0.37f); break;
      case Values::kMixed: out[i] = std::ldexp(normal(rng) * 50, dtype == DType::kF16 ? exponent(rng) / 12 : exponent(rng)); break;
    }
    if (kind == Values::kTies && i % inputs == 0) out[i] = 127.0f;
  }
  if (kind == Values::kMixed && rows > 1)
    for (std::int64_t k = 0; k < inputs; ++k) out[inputs + k] = 0;  // a zero row among others
  return out;
}

class LoadTest : public testing::Test {
 protected:
  void SetUp() override {
    auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    load = (*table)->load;
  }
  const LoadKernels* load = nullptr;
  std::mt19937 rng{20240607};
};

constexpr DType kDtypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::int64_t kInputs[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 300, 517};
constexpr int kRows[][2] = {{0, 16}, {0, 1}, {15, 1}, {3, 5}, {8, 8}};  // lane, rows

TEST_F(LoadTest, pack_f32_places_every_element_and_touches_no_other_lane) {
  for (DType dtype : kDtypes)
    for (std::int64_t inputs : kInputs)
      for (auto [lane, rows] : kRows) {
        const Rows rows_in(dtype, rows, inputs, inputs + 3, make_values(Values::kMixed, rows, inputs, dtype, rng));
        const float untouched = -12345.5f;
        std::vector<float> panel(inputs * 16, untouched);
        ASSERT_EQ(load->pack_f32(rows_in.source, lane, panel.data()), -1);
        for (std::int64_t k = 0; k < inputs; ++k)
          for (int r = 0; r < 16; ++r) {
            const float want = r >= lane && r < lane + rows ? rows_in.at(r - lane, k) : untouched;
            ASSERT_EQ(std::memcmp(&panel[k * 16 + r], &want, 4), 0) << "K " << inputs << " k " << k << " lane " << r << " got " << panel[k * 16 + r] << " expected " << want;
          }
      }
}

TEST_F(LoadTest, pack_bf16_places_pairs_and_pads_an_odd_k_with_zero) {
  for (std::int64_t inputs : kInputs)
    for (auto [lane, rows] : kRows) {
      const Rows rows_in(DType::kBF16, rows, inputs, inputs + 1, make_values(Values::kMixed, rows, inputs, DType::kBF16, rng));
      const std::uint16_t untouched = 0x5a5a;
      const std::int64_t pairs = (inputs + 1) / 2;
      std::vector<std::uint16_t> panel(pairs * 32, untouched);
      ASSERT_EQ(load->pack_bf16(rows_in.source, lane, panel.data()), -1);
      for (std::int64_t k = 0; k < pairs * 2; ++k)
        for (int r = 0; r < 16; ++r) {
          const bool ours = r >= lane && r < lane + rows;
          const std::uint16_t want = !ours ? untouched : k == inputs ? 0 : float_to_bf16(rows_in.at(r - lane, k));
          ASSERT_EQ(panel[k / 2 * 32 + r * 2 + k % 2], want) << "K " << inputs << " k " << k << " lane " << r;
        }
    }
}

TEST_F(LoadTest, stored_codes_go_to_their_places_and_codes_that_no_quantizer_writes_are_seen) {
  for (const std::int64_t inputs : {1, 3, 4, 7, 8, 9, 63, 64, 65, 127, 128, 129, 500})
    for (const int lane : {0, 5})
      for (const int rows : {1, 3, 16 - lane}) {
        for (const bool eight : {true, false}) {
          const std::int64_t row_bytes = eight ? inputs : (inputs + 7) / 8 * 4, stride = row_bytes + 5;
          std::vector<std::uint8_t> bytes(static_cast<std::size_t>(1 + (rows - 1) * stride + row_bytes));
          std::uniform_int_distribution<int> any(0, 255);
          for (auto& byte : bytes) {
            byte = static_cast<std::uint8_t>(any(rng));
            if (eight && byte == 0x80) byte = 0x81;
            if (!eight && (byte & 15) == 0) byte |= 8;
            if (!eight && (byte >> 4) == 0) byte |= 0x10;
          }
          const StoredCodes source{.data = bytes.data() + 1, .stride = stride, .rows = rows, .inputs = inputs};
          const std::int64_t panel_bytes = eight ? (inputs + 3) / 4 * 64 : (inputs + 7) / 8 * 64;
          std::vector<std::uint8_t> panel(static_cast<std::size_t>(panel_bytes), kUntouched8);
          const auto unpack = eight ? load->unpack_u8 : load->unpack_u4;
          ASSERT_TRUE(unpack(source, lane, panel.data()));
          for (std::int64_t at = 0; at < panel_bytes; ++at) {
            const int row = static_cast<int>(at / 4 % 16) - lane;
            std::uint8_t want = kUntouched8;
            if (row >= 0 && row < rows) {
              const auto* from = bytes.data() + 1 + row * stride;
              const auto code = [&](std::int64_t k) { return from[k / 2] >> (k % 2 * 4) & 15; };
              const std::int64_t k = eight ? at / 64 * 4 + at % 4 : at / 64 * 8 + at % 4;
              want = eight ? static_cast<std::uint8_t>(k < inputs ? from[k] ^ 0x80 : 0x80) : static_cast<std::uint8_t>(code(k) | code(k + 4) << 4);
            }
            ASSERT_EQ(panel[static_cast<std::size_t>(at)], want) << inputs << " " << lane << " " << rows << " byte " << at;
          }
          std::uint8_t& spoiled = bytes[static_cast<std::size_t>(1 + (rows - 1) * stride + row_bytes - 1)];
          spoiled = eight ? 0x80 : spoiled & 15;
          EXPECT_FALSE(unpack(source, lane, panel.data()));
        }
      }
}

TEST_F(LoadTest, quantize_u8_follows_the_rule_bit_for_bit) {
  for (DType dtype : kDtypes)
    for (std::int64_t inputs : kInputs)
      for (auto [lane, rows] : kRows)
        for (Values kind : {Values::kNormal, Values::kZero, Values::kTies, Values::kTiny, Values::kHuge, Values::kMixed})
          for (bool given : {false, true}) {
            const Rows rows_in(dtype, rows, inputs, inputs + 5, make_values(kind, rows, inputs, dtype, rng));
            std::vector<float> absmax(rows);
            for (int r = 0; r < rows; ++r) {
              for (std::int64_t k = 0; k < inputs; ++k) absmax[r] = std::fmax(absmax[r], std::fabs(rows_in.at(r, k)));
              if (given) absmax[r] = std::fmin(absmax[r] * 1.3f, FLT_MAX);  // another rank's is larger
            }
            const std::int64_t blocks = (inputs + 3) / 4;
            std::vector<std::uint8_t> panel(blocks * 64, kUntouched8);
            std::vector<float> scales(16, -1.0f);
            ASSERT_EQ(load->quantize_u8(rows_in.source, lane, given ? absmax.data() : nullptr, panel.data(), scales.data()), -1);
            for (int r = 0; r < 16; ++r) {
              const bool ours = r >= lane && r < lane + rows;
              const float scale = ours ? absmax[r - lane] / 127.0f : -1.0f;
              ASSERT_EQ(scales[r], scale) << "lane " << r;
              for (std::int64_t k = 0; k < blocks * 4; ++k) {
                const int want = !ours ? kUntouched8 : 128 + (k < inputs ? code_of(rows_in.at(r - lane, k), scale, 127) : 0);
                ASSERT_EQ(int{panel[k / 4 * 64 + r * 4 + k % 4]}, want)
                    << dtype_name(dtype) << " K " << inputs << " k " << k << " lane " << r << " values " << static_cast<int>(kind) << " scale " << scale;
              }
            }
          }
}

TEST_F(LoadTest, quantize_u4_follows_the_rule_bit_for_bit) {
  for (DType dtype : kDtypes)
    for (std::int64_t inputs : kInputs)
      for (std::int64_t group : {0, 8, 24, 32, 64, 128, 512})
        for (Values kind : {Values::kNormal, Values::kZero, Values::kTies, Values::kTiny, Values::kHuge, Values::kMixed}) {
          const auto [lane, rows] = kRows[(inputs + group / 8 + static_cast<int>(kind)) % 5];
          const bool given = (inputs + group / 8) % 2 == 1;
          const std::int64_t width = group == 0 ? inputs : group, groups = (inputs + width - 1) / width;
          const Rows rows_in(dtype, rows, inputs, inputs + 2, make_values(kind, rows, inputs, dtype, rng));
          std::vector<float> absmax(rows * groups);
          for (int r = 0; r < rows; ++r)
            for (std::int64_t k = 0; k < inputs; ++k) absmax[r * groups + k / width] = std::fmax(absmax[r * groups + k / width], std::fabs(rows_in.at(r, k)));
          if (given)
            for (float& a : absmax) a = std::fmin(a * 1.7f, FLT_MAX);
          const std::int64_t blocks = (inputs + 7) / 8;
          std::vector<std::uint8_t> panel(blocks * 64, kUntouched8);
          std::vector<float> scales(groups * 16, -1.0f);
          ASSERT_EQ(load->quantize_u4(rows_in.source, lane, group, given ? absmax.data() : nullptr, panel.data(), scales.data()), -1);
          for (int r = 0; r < 16; ++r) {
            const bool ours = r >= lane && r < lane + rows;
            for (std::int64_t g = 0; g < groups; ++g) ASSERT_EQ(scales[g * 16 + r], ours ? absmax[(r - lane) * groups + g] / 7.0f : -1.0f) << "lane " << r << " group " << g;
            for (std::int64_t b = 0; b < blocks; ++b)
              for (int j = 0; j < 4; ++j) {
                const auto nibble = [&](std::int64_t k) { return 8 + (k < inputs ? code_of(rows_in.at(r - lane, k), scales[k / width * 16 + r], 7) : 0); };
                const int want = !ours ? kUntouched8 : nibble(8 * b + j) | nibble(8 * b + 4 + j) << 4;
                ASSERT_EQ(int{panel[b * 64 + r * 4 + j]}, want)
                    << dtype_name(dtype) << " K " << inputs << " group " << group << " block " << b << " byte " << j << " lane " << r << " values " << static_cast<int>(kind);
              }
          }
        }
}

// r = 0.49999997 plus one half rounds to 1 in FP32: the rule says 1, and so does every ISA.
TEST_F(LoadTest, the_half_is_added_in_fp32) {
  const std::vector<float> values = {127.0f, 0.49999997f, 0.49999994f, -0.49999997f, 0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 126.5f, -126.5f, 126.49999f, 0.0f, -0.0f, 1e-30f, -127.0f};
  const int codes[] = {127, 1, 0, -1, 1, -1, 2, 3, -3, 127, -127, 126, 0, 0, 0, -127};
  const Rows rows_in(DType::kF32, 1, 16, 16, values);
  std::vector<std::uint8_t> panel(4 * 64);
  std::vector<float> scales(16);
  ASSERT_EQ(load->quantize_u8(rows_in.source, 2, nullptr, panel.data(), scales.data()), -1);
  EXPECT_EQ(scales[2], 1.0f);
  for (int k = 0; k < 16; ++k) EXPECT_EQ(int{panel[k / 4 * 64 + 2 * 4 + k % 4]} - 128, codes[k]) << values[k];
}

TEST_F(LoadTest, the_first_nan_or_infinity_is_named) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (DType dtype : kDtypes)
    for (std::int64_t inputs : {1, 5, 16, 33, 64, 129, 300})
      for (int trial = 0; trial < 12; ++trial) {
        const int rows = trial % 3 == 0 ? 16 : 1 + trial;
        std::vector<float> values = make_values(Values::kNormal, rows, inputs, dtype, rng);
        std::uniform_int_distribution<std::int64_t> where(0, rows * inputs - 1);
        const std::int64_t first = where(rng), later = std::uniform_int_distribution<std::int64_t>(first, rows * inputs - 1)(rng);
        values[first] = bad[trial % 3];
        values[later] = bad[(trial + 1) % 3];
        const Rows rows_in(dtype, rows, inputs, inputs, values);
        const std::int64_t padded = (inputs + 7) / 8 * 8;
        std::vector<float> panel(padded * 16), scales(padded * 16);
        auto* codes = reinterpret_cast<std::uint8_t*>(panel.data());
        EXPECT_EQ(load->pack_f32(rows_in.source, 0, panel.data()), first);
        if (dtype == DType::kBF16) {
          EXPECT_EQ(load->pack_bf16(rows_in.source, 0, reinterpret_cast<std::uint16_t*>(panel.data())), first);
        }
        EXPECT_EQ(load->quantize_u8(rows_in.source, 0, nullptr, codes, scales.data()), first);
        EXPECT_EQ(load->quantize_u4(rows_in.source, 0, 0, nullptr, codes, scales.data()), first);
        EXPECT_EQ(load->quantize_u4(rows_in.source, 0, 32, nullptr, codes, scales.data()), first);
        const std::vector<float> absmax(rows * ((inputs + 31) / 32), 1.0f);
        EXPECT_EQ(load->quantize_u8(rows_in.source, 0, absmax.data(), codes, scales.data()), first);
        EXPECT_EQ(load->quantize_u4(rows_in.source, 0, 32, absmax.data(), codes, scales.data()), first);
      }
}

}  // namespace
}  // namespace inflight::kernels
