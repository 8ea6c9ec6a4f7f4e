// Kernels of the 4-bit look-up format (wlut4): nibbles are numbers of a table of 16 values, one step size a group of 16 inputs, one scale a row.
// The laws of kernels.h hold: one fixed sequence of operations an output, integer products and codes equal on every ISA, scalar is the specification.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inflight::kernels {

// w[n, k] = step(n, k / 16) * kLut4Values[nibble(n, k)] * row_scale[n]
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
// of the values, then with the other, whose end is 55. Outside these, a better step is rare: all of -3 to 12 on both sides gain 3 % of the error.
constexpr int kLut4LongTries[] = {-1, 0, 1, 2}, kLut4ShortTries[] = {2, 3, 4, 5};

// Panels of 16 rows as in kernels.h:
//   codes      u4  [panels][2 * groups][16][4]  byte j of block b: low nibble k = 8b + j, high nibble k = 8b + 4 + j; nibble kLut4Zero past K
//   steps      u8  [panels][groups][16]
//   row_scales f32 [panels][16]                 0 in rows past N
// groups = ceil(K / 16). Codes are 64-byte aligned.
struct Lut4Weight {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* steps = nullptr;
  const float* row_scales = nullptr;
  std::int64_t outputs = 0;  // N
  std::int64_t inputs = 0;   // K
};

struct Lut4Kernels {
  // Fills lanes [lane, lane + rows) of one panel and touches no byte of other lanes. Returns -1, or row * K + k of the first NaN or infinity.
  // Row: E = floor(log2(absmax)) within [-100, 126]; row_scale = 2^(E - 16), 0 if absmax is 0; z = fl(w * 2^(16 - E)).
  // Group: base = floor in the order of step bytes of (largest |z|) / 64, that is (bits of fl(largest / 64) >> 19) - 2096, within [1, 122];
  // the long sign is + where a negative z is largest (or as large as a positive one), else -.
  // For d of kLut4LongTries with the long sign, then of kLut4ShortTries with the other: s = base + d, step negative for the sign -;
  // y = z * fl(1 / step(s)) in FP32, rounded to the nearest even integer, saturated to [-128, 127]; the nibble is the count of j with
  // y > floor((value j + value j + 1) / 2), that is the nearest value; error = float(sum of (y - value)^2 over 16) * (step(s) * step(s)) in FP32.
  // The first try with the least error is kept. Inputs past K count as 0. A group of zeros: step byte 0, codes kLut4Zero.
  std::int64_t (*quantize)(const SourceRows& source, int lane, std::uint8_t* codes, std::uint8_t* steps, float* row_scales);
  // Per group sum = 0, sum = fma(value, x, sum) for k ascending; acc = 0, acc = fma(sum, step, acc) for groups ascending; y = fl(acc * row_scale).
  void (*gemm)(const Lut4Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  // Activations as two int8 planes a token with the rule of kernels.h; opaque, 64-byte aligned. begin % 16 == 0, and end % 16 == 0 or end == tokens.
  std::size_t (*int8_bytes)(std::int64_t tokens, std::int64_t inputs);
  void (*quantize_int8)(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t begin, std::int64_t end, void* out);
  // Per group h = sum value * high, l = sum value * low (int32, exact), v = fma(128, float(h), float(l)); acc = fma(v, step, acc) for groups ascending;
  // y = fl(acc * fl(row_scale * scale_x)).
  void (*gemm_int8)(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
};

}  // namespace inflight::kernels
