// int4, int8 and their groups and offsets: integer weights that another tool made, kept as they are. w = scale * (code - zero) + offset.
// Bytes: docs/formats/integer-forms.md.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/bf16.h"
#include "quant/affine.h"
#include "quant/fp8_formats.h"
#include "quant/matrix.h"
#include "quant/stored_form.h"

namespace inflight::quant {
namespace {

std::int64_t padded_rows(std::int64_t outputs) { return (outputs + kPanelRows - 1) / kPanelRows * kPanelRows; }
std::int64_t groups_of(std::int64_t inputs, std::int64_t group) { return group == 0 ? 1 : (inputs + group - 1) / group; }

// FP32 scales [groups][16] of the row's panel while it loads: per channel in place, per group in the staging.
float* float_scales(const Matrix& m, std::int64_t row) {
  std::byte* base = m.group == 0 ? m.scales : m.wide_scales.data();
  return reinterpret_cast<float*>(base) + row / kPanelRows * kPanelRows * m.groups();
}

float scale_at(const Matrix& m, std::int64_t row, std::int64_t group) {
  const std::int64_t at = group * kPanelRows + row % kPanelRows;
  if (m.group == 0 || !m.scales_fp16) return float_scales(m, row)[at];
  return fp16_to_float(reinterpret_cast<const std::uint16_t*>(m.scales)[row / kPanelRows * kPanelRows * m.groups() + at]);
}

float* offsets_of(const Matrix& m, std::int64_t row) { return m.offsets + row / kPanelRows * kPanelRows * m.groups() + row % kPanelRows; }

// Codes of kBits bits in panels (kernels.h): a lane's 32 bits hold kDepth of them.
template <int kBits>
struct Panel {
  static constexpr std::int64_t kDepth = 32 / kBits;
  static constexpr int kZero = 1 << (kBits - 1);

  static std::int64_t padded(std::int64_t inputs) { return (inputs + kDepth - 1) / kDepth * kDepth; }
  static std::uint8_t* of(const Matrix& m, std::int64_t row) { return reinterpret_cast<std::uint8_t*>(m.codes) + row / kPanelRows * kPanelRows * padded(m.inputs) * kBits / 8; }

  static int code(const std::uint8_t* panel, std::int64_t lane, std::int64_t k) {
    const std::uint8_t byte = panel[(k / kDepth * kPanelRows + lane) * 4 + k % 4];
    return kBits == 8 ? byte : k % 8 < 4 ? byte & 15 : byte >> 4;
  }

  // kDepth codes of a row, one a byte, from input k on, which is a multiple of kDepth.
  static void set(std::uint8_t* panel, std::int64_t lane, std::int64_t k, const std::uint8_t* codes) {
    std::uint32_t word[kDepth / 4];
    std::memcpy(word, codes, sizeof word);
    if constexpr (kBits == 4) word[0] |= word[1] << 4;  // four codes in the low, four in the high nibbles
    std::memcpy(panel + (k / kDepth * kPanelRows + lane) * 4, word, 4);
  }

  // All of a row, whose padding becomes the code of zero.
  static void set_row(const Matrix& m, std::int64_t row, const std::uint8_t* codes) {
    std::uint8_t* panel = of(m, row);
    const std::int64_t whole = m.inputs / kDepth * kDepth;
    for (std::int64_t k = 0; k < whole; k += kDepth) set(panel, row % kPanelRows, k, codes + k);
    if (whole == m.inputs) return;
    std::array<std::uint8_t, kDepth> last;
    last.fill(kZero);
    std::copy(codes + whole, codes + m.inputs, last.begin());
    set(panel, row % kPanelRows, whole, last.data());
  }
};

template <int kBits, bool kOffsets>
PackedBytes bytes(std::int64_t outputs, std::int64_t inputs, std::int64_t group) {
  const std::int64_t rows = padded_rows(outputs), groups = groups_of(inputs, group);
  return {rows * Panel<kBits>::padded(inputs) * kBits / 8, rows * groups * (group == 0 ? 4 : 2), kOffsets ? rows * groups * 4 : 0};
}

template <int kBits>
void import_parts(const Kernels&, const RowParts& parts, std::int64_t row, Matrix& m) {
  const std::int64_t groups = m.groups();
  float* scales = float_scales(m, row) + row % kPanelRows;
  float* offsets = m.offsets ? offsets_of(m, row) : nullptr;
  for (std::int64_t g = 0; g < groups; ++g)
    for (int r = 0; r < parts.rows; ++r) {
      scales[g * kPanelRows + r] = parts.scales[r * groups + g];
      if (offsets) offsets[g * kPanelRows + r] = parts.offsets ? parts.offsets[r * groups + g] : 0;
    }
  std::uint8_t* panel = Panel<kBits>::of(m, row);
  const std::int64_t whole = m.inputs / Panel<kBits>::kDepth * Panel<kBits>::kDepth;
  for (std::int64_t k = 0; k < whole; k += Panel<kBits>::kDepth)  // lanes lie together
    for (int r = 0; r < parts.rows; ++r) Panel<kBits>::set(panel, row % kPanelRows + r, k, parts.codes + r * m.inputs + k);
  if (whole != m.inputs)
    for (int r = 0; r < parts.rows; ++r) {
      std::array<std::uint8_t, Panel<kBits>::kDepth> last;
      last.fill(Panel<kBits>::kZero);
      std::copy(parts.codes + r * m.inputs + whole, parts.codes + (r + 1) * m.inputs, last.begin());
      Panel<kBits>::set(panel, row % kPanelRows + r, whole, last.data());
    }
}

// Of plain numbers: the codes take the range of a group, around zero without offsets.
template <int kBits>
std::int64_t store(const Kernels& kernels, const SourceRows& source, std::int64_t row, Matrix& m) {
  constexpr int kZero = Panel<kBits>::kZero;
  const std::int64_t groups = m.groups(), width = m.group == 0 ? m.inputs : m.group;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(m.inputs));
  std::vector<float> scales(static_cast<std::size_t>(groups)), offsets(scales.size()), natural(codes.size()), values(codes.size());
  for (int r = 0; r < source.rows; ++r) {
    for (std::int64_t k = 0; k < m.inputs; ++k) {
      const std::int64_t at = r * source.stride + k;
      const auto half = [&] { return static_cast<const std::uint16_t*>(source.data)[at]; };
      const float value = source.dtype == DType::kF32 ? static_cast<const float*>(source.data)[at] : source.dtype == DType::kF16 ? fp16_to_float(half()) : bf16_to_float(half());
      if (!std::isfinite(value)) return r * m.inputs + k;
      natural[static_cast<std::size_t>(k)] = value;
    }
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = m.order ? natural[static_cast<std::size_t>((*m.order)[k])] : natural[k];
    for (std::int64_t g = 0; g < groups; ++g) {
      const auto begin = values.begin() + g * width, end = values.begin() + std::min((g + 1) * width, m.inputs);
      const auto [least, most] = std::minmax_element(begin, end);
      const float scale = m.offsets ? *most / (2 * kZero - 1) - *least / (2 * kZero - 1) : std::max(std::fabs(*least), std::fabs(*most)) / (kZero - 1);
      const float offset = m.offsets ? std::fma(scale, static_cast<float>(kZero), *least) : 0;
      scales[static_cast<std::size_t>(g)] = scale;
      offsets[static_cast<std::size_t>(g)] = offset;
      for (auto value = begin; value != end; ++value) {
        const float code = scale == 0 ? 0 : std::round((*value - offset) / scale);
        codes[static_cast<std::size_t>(value - values.begin())] = static_cast<std::uint8_t>(std::clamp(code, static_cast<float>(-kZero), static_cast<float>(kZero - 1)) + kZero);
      }
    }
    import_parts<kBits>(kernels, {.kind = kBits == 4 ? CodeKind::kU4 : CodeKind::kU8, .rows = 1, .inputs = m.inputs, .group = m.group, .codes = codes.data(), .scales = scales.data(), .offsets = offsets.data()},
                        row + r, m);
  }
  return -1;
}

template <int kBits>
void dequantize(const Matrix& m, std::int64_t row, float* out) {
  const std::uint8_t* panel = Panel<kBits>::of(m, row);
  float scale = 0, offset = 0;
  for (std::int64_t k = 0; k < m.inputs; ++k) {
    if (k == 0 || (m.group != 0 && k % m.group == 0)) {
      const std::int64_t g = m.group == 0 ? 0 : k / m.group;
      scale = scale_at(m, row, g);
      if (m.offsets) offset = offsets_of(m, row)[g * kPanelRows];
    }
    out[m.order ? (*m.order)[static_cast<std::size_t>(k)] : k] = std::fma(scale, static_cast<float>(Panel<kBits>::code(panel, row % kPanelRows, k) - Panel<kBits>::kZero), offset);
  }
}

enum Stored : std::size_t { kCodes, kScale, kOffset };  // the offset is last, and the shape behind the scale or it

template <int kBits, bool kOffsets>
std::vector<StoredTensor> stored(std::int64_t rows, std::int64_t inputs, std::int64_t group, bool scales_fp32) {
  const std::int64_t words = (inputs + 7) / 8, groups = groups_of(inputs, group);
  const bool half = group != 0 && !scales_fp32;
  std::vector<StoredTensor> tensors;
  if (kBits == 4) tensors.push_back({"weight_packed", DType::kI32, {rows, words}, words * 4});
  else tensors.push_back({"weight", DType::kI8, {rows, inputs}, inputs});
  tensors.push_back({"weight_scale", half ? DType::kF16 : DType::kF32, {rows, groups}, groups * (half ? 2 : 4)});
  if (kOffsets) tensors.push_back({"weight_offset", DType::kF32, {rows, groups}, groups * 4});
  if (kBits == 4) tensors.push_back({"weight_shape", DType::kI64, {2}, 0});
  return tensors;
}

template <int kBits>
void export_row(const Matrix& m, std::int64_t row, std::size_t tensor, void* out) {
  auto* to = static_cast<std::uint8_t*>(out);
  for (std::int64_t g = 0; g < m.groups() && tensor != kCodes; ++g) {
    const float value = tensor == kScale ? scale_at(m, row, g) : offsets_of(m, row)[g * kPanelRows];
    const std::uint16_t half = float_to_fp16(value);
    if (tensor == kScale && m.scales_fp16) std::memcpy(to + g * 2, &half, 2);
    else std::memcpy(to + g * 4, &value, 4);
  }
  if (tensor != kCodes) return;
  const auto code = [&](std::int64_t k) { return Panel<kBits>::code(Panel<kBits>::of(m, row), row % kPanelRows, k); };
  if (kBits == 8)
    for (std::int64_t k = 0; k < m.inputs; ++k) to[k] = static_cast<std::uint8_t>(code(k) ^ 0x80);
  else
    for (std::int64_t k = 0; k < Panel<4>::padded(m.inputs); k += 2) to[k / 2] = static_cast<std::uint8_t>(code(k) | code(k + 1) << 4);
}

template <int kBits>
Result<void> import_row(Matrix& m, std::int64_t row, std::size_t tensor, DType dtype, const void* in) {
  const auto* from = static_cast<const std::uint8_t*>(in);
  if (tensor != kCodes) {
    float* to = tensor == kScale ? float_scales(m, row) + row % kPanelRows : offsets_of(m, row);
    for (std::int64_t g = 0; g < m.groups(); ++g) {
      std::uint16_t half;
      float value;
      if (dtype == DType::kF16) std::memcpy(&half, from + g * 2, 2), value = fp16_to_float(half);
      else std::memcpy(&value, from + g * 4, 4);
      if (!std::isfinite(value)) return fail(Code::kCorrupt, "row {}, group {}: {} {} is not finite", row, g, tensor == kScale ? "scale" : "offset", value);
      to[g * kPanelRows] = value;
    }
    return {};
  }
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(Panel<kBits>::padded(m.inputs)));
  for (std::int64_t k = 0; k < std::ssize(codes); ++k) {
    const int code = kBits == 8 ? k < m.inputs ? from[k] ^ 0x80 : 0x80 : (from[k / 2] >> (k % 2 * 4)) & 15;
    if (k >= m.inputs && code != Panel<kBits>::kZero) return fail(Code::kCorrupt, "row {}: padding past column {} is not zero", row, m.inputs);
    codes[static_cast<std::size_t>(k)] = static_cast<std::uint8_t>(code);
  }
  Panel<kBits>::set_row(m, row, codes.data());
  return {};
}

template <int kBits>
bool import_codes(const Kernels& kernels, Matrix& m, std::int64_t row, int rows, const void* in, std::int64_t stride) {
  const kernels::StoredCodes source{.data = in, .stride = stride, .rows = rows, .inputs = m.inputs};
  const int lane = static_cast<int>(row % kPanelRows);
  if (kBits == 8) {
    kernels.load->unpack_u8(source, lane, Panel<8>::of(m, row));  // every code is one of this format's
    return true;
  }
  for (int r = 0; r < rows && m.inputs % 8 != 0; ++r) {  // padding must be the code of zero
    std::uint32_t last;
    std::memcpy(&last, static_cast<const char*>(in) + r * stride + m.inputs / 8 * 4, 4);
    if (last >> (m.inputs % 8 * 4) != 0x88888888u >> (m.inputs % 8 * 4)) return false;
  }
  kernels.load->unpack_u4(source, lane, Panel<4>::of(m, row));
  return true;
}

template <int kBits, bool kOffsets>
constexpr Format format_of(std::string_view name, std::int64_t group) {
  return {.name = name, .summary = "integers that another tool made, as they are", .group = group, .codes = kBits == 4 ? Codes::kU4 : Codes::kU8, .exact_scales = true,
          .bytes = bytes<kBits, kOffsets>, .store = store<kBits>, .dequantize = dequantize<kBits>, .stored = stored<kBits, kOffsets>,
          .export_row = export_row<kBits>, .import_row = import_row<kBits>, .import_codes = import_codes<kBits>, .import_parts = import_parts<kBits>};
}

// Groups that the products take (kernels.h).
constexpr std::int64_t kGroups[] = {0, 16, 32, 64, 128, 256, 512};

template <int kBits, bool kOffsets>
constexpr std::array<Format, std::size(kGroups)> formats_of(const std::array<std::string_view, std::size(kGroups)>& names) {
  return [&]<std::size_t... kAt>(std::index_sequence<kAt...>) { return std::array{format_of<kBits, kOffsets>(names[kAt], kGroups[kAt])...}; }(std::make_index_sequence<std::size(kGroups)>());
}

constexpr auto kInt4 = formats_of<4, false>({"int4", "int4-g16", "int4-g32", "int4-g64", "int4-g128", "int4-g256", "int4-g512"});
constexpr auto kInt4Offsets = formats_of<4, true>({"int4-zp", "int4-g16-zp", "int4-g32-zp", "int4-g64-zp", "int4-g128-zp", "int4-g256-zp", "int4-g512-zp"});
constexpr auto kInt8 = formats_of<8, false>({"int8", "int8-g16", "int8-g32", "int8-g64", "int8-g128", "int8-g256", "int8-g512"});
constexpr auto kInt8Offsets = formats_of<8, true>({"int8-zp", "int8-g16-zp", "int8-g32-zp", "int8-g64-zp", "int8-g128-zp", "int8-g256-zp", "int8-g512-zp"});

}  // namespace

std::span<const Format* const> affine_formats() {
  static const std::vector<const Format*> kAll = [] {
    std::vector<const Format*> all;
    for (const auto* formats : {&kInt4, &kInt4Offsets, &kInt8, &kInt8Offsets})
      for (const Format& format : *formats) all.push_back(&format);
    return all;
  }();
  return kAll;
}

const Format* native_format(CodeKind kind, std::int64_t group, bool offsets) {
  if (kind == CodeKind::kE4M3) return offsets ? nullptr : group == 0 ? &tensor_wise_fp8_format() : group == kFp8Block ? &block_wise_fp8_format() : nullptr;
  const auto& formats = kind == CodeKind::kU4 ? offsets ? kInt4Offsets : kInt4 : offsets ? kInt8Offsets : kInt8;
  const auto found = std::ranges::find(formats, group, &Format::group);
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace inflight::quant
