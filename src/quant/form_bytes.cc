#include "quant/form_bytes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/bf16.h"

namespace inflight::quant {
namespace {

Result<void> check_scale(float scale, std::int64_t row, std::int64_t group, const RowParts& parts) {
  if (std::isfinite(scale) && scale >= 0) [[likely]] return {};
  if (parts.group == 0 || parts.group >= std::max(parts.inputs, parts.matrix_inputs)) return fail(Code::kCorrupt, "row {}: scale {} is not a finite number >= 0", row, scale);
  return fail(Code::kCorrupt, "row {}, columns from {} on: scale {} (group {}) is not a finite number >= 0", row, parts.first_input + group * parts.group, scale, group_in_matrix(parts, group));
}

std::int64_t width_of(DType dtype) { return dtype_bits(dtype) / 8; }

}  // namespace

float number_at(const std::byte* bytes, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) return std::bit_cast<float>(word_at(bytes + index * 4));
  if (dtype == DType::kF8E8M0) {  // 2^(code - 127); 255 is not a number
    const auto code = static_cast<std::uint32_t>(bytes[index]);
    return code == 255 ? std::bit_cast<float>(0x7fc00000u) : code == 0 ? 0x1p-127f : std::bit_cast<float>(code << 23);
  }
  std::uint16_t half;
  std::memcpy(&half, bytes + index * 2, 2);
  return dtype == DType::kF16 ? fp16_to_float(half) : bf16_to_float(half);
}

Result<void> read_scales(const FormBytes& bytes, Reach reach, std::int64_t unit, std::int64_t first, RowParts& parts) {
  const std::int64_t groups = parts.groups();
  for (int r = 0; r < parts.rows; ++r) {
    const std::byte* row = reach == Reach::kWhole ? bytes.data : reach == Reach::kRows ? row_of(bytes, first + r, unit) : bytes.data + (first + r - bytes.origin) * width_of(bytes.dtype);
    for (std::int64_t g = 0; g < groups; ++g) {
      const float scale = reach == Reach::kRows ? number_at(row, bytes.dtype, g) : reach == Reach::kWhole ? number_at(row, bytes.dtype, 0) : number_at(row + g * bytes.stride, bytes.dtype, 0);
      TRY(check_scale(scale, first + r, g, parts));
      parts.scales[r * groups + g] = scale;
    }
  }
  return {};
}

Result<void> set_zero(int zero, std::int64_t first, int r, std::int64_t g, std::string_view symmetric_key, RowParts& parts) {
  const int middle = zero_code(parts.kind);
  const std::int64_t at = r * parts.groups() + g;
  if (parts.offsets) parts.offsets[at] = static_cast<float>(middle - zero) * parts.scales[at];
  else if (zero != middle) [[unlikely]]
    return fail(Code::kCorrupt, "row {}, group {}: zero point {}, but {} promises {} everywhere", first + r, group_in_matrix(parts, g), zero, symmetric_key, middle);
  return {};
}

std::uint8_t* natural_row(int r, RowParts& parts, std::vector<std::uint8_t>& scratch) {
  if (!parts.order) return parts.codes + r * parts.inputs;
  scratch.resize(static_cast<std::size_t>(parts.inputs));
  return scratch.data();
}

void put_codes(const std::uint8_t* natural, int r, RowParts& parts) {
  std::uint8_t* out = parts.codes + r * parts.inputs;
  if (natural == out) return;
  for (std::int64_t j = 0; j < parts.inputs; ++j) out[j] = natural[parts.order[j]];
}

Result<void> check_fp8(std::int64_t first, const RowParts& parts) {
  for (int r = 0; r < parts.rows; ++r) {
    const std::uint8_t* row = parts.codes + r * parts.inputs;
    std::uint8_t odd = 0;
    for (std::int64_t k = 0; k < parts.inputs; ++k) odd |= static_cast<std::uint8_t>((row[k] & 0x7f) == 0x7f);
    if (odd == 0) [[likely]] continue;
    for (std::int64_t k = 0; k < parts.inputs; ++k)
      if ((row[k] & 0x7f) == 0x7f) return fail(Code::kCorrupt, "row {}, column {}: FP8 code {:#04x} is not a number", first + r, parts.order ? parts.order[k] : parts.first_input + k, row[k]);
  }
  return {};
}

}  // namespace inflight::quant
