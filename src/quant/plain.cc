// Formats that keep the checkpoint's numbers: bf16, and f32 for checkpoints in F32 or F16 (every F16 is exact in FP32).
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "quant/format.h"
#include "quant/matrix.h"

namespace inflight::quant {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// ---- bf16: [panels][ceil(K/2)][16][2]

PackedBytes bf16_bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t) { return {round_up(outputs, kPanelRows) * round_up(inputs, 2) * 2, 0}; }

std::uint16_t* bf16_panel(const Matrix& m, std::int64_t row) {
  return reinterpret_cast<std::uint16_t*>(m.codes) + row / kPanelRows * kPanelRows * round_up(m.inputs, 2);
}

std::int64_t bf16_store(const kernels::Kernels& k, const kernels::SourceRows& source, std::int64_t row, Matrix& m) {
  return k.load->pack_bf16(source, static_cast<int>(row % kPanelRows), bf16_panel(m, row));
}

std::uint16_t bf16_at(const std::uint16_t* panel, std::int64_t lane, std::int64_t k) { return panel[(k / 2 * kPanelRows + lane) * 2 + k % 2]; }

void bf16_dequantize(const Matrix& m, std::int64_t row, float* out) {
  const std::uint16_t* panel = bf16_panel(m, row);
  for (std::int64_t k = 0; k < m.inputs; ++k) out[k] = bf16_to_float(bf16_at(panel, row % kPanelRows, k));
}

std::vector<StoredTensor> bf16_stored(std::int64_t rows, std::int64_t inputs, std::int64_t, bool) {
  return {{"weight", DType::kBF16, {rows, inputs}, inputs * 2}};
}

void bf16_export(const Matrix& m, std::int64_t row, std::size_t, void* bytes) {
  const std::uint16_t* panel = bf16_panel(m, row);
  auto* out = static_cast<std::uint16_t*>(bytes);
  for (std::int64_t k = 0; k < m.inputs; ++k) out[k] = bf16_at(panel, row % kPanelRows, k);
}

Result<void> bf16_import(Matrix& m, std::int64_t row, std::size_t, DType, const void* bytes) {
  std::uint16_t* panel = bf16_panel(m, row);
  const auto* in = static_cast<const std::uint16_t*>(bytes);
  for (std::int64_t k = 0; k < m.inputs; ++k) panel[(k / 2 * kPanelRows + row % kPanelRows) * 2 + k % 2] = in[k];
  return {};
}

// ---- f32: [panels][K][16]

PackedBytes f32_bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t) { return {round_up(outputs, kPanelRows) * inputs * 4, 0}; }

float* f32_panel(const Matrix& m, std::int64_t row) { return reinterpret_cast<float*>(m.codes) + row / kPanelRows * kPanelRows * m.inputs; }

std::int64_t f32_store(const kernels::Kernels& k, const kernels::SourceRows& source, std::int64_t row, Matrix& m) {
  return k.load->pack_f32(source, static_cast<int>(row % kPanelRows), f32_panel(m, row));
}

void f32_dequantize(const Matrix& m, std::int64_t row, float* out) {
  const float* panel = f32_panel(m, row);
  for (std::int64_t k = 0; k < m.inputs; ++k) out[k] = panel[k * kPanelRows + row % kPanelRows];
}

std::vector<StoredTensor> f32_stored(std::int64_t rows, std::int64_t inputs, std::int64_t, bool) {
  return {{"weight", DType::kF32, {rows, inputs}, inputs * 4}};
}

void f32_export(const Matrix& m, std::int64_t row, std::size_t, void* bytes) { f32_dequantize(m, row, static_cast<float*>(bytes)); }

Result<void> f32_import(Matrix& m, std::int64_t row, std::size_t, DType, const void* bytes) {
  float* panel = f32_panel(m, row);
  const auto* in = static_cast<const float*>(bytes);
  for (std::int64_t k = 0; k < m.inputs; ++k) panel[k * kPanelRows + row % kPanelRows] = in[k];
  return {};
}

}  // namespace

const Format& bf16_format() {
  static constexpr Format kFormat{.name = "bf16", .summary = "weights as stored: BF16, or FP32 where the checkpoint has F32 or F16", .group = 0, .codes = Codes::kBf16,
                                  .bytes = bf16_bytes, .store = bf16_store, .dequantize = bf16_dequantize, .stored = bf16_stored,
                                  .export_row = bf16_export, .import_row = bf16_import};
  return kFormat;
}

const Format& f32_format() {
  static constexpr Format kFormat{.name = "f32", .summary = "FP32", .group = 0, .codes = Codes::kF32,
                                  .bytes = f32_bytes, .store = f32_store, .dequantize = f32_dequantize, .stored = f32_stored,
                                  .export_row = f32_export, .import_row = f32_import};
  return kFormat;
}

}  // namespace inflight::quant
