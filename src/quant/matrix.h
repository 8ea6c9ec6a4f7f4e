// One packed weight matrix in memory, and the FP32 scales that wait for its completion while it loads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "quant/format.h"
#include "tensor/buffer.h"

namespace inflight::quant {

// How activations are rounded to E4M3 before they meet FP8 weights: x8 = e4m3(fl32(x * fl32(1 / scale))), saturating at `bound`; y = (sum of x8 * weight) * scale.
struct Fp8Input {
  enum class Scale : std::uint8_t { kNone, kStatic, kToken };
  Scale kind = Scale::kNone;  // kNone: activations stay as they are; kStatic: `scale` for all; kToken: each token's absmax / bound
  float scale = 0;
  float bound = 448;          // 448 (OCP) or 240 (Gaudi)
  bool operator==(const Fp8Input&) const = default;
};

// codes and scales point into the store's arena (layouts: kernels.h); padding rows and inputs hold the code of zero.
struct Matrix {
  const Format* format = nullptr;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::int64_t lead = 0;         // of `inputs`, the first ones that belong to other ranks: zero weights, there so that groups begin where the whole matrix's do; activations have as many zeros in front
  std::int64_t group = 0;
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;   // per channel f32 [panels][16]; per group fp16 [panels][groups][16], or FP32 in wide_scales
  Buffer wide_scales;            // group scales in FP32 [panels][groups][16]: staging while loading, kept where FP16 cannot hold them
  float* offsets = nullptr;      // formats with offsets: f32 [panels][groups][16], added to every weight of a row's group
  std::shared_ptr<const std::vector<std::int32_t>> order;  // unless nullptr: column k holds the weights of input (*order)[k]; set before the first import
  bool gathers_inputs = false;   // `order` names inputs of all ranks together, whose activations are gathered before the product
  Fp8Input fp8_input;            // FP8 formats: of the activations
  bool scales_fp16 = false;      // group formats: true once finish() rounded the scales into `scales`

  std::int64_t panels() const { return (outputs + kernels::kPanelRows - 1) / kernels::kPanelRows; }
  std::int64_t groups() const { return group == 0 ? 1 : (inputs + group - 1) / group; }
  kernels::Weight view() const {
    return {.codes = codes, .scales = group != 0 && !scales_fp16 ? wide_scales.data() : scales, .scales_fp16 = scales_fp16,
            .outputs = outputs, .inputs = inputs, .group = group};
  }
  // Stored bytes that a product reads: codes, scales and offsets with padding.
  std::int64_t bytes() const;
};

// out [rows][groups of `group` inputs; 0: all]: the largest magnitudes. Returns as Format::store.
std::int64_t absmax(const Kernels& kernels, const SourceRows& source, std::int64_t group, float* out);

// Prepares the scale staging of group formats. Called once, before the first store or import. half_scales: every scale will be imported and is stored
// in FP16; formats that can then need no staging, and the matrix keeps them as they are.
Result<void> begin(Matrix& matrix, bool half_scales = false);
// Whether FP16 holds the group scales that wait in FP32: none is non-zero and below 2^-14 (FP16's smallest normal) or above 65504; formats with exact_scales: it
// would round none.
bool fit_fp16(const Matrix& matrix);
// Completes a matrix whose every row arrived: group scales are rounded to FP16, or all kept in FP32 where these do not fit. Then the staging is freed.
// wide: they stay FP32 whatever they are.
void finish(Matrix& matrix, bool wide = false);

}  // namespace inflight::quant
