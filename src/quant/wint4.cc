// wint4 (per output channel) and wint4-g32/-g64/-g128 (per group of consecutive inputs): symmetric int4, codes -7..7.
// Rule: kernels.h, quantize_u4. Bytes: docs/formats/wint4.md.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "quant/integer_formats.h"
#include "quant/matrix.h"

namespace inflight::quant {
namespace {

std::int64_t padded_inputs(std::int64_t inputs) { return (inputs + 7) / 8 * 8; }

PackedBytes bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t group) {
  const std::int64_t rows = (outputs + kPanelRows - 1) / kPanelRows * kPanelRows;
  return {rows * padded_inputs(inputs) / 2, group == 0 ? rows * 4 : rows * ((inputs + group - 1) / group) * 2};
}

std::uint8_t* panel_of(const Matrix& m, std::int64_t row) {
  return reinterpret_cast<std::uint8_t*>(m.codes) + row / kPanelRows * kPanelRows * padded_inputs(m.inputs) / 2;
}

// FP32 scales [groups][16] of the row's panel: per channel in place, per group in the staging.
float* float_scales(const Matrix& m, std::int64_t row) {
  std::byte* base = m.group == 0 ? m.scales : m.wide_scales.data();
  return reinterpret_cast<float*>(base) + row / kPanelRows * kPanelRows * m.groups();
}

// The same once they are FP16.
std::uint16_t* half_scales(const Matrix& m, std::int64_t row) { return reinterpret_cast<std::uint16_t*>(m.scales) + row / kPanelRows * kPanelRows * m.groups(); }

float scale_at(const Matrix& m, std::int64_t row, std::int64_t group) {
  const std::int64_t at = group * kPanelRows + row % kPanelRows;
  if (m.group == 0 || !m.scales_fp16) return float_scales(m, row)[at];
  return fp16_to_float(half_scales(m, row)[at]);
}

std::int64_t store_part(const kernels::Kernels& k, const kernels::SourceRows& source, const float* absmax, std::int64_t row, Matrix& m) {
  return k.load->quantize_u4(source, static_cast<int>(row % kPanelRows), m.group, absmax, panel_of(m, row), float_scales(m, row));
}

std::int64_t store(const kernels::Kernels& k, const kernels::SourceRows& source, std::int64_t row, Matrix& m) { return store_part(k, source, nullptr, row, m); }

// Byte j of block b holds k = 8b + j (low nibble) and 8b + 4 + j (high nibble).
std::uint8_t& byte_at(std::uint8_t* panel, std::int64_t lane, std::int64_t k) { return panel[(k / 8 * kPanelRows + lane) * 4 + k % 4]; }

int code_at(std::uint8_t* panel, std::int64_t lane, std::int64_t k) { return ((byte_at(panel, lane, k) >> (k % 8 < 4 ? 0 : 4)) & 15) - 8; }

void set_code(std::uint8_t* panel, std::int64_t lane, std::int64_t k, int code) {
  std::uint8_t& byte = byte_at(panel, lane, k);
  const int bits = code + 8;
  byte = static_cast<std::uint8_t>(k % 8 < 4 ? (byte & 0xf0) | bits : (byte & 0x0f) | bits << 4);
}

void dequantize(const Matrix& m, std::int64_t row, float* out) {
  std::uint8_t* panel = panel_of(m, row);
  float scale = 0;
  for (std::int64_t k = 0; k < m.inputs; ++k) {
    if (k == 0 || (m.group != 0 && k % m.group == 0)) scale = scale_at(m, row, m.group == 0 ? 0 : k / m.group);
    out[k] = static_cast<float>(code_at(panel, row % kPanelRows, k)) * scale;
  }
}

std::vector<StoredTensor> stored(std::int64_t rows, std::int64_t inputs, std::int64_t group, bool scales_fp32) {
  const std::int64_t words = padded_inputs(inputs) / 8;
  const std::int64_t groups = group == 0 ? 1 : (inputs + group - 1) / group;
  const bool half = group != 0 && !scales_fp32;
  return {{"weight_packed", DType::kI32, {rows, words}, words * 4},
          {"weight_scale", half ? DType::kF16 : DType::kF32, {rows, groups}, groups * (half ? 2 : 4)},
          {"weight_shape", DType::kI64, {2}, 0}};
}

void export_row(const Matrix& m, std::int64_t row, std::size_t tensor, void* out) {
  if (tensor == 1) {
    for (std::int64_t g = 0; g < m.groups(); ++g) {
      const float scale = scale_at(m, row, g);
      if (m.scales_fp16) static_cast<std::uint16_t*>(out)[g] = float_to_fp16(scale);
      else static_cast<float*>(out)[g] = scale;
    }
    return;
  }
  // Eight codes a 32-bit word, the first in the low bits, each + 8; padding holds the code of zero.
  std::uint8_t* panel = panel_of(m, row);
  auto* words = static_cast<std::uint8_t*>(out);
  for (std::int64_t k = 0; k < padded_inputs(m.inputs); k += 2)
    words[k / 2] = static_cast<std::uint8_t>((code_at(panel, row % kPanelRows, k) + 8) | (code_at(panel, row % kPanelRows, k + 1) + 8) << 4);
}

Result<void> import_row(Matrix& m, std::int64_t row, std::size_t tensor, DType dtype, const void* in) {
  const std::int64_t lane = row % kPanelRows;
  if (tensor == 1) {
    const std::size_t width = dtype == DType::kF16 ? 2 : 4;
    if (m.group != 0 && m.scales_fp16) {  // every scale is stored in FP16: to its place as it is
      std::uint16_t* out = half_scales(m, row) + lane;
      std::uint16_t most = 0;
      for (std::int64_t g = 0; g < m.groups(); ++g) {
        std::uint16_t half;
        std::memcpy(&half, static_cast<const char*>(in) + g * 2, 2);
        most = std::max(most, half);
        out[g * kPanelRows] = half;
      }
      if (most < 0x7c00) return {};  // finite and positive halves are below infinity as integers
    }
    for (std::int64_t g = 0; g < m.groups(); ++g) {
      float scale;
      TRY(import_scale(static_cast<const char*>(in) + static_cast<std::size_t>(g) * width, dtype, &scale));
      if (m.group == 0 || !m.scales_fp16) float_scales(m, row)[g * kPanelRows + lane] = scale;
    }
    return {};
  }
  std::uint8_t* panel = panel_of(m, row);
  const auto* words = static_cast<const std::uint8_t*>(in);
  for (std::int64_t k = 0; k < padded_inputs(m.inputs); ++k) {
    const int code = ((words[k / 2] >> (k % 2 * 4)) & 15) - 8;
    if (code == -8) return fail(Code::kCorrupt, "row {}, column {}: code -8; wint4 codes are -7..7", row, k);
    if (k >= m.inputs && code != 0) return fail(Code::kCorrupt, "row {}: padding past column {} is not zero", row, m.inputs);
    set_code(panel, lane, k, code);
  }
  return {};
}

bool import_codes(const Kernels& kernels, Matrix& m, std::int64_t row, int rows, const void* in, std::int64_t stride) {
  for (int r = 0; r < rows && m.inputs % 8 != 0; ++r) {  // padding must be the code of zero
    std::uint32_t last;
    std::memcpy(&last, static_cast<const char*>(in) + r * stride + m.inputs / 8 * 4, 4);
    if (last >> (m.inputs % 8 * 4) != 0x88888888u >> (m.inputs % 8 * 4)) return false;
  }
  return kernels.load->unpack_u4({.data = in, .stride = stride, .rows = rows, .inputs = m.inputs}, static_cast<int>(row % kPanelRows), panel_of(m, row));
}

constexpr Format format_of(std::string_view name, std::string_view summary, std::int64_t group) {
  return {.name = name, .summary = summary, .group = group, .codes = Codes::kU4, .bytes = bytes, .store = store, .store_part = store_part,
          .dequantize = dequantize, .stored = stored, .export_row = export_row, .import_row = import_row, .half_scales = true, .import_codes = import_codes};
}

}  // namespace

Result<void> import_scale(const void* bytes, DType dtype, float* scale) {
  if (dtype == DType::kF16) {
    std::uint16_t half;
    std::memcpy(&half, bytes, 2);
    *scale = fp16_to_float(half);
  } else {
    std::memcpy(scale, bytes, 4);
  }
  if (!std::isfinite(*scale) || *scale < 0) return fail(Code::kCorrupt, "scale {} is not a finite number >= 0", *scale);
  return {};
}

const Format& wint4_format() {
  static constexpr Format kFormat = format_of("wint4", "int4 weights, one FP32 scale per output channel (4.0 bits; poor on small models: prefer wint4-g128)", 0);
  return kFormat;
}
const Format& wint4_g128_format() {
  static constexpr Format kFormat = format_of("wint4-g128", "int4 weights, one FP16 scale per 128 inputs (4.1 bits a weight)", 128);
  return kFormat;
}
const Format& wint4_g64_format() {
  static constexpr Format kFormat = format_of("wint4-g64", "int4 weights, one FP16 scale per 64 inputs (4.25 bits a weight)", 64);
  return kFormat;
}
const Format& wint4_g32_format() {
  static constexpr Format kFormat = format_of("wint4-g32", "int4 weights, one FP16 scale per 32 inputs (4.5 bits a weight)", 32);
  return kFormat;
}

}  // namespace inflight::quant
