#include "quant/matrix.h"

#include "base/bf16.h"
#include "kernels/fp8.h"

namespace inflight::quant {

std::int64_t Matrix::bytes() const {
  const PackedBytes packed = format->bytes(outputs, inputs, group);
  return packed.codes + packed.offsets + (group != 0 && !scales_fp16 ? static_cast<std::int64_t>(wide_scales.bytes()) : packed.scales);
}

std::int64_t absmax(const Kernels& kernels, const SourceRows& source, std::int64_t group, float* out) { return kernels.fp8->absmax(source, group, out); }

Result<void> begin(Matrix& matrix, bool half_scales) {
  if (matrix.group == 0) return {};
  matrix.scales_fp16 = half_scales && matrix.format->half_scales;
  if (matrix.scales_fp16) return {};
  matrix.wide_scales = TRY(Buffer::heap(static_cast<std::size_t>(matrix.panels() * matrix.groups() * kernels::kPanelRows) * sizeof(float)));
  return {};
}

bool fit_fp16(const Matrix& matrix) {
  const std::int64_t count = matrix.panels() * matrix.groups() * kernels::kPanelRows;
  const auto* wide = reinterpret_cast<const float*>(matrix.wide_scales.data());
  for (std::int64_t i = 0; i < count; ++i)
    if (matrix.format->exact_scales ? fp16_to_float(float_to_fp16(wide[i])) != wide[i] : wide[i] != 0 && (wide[i] < 0x1p-14f || wide[i] > 65504.0f)) return false;
  return true;
}

void finish(Matrix& matrix, bool wide_scales) {
  if (wide_scales || matrix.group == 0 || matrix.scales_fp16 || !fit_fp16(matrix)) return;  // FP16 would lose some: FP32 stays for the whole matrix
  const std::int64_t count = matrix.panels() * matrix.groups() * kernels::kPanelRows;
  const auto* wide = reinterpret_cast<const float*>(matrix.wide_scales.data());
  auto* narrow = reinterpret_cast<std::uint16_t*>(matrix.scales);
  for (std::int64_t i = 0; i < count; ++i) narrow[i] = float_to_fp16(wide[i]);
  matrix.scales_fp16 = true;
  matrix.wide_scales = Buffer();
}

}  // namespace inflight::quant
