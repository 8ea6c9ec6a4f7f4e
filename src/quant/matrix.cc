#include "quant/matrix.h"

#include <cmath>
#include <cstring>

#include "base/bf16.h"

namespace inflight::quant {

std::int64_t Matrix::bytes() const {
  const PackedBytes packed = format->bytes(outputs, inputs, group);
  return packed.codes + (group != 0 && !scales_fp16 ? static_cast<std::int64_t>(wide_scales.bytes()) : packed.scales);
}

Result<void> begin(Matrix& matrix) {
  if (matrix.group != 0 && matrix.wide_scales.bytes() == 0)
    matrix.wide_scales = TRY(Buffer::map(static_cast<std::size_t>(matrix.panels() * matrix.groups() * kernels::kPanelRows) * sizeof(float)));
  if (matrix.outputs % kernels::kPanelRows != 0 && matrix.format->quantized) {
    // Rows past the last one: code of zero (8 in both nibbles, or 128), scale 0 (the arena is zeroed). Real rows overwrite theirs.
    const PackedBytes packed = matrix.format->bytes(matrix.outputs, matrix.inputs, matrix.group);
    const std::int64_t panel = packed.codes / matrix.panels();
    const bool nibbles = packed.codes < matrix.panels() * kernels::kPanelRows * ((matrix.inputs + 3) / 4 * 4);
    std::memset(matrix.codes + (matrix.panels() - 1) * panel, nibbles ? 0x88 : 0x80, static_cast<std::size_t>(panel));
  }
  return {};
}

void finish(Matrix& matrix) {
  if (matrix.group == 0) return;
  const auto count = matrix.panels() * matrix.groups() * kernels::kPanelRows;
  const auto* wide = reinterpret_cast<const float*>(matrix.wide_scales.data());
  for (std::int64_t i = 0; i < count; ++i)
    if (wide[i] != 0 && (wide[i] < 0x1p-14f || wide[i] > 65504.0f)) return;  // FP16 would lose it: FP32 stays for the whole matrix
  auto* narrow = reinterpret_cast<std::uint16_t*>(matrix.scales);
  for (std::int64_t i = 0; i < count; ++i) narrow[i] = float_to_fp16(wide[i]);
  matrix.scales_fp16 = true;
  matrix.wide_scales = Buffer();
}

}  // namespace inflight::quant
