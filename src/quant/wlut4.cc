// wlut4: 4-bit codes into a table of 16 values, a step byte per 16 inputs, a power of two per output row.
// Rule: kernels/lut4.h. Bytes: docs/formats/wlut4.md.
#include <bit>

#include "kernels/lut4.h"
#include "quant/integer_formats.h"
#include "quant/matrix.h"

namespace inflight::quant {
namespace {

using kernels::kLut4Group;
using kernels::kLut4Values;
using kernels::kLut4Zero;

constexpr std::uint8_t kLargestExponent = 237;  // 2^110, what the rule can give; 3968 * 64 times it is still finite

std::int64_t groups_of(std::int64_t inputs) { return (inputs + kLut4Group - 1) / kLut4Group; }

// Scales: exponent bytes [panels][16], then step bytes [panels][groups][16].
PackedBytes bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t) {
  const std::int64_t rows = (outputs + kPanelRows - 1) / kPanelRows * kPanelRows;
  return {rows * groups_of(inputs) * kLut4Group / 2, rows * (1 + groups_of(inputs))};
}

std::uint8_t* panel_of(const Matrix& m, std::int64_t row) {
  return reinterpret_cast<std::uint8_t*>(m.codes) + row / kPanelRows * kPanelRows * groups_of(m.inputs) * kLut4Group / 2;
}

std::uint8_t* exponents_of(const Matrix& m, std::int64_t row) { return reinterpret_cast<std::uint8_t*>(m.scales) + row / kPanelRows * kPanelRows; }

std::uint8_t* steps_of(const Matrix& m, std::int64_t row) {
  return reinterpret_cast<std::uint8_t*>(m.scales) + m.panels() * kPanelRows + row / kPanelRows * kPanelRows * groups_of(m.inputs);
}

std::int64_t store(const kernels::Kernels& k, const kernels::SourceRows& source, std::int64_t row, Matrix& m) {
  return k.lut4->quantize(source, static_cast<int>(row % kPanelRows), nullptr, panel_of(m, row), steps_of(m, row), exponents_of(m, row));
}

// Byte j of block b holds k = 8b + j (low nibble) and 8b + 4 + j (high nibble).
std::uint8_t& byte_at(std::uint8_t* panel, std::int64_t lane, std::int64_t k) { return panel[(k / 8 * kPanelRows + lane) * 4 + k % 4]; }

int nibble_at(std::uint8_t* panel, std::int64_t lane, std::int64_t k) { return (byte_at(panel, lane, k) >> (k % 8 < 4 ? 0 : 4)) & 15; }

void set_nibble(std::uint8_t* panel, std::int64_t lane, std::int64_t k, int nibble) {
  std::uint8_t& byte = byte_at(panel, lane, k);
  byte = static_cast<std::uint8_t>(k % 8 < 4 ? (byte & 0xf0) | nibble : (byte & 0x0f) | nibble << 4);
}

std::int64_t store_part(const kernels::Kernels& k, const kernels::SourceRows& source, const float* absmax, std::int64_t row, Matrix& m) {
  const std::int64_t bad = k.lut4->quantize(source, static_cast<int>(row % kPanelRows), absmax, panel_of(m, row), steps_of(m, row), exponents_of(m, row));
  for (std::int64_t lane = row % kPanelRows; lane < row % kPanelRows + source.rows; ++lane) {
    for (std::int64_t i = 0; i < m.lead; ++i) set_nibble(panel_of(m, row), lane, i, kLut4Zero);
    for (std::int64_t i = m.inputs; i < source.inputs; ++i) set_nibble(panel_of(m, row), lane, i, kLut4Zero);
  }
  return bad;
}

float step_of(std::uint8_t s) { return static_cast<float>((16 + (s & 15)) << (s >> 4 & 7)) * (s & 128 ? -1.0f : 1.0f); }

void dequantize(const Matrix& m, std::int64_t row, float* out) {
  const std::int64_t lane = row % kPanelRows;
  const float scale = std::bit_cast<float>(std::uint32_t{exponents_of(m, row)[lane]} << 23);
  for (std::int64_t k = 0; k < m.inputs; ++k)
    out[k] = static_cast<float>(kLut4Values[nibble_at(panel_of(m, row), lane, k)]) * step_of(steps_of(m, row)[k / kLut4Group * kPanelRows + lane]) * scale;
}

std::int64_t padded_inputs(std::int64_t inputs) { return (inputs + 7) / 8 * 8; }

enum Stored : std::size_t { kPacked, kStep, kExponent };

std::vector<StoredTensor> stored(std::int64_t rows, std::int64_t inputs, std::int64_t, bool) {
  const std::int64_t words = padded_inputs(inputs) / 8;
  return {{"weight_packed", DType::kI32, {rows, words}, words * 4},
          {"weight_step", DType::kU8, {rows, groups_of(inputs)}, groups_of(inputs)},
          {"weight_exponent", DType::kU8, {rows, 1}, 1},
          {"weight_shape", DType::kI64, {2}, 0}};
}

void export_row(const Matrix& m, std::int64_t row, std::size_t tensor, void* out) {
  const std::int64_t lane = row % kPanelRows;
  auto* to = static_cast<std::uint8_t*>(out);
  if (tensor == kExponent) *to = exponents_of(m, row)[lane];
  if (tensor == kStep)
    for (std::int64_t g = 0; g < groups_of(m.inputs); ++g) to[g] = steps_of(m, row)[g * kPanelRows + lane];
  if (tensor == kPacked)
    for (std::int64_t k = 0; k < padded_inputs(m.inputs); k += 2)
      to[k / 2] = static_cast<std::uint8_t>(nibble_at(panel_of(m, row), lane, k) | nibble_at(panel_of(m, row), lane, k + 1) << 4);
}

Result<void> import_row(Matrix& m, std::int64_t row, std::size_t tensor, DType, const void* in) {
  const std::int64_t lane = row % kPanelRows;
  const auto* from = static_cast<const std::uint8_t*>(in);
  if (tensor == kExponent) {
    if (*from > kLargestExponent) return fail(Code::kCorrupt, "row {}: exponent byte {} is above {} (2^110), the largest that wlut4 has", row, *from, kLargestExponent);
    exponents_of(m, row)[lane] = *from;
    return {};
  }
  if (tensor == kStep) {
    for (std::int64_t g = 0; g < groups_of(m.inputs); ++g) steps_of(m, row)[g * kPanelRows + lane] = from[g];
    return {};
  }
  for (std::int64_t k = 0; k < groups_of(m.inputs) * kLut4Group; ++k) {
    const int nibble = k < padded_inputs(m.inputs) ? (from[k / 2] >> (k % 2 * 4)) & 15 : kLut4Zero;
    if (k >= m.inputs && nibble != kLut4Zero) return fail(Code::kCorrupt, "row {}: padding past column {} is not the code of zero, {}", row, m.inputs, kLut4Zero);
    set_nibble(panel_of(m, row), lane, k, nibble);
  }
  return {};
}

bool import_codes(const Kernels& kernels, Matrix& m, std::int64_t row, int rows, const void* in, std::int64_t stride) {
  constexpr std::uint32_t kZeros = 0x11111111u * kLut4Zero;
  const std::int64_t words = padded_inputs(m.inputs) / 8, lane = row % kPanelRows;
  for (int r = 0; r < rows && m.inputs % 8 != 0; ++r) {  // padding must be the code of zero
    std::uint32_t last;
    std::memcpy(&last, static_cast<const char*>(in) + r * stride + (words - 1) * 4, 4);
    if (last >> (m.inputs % 8 * 4) != kZeros >> (m.inputs % 8 * 4)) return false;
  }
  kernels.load->unpack_u4({.data = in, .stride = stride, .rows = rows, .inputs = m.inputs}, static_cast<int>(lane), panel_of(m, row));  // every code is one of this format's
  for (std::int64_t word = words; word < groups_of(m.inputs) * kLut4Group / 8; ++word)
    std::memset(panel_of(m, row) + (word * kPanelRows + lane) * 4, kZeros & 0xff, static_cast<std::size_t>(rows) * 4);
  return true;
}

}  // namespace

const Format& wlut4_format() {
  static constexpr Format kFormat{.name = "wlut4", .summary = "4-bit codes of 16 uneven values, a searched step per 16 inputs (4.5 bits a weight; the recommended 4-bit format)", .group = 0,
                                  .codes = Codes::kLut4, .bytes = bytes, .store = store, .store_part = store_part, .whole_groups = kLut4Group, .dequantize = dequantize, .stored = stored, .export_row = export_row, .import_row = import_row, .import_codes = import_codes};
  return kFormat;
}

kernels::Lut4Weight lut4_view(const Matrix& m) {
  return {.codes = panel_of(m, 0), .steps = steps_of(m, 0), .row_exponents = exponents_of(m, 0), .outputs = m.outputs, .inputs = m.inputs};
}

}  // namespace inflight::quant
