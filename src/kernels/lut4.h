// Kernels of the 4-bit look-up format (wlut4): nibbles are numbers of a table of 16 values, one step size a group of 16 inputs, one power of two a row.
// The laws of kernels.h hold: one fixed sequence of operations an output, integer products and codes equal on every ISA, scalar is the specification.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inflight::kernels {

// w[n, k] = step(n, k / 16) * kLut4Values[nibble(n, k)] * row_scale[n], a row scale being 2^(exponent byte - 127), 0 for the byte 0
// A step byte s: sign * (16 + (s & 15)) * 2^((s >> 4) & 7), sign -1 where bit 7 is set: +-16 .. +-3968, sixteen steps an octave.
// Values and steps are small integers: their product is exact in FP32.
//
// The values were found by Lloyd's iteration (the mean of all weights nearest to a value becomes that value, weighted by the squared step) on
// Gaussian, Student-t and Laplace groups of 16 whose step and sign were searched as below; value 8 stays 0. Seven bits, so that
// values + 64 is a byte that an 8-bit multiply-add takes twice without saturating.
constexpr std::int64_t kLut4Group = 16;
constexpr std::int8_t kLut4Values[16] = {-64, -52, -40, -31, -23, -16, -10, -5, 0, 6, 12, 18, 25, 32, 41, 55};
constexpr int kLut4Zero = 8;  // the nibble whose value is 0
// Steps tried, relative to the largest step not above a group's absmax / 64: with the sign that takes the largest element to the long (negative) end
// of the values, then with the other, whose end is 55. The best twelve of -3 to 12 on both sides: all of them together gain another 0.8 % of the error.
constexpr int kLut4LongTries[] = {-1, 0, 1, 2, 3, 4, 5, 6}, kLut4ShortTries[] = {2, 3, 4, 5};

// For the step at place i, -1 <= i <= 21, of two octaves: 16 + i, from 16 on 32, 34, .. (and 15.5 below). Its inverse in units of 2^-15, and nine times the
// square of twice the step.
constexpr int lut4_twice_step(int i) { return i < 0 ? 32 + i : i < 16 ? 32 + 2 * i : 4 * i; }
constexpr int lut4_multiplier(int i) { return ((1 << 17) / lut4_twice_step(i) + 1) / 2; }
constexpr int lut4_weight(int i) { return 9 * lut4_twice_step(i) * lut4_twice_step(i); }

// Panels of 16 rows as in kernels.h:
//   codes      u4  [panels][2 * groups][16][4]  byte j of block b: low nibble k = 8b + j, high nibble k = 8b + 4 + j; nibble kLut4Zero past K
//   steps      u8  [panels][groups][16]
//   row_exponents u8 [panels][16]               0 in rows past N
// groups = ceil(K / 16). Codes are 64-byte aligned.
struct Lut4Weight {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* steps = nullptr;
  const std::uint8_t* row_exponents = nullptr;
  std::int64_t outputs = 0;  // N
  std::int64_t inputs = 0;   // K
};

struct Lut4Kernels {
  // Fills lanes [lane, lane + rows) of one panel and touches no byte of other lanes. Returns -1, or row * K + k of the first NaN or infinity.
  // absmax: nullptr, or [rows] the rows' absmax over all ranks.
  // Row: E = floor(log2(absmax)) within [-100, 126]; row_scale = 2^(E - 16), exponent byte E + 111; 0 if absmax is 0.
  // Group: floor = the step byte of the largest step not above (largest magnitude) / 64 / row_scale, that is (bits of the magnitude >> 19) -
  // 16 * (E + 121), which may lie outside of the bytes; base = floor within [1, 121]; octave = max(floor, 0) >> 4.
  // t = w * 2^(16 - E - octave), rounded to the nearest even integer (11 bits). The long sign is + where a negative
  // element has the largest magnitude (maybe beside a positive one), else -.
  // For d of kLut4LongTries with the long sign, then of kLut4ShortTries with the other, with >> rounding down:
  //   s = base + d, i = s - 16 * octave; m = lut4_multiplier(i), negative for the sign -;
  //   y = (t * m + 2^14) >> 15; the nibble is the count of j with y > (value j + value j + 1) >> 1, that is the nearest value;
  //   error = (16 * min(sum of (y - value)^2, 2047) * lut4_weight(i)) >> 16.
  // The first try with the least error is kept. Inputs past K count as 0. A group of zeros: step byte 0, codes kLut4Zero.
  std::int64_t (*quantize)(const SourceRows& source, int lane, const float* absmax, std::uint8_t* codes, std::uint8_t* steps, std::uint8_t* row_exponents);
  // Per group sum = 0, sum = fma(value, x, sum) for k ascending; acc = 0, acc = fma(sum, step, acc) for groups ascending; y = fl(acc * row_scale).
  void (*gemm)(const Lut4Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  // Activations as two int8 planes a token with the rule of kernels.h; opaque, 64-byte aligned. begin % 16 == 0, and end % 16 == 0 or end == tokens.
  std::size_t (*int8_bytes)(std::int64_t tokens, std::int64_t inputs);
  void (*quantize_int8)(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t begin, std::int64_t end, void* out);
  // Per group h = sum value * high, l = sum value * low (int32, exact), v = fma(128, float(h), float(l)); acc = fma(v, step, acc) for groups ascending;
  // y = fl(acc * fl(row_scale * scale_x)).
  void (*gemm_int8)(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  // Prompt activations: those that quantize_grouped of the same ISA's LinearKernels makes for groups of kLut4Group.
  // Per group v = sum value * q (int32, exact); acc = 0, acc = fma(float(v), step * row_scale (exact), acc) for groups ascending; y = fl(acc * scale_x).
  void (*gemm_prompt)(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
};

}  // namespace inflight::kernels
