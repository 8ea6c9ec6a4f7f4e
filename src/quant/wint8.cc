// wint8: symmetric int8 with one FP32 scale per output channel. Rule: kernels.h, quantize_u8. Bytes: docs/formats/wint8.md.
#include <cmath>
#include <cstring>

#include "quant/format.h"
#include "quant/integer_formats.h"
#include "quant/matrix.h"

namespace inflight::quant {
namespace {

std::int64_t padded_inputs(std::int64_t inputs) { return (inputs + 3) / 4 * 4; }

PackedBytes bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t) {
  const std::int64_t rows = (outputs + kPanelRows - 1) / kPanelRows * kPanelRows;
  return {rows * padded_inputs(inputs), rows * 4};
}

std::uint8_t* panel_of(const Matrix& m, std::int64_t row) {
  return reinterpret_cast<std::uint8_t*>(m.codes) + row / kPanelRows * kPanelRows * padded_inputs(m.inputs);
}

float* scales_of(const Matrix& m, std::int64_t row) { return reinterpret_cast<float*>(m.scales) + row / kPanelRows * kPanelRows; }

std::int64_t store_part(const kernels::Kernels& k, const kernels::SourceRows& source, const float* absmax, std::int64_t row, Matrix& m) {
  return k.load->quantize_u8(source, static_cast<int>(row % kPanelRows), absmax, panel_of(m, row), scales_of(m, row));
}

std::int64_t store(const kernels::Kernels& k, const kernels::SourceRows& source, std::int64_t row, Matrix& m) { return store_part(k, source, nullptr, row, m); }

std::uint8_t& code_at(std::uint8_t* panel, std::int64_t lane, std::int64_t k) { return panel[(k / 4 * kPanelRows + lane) * 4 + k % 4]; }

void dequantize(const Matrix& m, std::int64_t row, float* out) {
  std::uint8_t* panel = panel_of(m, row);
  const std::int64_t lane = row % kPanelRows;
  const float scale = scales_of(m, row)[lane];
  for (std::int64_t k = 0; k < m.inputs; ++k) out[k] = static_cast<float>(code_at(panel, lane, k) - 128) * scale;
}

std::vector<StoredTensor> stored(std::int64_t rows, std::int64_t inputs, std::int64_t, bool) {
  return {{"weight", DType::kI8, {rows, inputs}, inputs}, {"weight_scale", DType::kF32, {rows, 1}, 4}};
}

void export_row(const Matrix& m, std::int64_t row, std::size_t tensor, void* out) {
  const std::int64_t lane = row % kPanelRows;
  if (tensor == 1) {
    std::memcpy(out, scales_of(m, row) + lane, 4);
    return;
  }
  std::uint8_t* panel = panel_of(m, row);
  auto* codes = static_cast<std::int8_t*>(out);
  for (std::int64_t k = 0; k < m.inputs; ++k) codes[k] = static_cast<std::int8_t>(code_at(panel, lane, k) - 128);
}

Result<void> import_row(Matrix& m, std::int64_t row, std::size_t tensor, DType, const void* in) {
  const std::int64_t lane = row % kPanelRows;
  if (tensor == 1) return import_scale(in, DType::kF32, scales_of(m, row) + lane);
  std::uint8_t* panel = panel_of(m, row);
  const auto* codes = static_cast<const std::int8_t*>(in);
  for (std::int64_t k = 0; k < padded_inputs(m.inputs); ++k) {
    const int code = k < m.inputs ? codes[k] : 0;
    if (code == -128) return fail(Code::kCorrupt, "row {}, column {}: code -128; wint8 codes are -127..127", row, k);
    code_at(panel, lane, k) = static_cast<std::uint8_t>(code + 128);
  }
  return {};
}

bool import_codes(const Kernels& kernels, Matrix& m, std::int64_t row, int rows, const void* in, std::int64_t stride) {
  return kernels.load->unpack_u8({.data = in, .stride = stride, .rows = rows, .inputs = m.inputs}, static_cast<int>(row % kPanelRows), panel_of(m, row));
}

}  // namespace

const Format& wint8_format() {
  static constexpr Format kFormat{.name = "wint8", .summary = "int8 weights, one FP32 scale per output channel (8.0 bits a weight)", .group = 0, .codes = Codes::kU8,
                                  .bytes = bytes, .store = store, .store_part = store_part, .dequantize = dequantize, .stored = stored, .export_row = export_row, .import_row = import_row, .import_codes = import_codes};
  return kFormat;
}

}  // namespace inflight::quant
