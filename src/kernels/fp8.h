// Kernels of weights in FP8 E4M3 (base/e4m3.h), and of activations rounded to E4M3 numbers.
// The laws of kernels.h hold: one fixed sequence of operations an output, scalar is the specification.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inflight::kernels {

// w[n, k] = value(code[n, k]) * scale[n, k / group]. A Weight of kernels.h whose codes are
//   e4m3  [panels][ceil(K/4)][4 quads of rows][2][4 rows][2]   byte (k, r) of a panel at e4m3_place(k, r); 0 past K and in rows past N
// Eight bytes hold two inputs of four rows: one byte shuffle for the high and one for the low halves of their BF16 numbers, interleaved, are the
// pairs [16 rows][2] that BF16 dot instructions take. No code is NaN.
// scales f32, per channel [panels][16] or per group [panels][groups][16], group a multiple of 16 up to kMostFp8Group; never FP16. The scale of a block of rows stands in each of them.
inline constexpr std::int64_t kMostFp8Group = 256;
// static: what a stronger instruction set compiles of them stays its own.
static constexpr std::int64_t e4m3_panel_bytes(std::int64_t inputs) { return (inputs + 3) / 4 * 64; }
static constexpr std::int64_t e4m3_place(std::int64_t k, std::int64_t row) { return k / 4 * 64 + row / 4 * 16 + k % 4 / 2 * 8 + row % 4 * 2 + k % 2; }

struct Fp8Kernels {
  // Each fills lanes [lane, lane + rows) of one panel, padding past K included, and touches no byte of other lanes.
  // pack: codes as they are; returns -1, or row * K + k of the first NaN code (the panel is then unspecified).
  std::int64_t (*pack)(const StoredCodes& source, int lane, std::uint8_t* panel);
  // code = e4m3(fl32(w / scale)), saturating at 448; scale 0: code 0. scales: f32 [groups][16] of this panel, as the product reads them, finite and >= 0.
  // Returns -1, or row * K + k of the first NaN or infinity (the panel is then unspecified).
  std::int64_t (*quantize)(const SourceRows& source, int lane, std::int64_t group, const float* scales, std::uint8_t* panel);
  // out [rows][groups]: the largest magnitude of every group (0: of the row). Returns as quantize.
  std::int64_t (*absmax)(const SourceRows& source, std::int64_t group, float* out);

  // Activations: code = e4m3(fl32(x * inverse)), saturating at `bound` (448 or 240), NaN stays NaN; as codes, or as the numbers they mean in BF16 (exact).
  void (*encode)(const float* x, std::int64_t n, float inverse, float bound, std::uint8_t* codes);
  void (*encode_bf16)(const float* x, std::int64_t n, float inverse, float bound, std::uint16_t* y);

  // y as gemm_u8 of LinearKernels has it: per group (a channel is one) sum = 0, sum = fma(value, x, sum) for k ascending; acc = 0, acc = fma(sum, scale_g, acc) for g ascending.
  // An ISA may carry sums in units of 2^8: the same bits unless one underflows. |error| <= 4 * K * 2^-24 * sum|w*x| + K * 2^-140 * max scale.
  void (*gemm_e4m3)(const Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  // x BF16: with BF16 dot instructions pairs (k, k + 1) are summed at once and subnormal x and sums are flushed (no value of a code is subnormal).
  // |error| <= 8 * K * 2^-24 * sum|w*x| + K * 2^-117 * max scale.
  void (*gemm_e4m3_bf16)(const Weight& w, const std::uint16_t* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
};

}  // namespace inflight::kernels
