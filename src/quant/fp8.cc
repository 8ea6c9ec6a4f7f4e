// tensor_wise_fp8 and block_wise_fp8: E4M3 codes with FP32 scales of whole checkpoint matrices or of 128 x 128 blocks.
// Rule: kernels/fp8.h. Bytes: docs/formats/tensor_wise_fp8.md, block_wise_fp8.md.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/fp8.h"
#include "quant/fp8_formats.h"
#include "quant/integer_formats.h"
#include "quant/matrix.h"
#include "quant/stored_form.h"

namespace inflight::quant {
namespace {

// A format says group 0, since its scales are of its own form: FP32 whatever their size.
std::int64_t group_of(const Matrix& m) { return m.format->shared->inputs; }
std::int64_t groups_of(std::int64_t inputs, std::int64_t group) { return group == 0 ? 1 : (inputs + group - 1) / group; }
std::int64_t groups_of(const Matrix& m) { return groups_of(m.inputs, group_of(m)); }

template <std::int64_t kGroup>
PackedBytes bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t) {
  const std::int64_t panels = (outputs + kPanelRows - 1) / kPanelRows;
  return {panels * kernels::e4m3_panel_bytes(inputs), panels * kPanelRows * groups_of(inputs, kGroup) * 4};
}

std::uint8_t* panel_of(const Matrix& m, std::int64_t row) { return reinterpret_cast<std::uint8_t*>(m.codes) + row / kPanelRows * kernels::e4m3_panel_bytes(m.inputs); }
// [groups][16] of the row's panel.
float* scales_of(const Matrix& m, std::int64_t row) { return reinterpret_cast<float*>(m.scales) + row / kPanelRows * kPanelRows * groups_of(m); }
int lane_of(std::int64_t row) { return static_cast<int>(row % kPanelRows); }

std::int64_t store(const Kernels& kernels, const SourceRows& source, std::int64_t row, Matrix& m) {
  return kernels.fp8->quantize(source, lane_of(row), group_of(m), scales_of(m, row), panel_of(m, row));
}

void dequantize(const Matrix& m, std::int64_t row, float* out) {
  const std::int64_t width = group_of(m) == 0 ? m.inputs : group_of(m);
  const std::uint8_t* panel = panel_of(m, row);
  const float* scales = scales_of(m, row) + lane_of(row);
  for (std::int64_t k = 0; k < m.inputs; ++k) out[k] = e4m3_to_float(panel[kernels::e4m3_place(k, lane_of(row))]) * scales[k / width * kPanelRows];
}

template <std::int64_t kGroup>
std::vector<StoredTensor> stored(std::int64_t rows, std::int64_t inputs, std::int64_t, bool) {
  const std::int64_t groups = groups_of(inputs, kGroup);
  return {{"weight", DType::kF8E4M3, {rows, inputs}, inputs}, {"weight_scale", DType::kF32, {rows, groups}, groups * 4}};
}

void export_row(const Matrix& m, std::int64_t row, std::size_t tensor, void* out) {
  if (tensor == 1) {
    for (std::int64_t g = 0; g < groups_of(m); ++g) std::memcpy(static_cast<char*>(out) + g * 4, scales_of(m, row) + g * kPanelRows + lane_of(row), 4);
    return;
  }
  const std::uint8_t* panel = panel_of(m, row);
  for (std::int64_t k = 0; k < m.inputs; ++k) static_cast<std::uint8_t*>(out)[k] = panel[kernels::e4m3_place(k, lane_of(row))];
}

Result<void> import_row(Matrix& m, std::int64_t row, std::size_t tensor, DType, const void* in) {
  if (tensor == 1) {
    for (std::int64_t g = 0; g < groups_of(m); ++g) TRY(import_scale(static_cast<const char*>(in) + g * 4, DType::kF32, scales_of(m, row) + g * kPanelRows + lane_of(row)));
    return {};
  }
  const auto* codes = static_cast<const std::uint8_t*>(in);
  std::uint8_t* panel = panel_of(m, row);
  for (std::int64_t k = 0; k < m.inputs; ++k) {
    if (e4m3_is_nan(codes[k])) return fail(Code::kCorrupt, "row {}, column {}: code 0x{:02x}, which is no number; FP8 weights are finite", row, k, codes[k]);
    panel[kernels::e4m3_place(k, lane_of(row))] = codes[k];
  }
  for (std::int64_t k = m.inputs; k < (m.inputs + 3) / 4 * 4; ++k) panel[kernels::e4m3_place(k, lane_of(row))] = 0;
  return {};
}

bool import_codes(const Kernels& kernels, Matrix& m, std::int64_t row, int rows, const void* in, std::int64_t stride) {
  return kernels.fp8->pack({.data = in, .stride = stride, .rows = rows, .inputs = m.inputs}, lane_of(row), panel_of(m, row)) < 0;
}

void import_parts(const Kernels& kernels, const RowParts& parts, std::int64_t row, Matrix& m) {
  kernels.fp8->pack({.data = parts.codes, .stride = parts.inputs, .rows = parts.rows, .inputs = m.inputs}, lane_of(row), panel_of(m, row));
  const std::int64_t groups = groups_of(m);
  for (int r = 0; r < parts.rows; ++r)
    for (std::int64_t g = 0; g < groups; ++g) scales_of(m, row)[g * kPanelRows + lane_of(row) + r] = parts.scales[r * groups + g];
}

template <std::int64_t kGroup>
std::int64_t absmax(const Kernels& kernels, const SourceRows& source, float* out) {
  return kernels.fp8->absmax(source, kGroup, out);
}

template <bool kGaudi>
void set_scales(Matrix& m, std::int64_t row_begin, std::int64_t row_end, std::span<const float> absmax) {
  set_fp8_scales(m, row_begin, row_end, absmax, kGaudi ? kGaudiE4m3Max : kE4m3Max);
}

template <std::int64_t kBlock, bool kGaudi>
constexpr SharedScales kShared{.rows = kBlock, .inputs = kBlock, .absmax = absmax<kBlock>, .set = set_scales<kGaudi>};

template <std::int64_t kBlock, bool kGaudi>
constexpr Format format_of(std::string_view name, std::string_view summary) {
  return {.name = name, .summary = summary, .codes = Codes::kE4M3, .bytes = bytes<kBlock>, .store = store, .dequantize = dequantize, .stored = stored<kBlock>, .export_row = export_row,
          .import_row = import_row, .import_codes = import_codes, .shared = &kShared<kBlock, kGaudi>, .import_parts = import_parts};
}

}  // namespace

const Format& tensor_wise_fp8_format() {
  static constexpr Format kFormat = format_of<0, false>("tensor_wise_fp8", "FP8 (E4M3) weights, one FP32 scale per matrix of the checkpoint (8.0 bits a weight)");
  return kFormat;
}
const Format& tensor_wise_fp8_gaudi_format() {
  static constexpr Format kFormat = format_of<0, true>("tensor_wise_fp8-gaudi", "tensor_wise_fp8 with codes up to 240");
  return kFormat;
}
const Format& block_wise_fp8_format() {
  static constexpr Format kFormat = format_of<kFp8Block, false>("block_wise_fp8", "FP8 (E4M3) weights, one FP32 scale per block of 128 x 128 (8.25 bits a weight in memory)");
  return kFormat;
}
const Format& block_wise_fp8_gaudi_format() {
  static constexpr Format kFormat = format_of<kFp8Block, true>("block_wise_fp8-gaudi", "block_wise_fp8 with codes up to 240");
  return kFormat;
}

kernels::Weight fp8_view(const Matrix& m) { return {.codes = m.codes, .scales = m.scales, .outputs = m.outputs, .inputs = m.inputs, .group = group_of(m)}; }

void set_fp8_scales(Matrix& m, std::int64_t row_begin, std::int64_t row_end, std::span<const float> absmax, float bound) {
  for (std::int64_t row = row_begin; row < row_end; ++row)
    for (std::size_t g = 0; g < absmax.size(); ++g) scales_of(m, row)[static_cast<std::int64_t>(g) * kPanelRows + lane_of(row)] = absmax[g] / bound;
}

std::int64_t limit_fp8_codes(Matrix& m, float bound) {
  const std::int64_t width = group_of(m) == 0 ? m.inputs : group_of(m);
  std::int64_t changed = 0;
  for (std::int64_t g = 0; g < groups_of(m); ++g) {
    const std::int64_t k_end = std::min((g + 1) * width, m.inputs);
    const auto scale_at = [&](std::int64_t row) -> float& { return scales_of(m, row)[g * kPanelRows + lane_of(row)]; };
    for (std::int64_t begin = 0, end; begin < m.outputs; begin = end) {
      end = begin + 1;
      while (end < m.outputs && scale_at(end) == scale_at(begin)) ++end;  // rows of one matrix of the checkpoint, or of equal ones beside it
      float most = 0;
      for (std::int64_t row = begin; row < end; ++row)
        for (std::int64_t k = g * width; k < k_end; ++k) most = std::max(most, std::fabs(e4m3_to_float(panel_of(m, row)[kernels::e4m3_place(k, lane_of(row))])));
      if (most <= bound) continue;
      const float old_scale = scale_at(begin), new_scale = old_scale * most / bound;
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t k = g * width; k < k_end; ++k) {
          std::uint8_t& code = panel_of(m, row)[kernels::e4m3_place(k, lane_of(row))];
          const std::uint8_t next = float_to_e4m3(e4m3_to_float(code) * old_scale / new_scale, bound);
          changed += next != code;
          code = next;
        }
        scale_at(row) = new_scale;
      }
    }
  }
  return changed;
}

}  // namespace inflight::quant
