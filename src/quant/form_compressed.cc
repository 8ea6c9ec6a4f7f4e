// compressed-tensors: codes in 32-bit words ("pack-quantized"), or one a byte ("int-quantized", "float-quantized", "naive-quantized").
// Bytes: docs/formats/compressed-tensors.md.
#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum PackedTensors { kCodes, kScale, kZero, kShape };

const std::vector<DType> kScaleTypes = {DType::kBF16, DType::kF16, DType::kF32};

std::int64_t groups_of(const FormSettings& settings, std::int64_t inputs) { return settings.group == 0 ? 1 : (inputs + settings.group - 1) / settings.group; }

// One scale for all of a matrix, one row of scales for a row, or for `group_rows` rows.
FormTensor scale_like(std::string suffix, std::vector<DType> dtypes, const FormSettings& settings, std::int64_t outputs, std::int64_t inputs, bool optional) {
  if (settings.group_rows == 0) return {std::move(suffix), std::move(dtypes), {1}, Reach::kWhole, 1, optional};
  const std::int64_t rows = (outputs + settings.group_rows - 1) / settings.group_rows;
  return by_inputs(settings.group, {std::move(suffix), std::move(dtypes), {rows, groups_of(settings, inputs)}, Reach::kRows, settings.group_rows, optional});
}

// An old release packed codes but not their zero points.
Result<void> look(FormSettings& settings, std::int64_t, std::int64_t, const TensorsSeen& seen) {
  const auto zeros = seen("weight_zero_point");
  settings.packed_zeros = !zeros || zeros->dtype != DType::kI8;
  return {};
}

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  if (settings.kind == CodeKind::kE4M3 || !settings.packed) {
    const bool fp8 = settings.kind == CodeKind::kE4M3;
    return std::vector<FormTensor>{
        by_inputs(1, {"weight", {fp8 ? DType::kF8E4M3 : DType::kI8}, {outputs, inputs}}),
        scale_like("weight_scale", kScaleTypes, settings, outputs, inputs, false),
        scale_like("weight_zero_point", {fp8 ? DType::kF8E4M3 : DType::kI8}, settings, outputs, inputs, !settings.offsets),
        // input_scale is of activations: loader/activation_scales.h
        {"input_zero_point", {DType::kI8, DType::kF8E4M3}, {1}, Reach::kWhole, 1, true}};
  }
  const std::int64_t per_word = 32 / settings.bits, groups = groups_of(settings, inputs);
  FormTensor zeros{"weight_zero_point", {DType::kI32}, {(outputs + per_word - 1) / per_word, groups}, Reach::kRows, per_word, !settings.offsets};
  if (!settings.packed_zeros) zeros = {"weight_zero_point", {DType::kI8}, {outputs, groups}, Reach::kRows, 1, !settings.offsets};
  return std::vector<FormTensor>{
      by_inputs(per_word, {"weight_packed", {DType::kI32}, {outputs, (inputs + per_word - 1) / per_word}}),
      by_inputs(settings.group, {"weight_scale", kScaleTypes, {outputs, groups}}),
      by_inputs(settings.group, std::move(zeros)),
      {"weight_shape", {DType::kI64, DType::kI32}, {2}, Reach::kWhole, 1, true},
      {"weight_g_idx", {DType::kI32}, {inputs}, Reach::kWhole, 1, !settings.ordered}};
}

Result<void> take_words(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  const int bits = settings.bits;
  const std::int64_t per_word = 32 / bits;
  if (const FormBytes& shape = bytes[kShape]; shape.data) {
    std::int64_t columns = 0;
    if (shape.dtype == DType::kI64) std::memcpy(&columns, shape.data + 8, 8);
    else columns = static_cast<std::int32_t>(word_at(shape.data + 4));
    const std::int64_t expected = parts.matrix_inputs == 0 ? parts.inputs : parts.matrix_inputs;
    if (columns != expected) return fail(Code::kCorrupt, "weight_shape says {} columns, the model's matrix has {}", columns, expected);
  }
  TRY(read_scales(bytes[kScale], Reach::kRows, 1, first, parts));
  if (const FormBytes& zeros = bytes[kZero]; zeros.data)
    for (int r = 0; r < parts.rows; ++r) {
      const std::byte* row = row_of(zeros, first + r, settings.packed_zeros ? per_word : 1);
      for (std::int64_t g = 0; g < parts.groups(); ++g) {
        const int zero = settings.packed_zeros ? code_in(word_at(row + g * 4), (first + r) % per_word, bits) : static_cast<std::int8_t>(row[g]) + zero_code(parts.kind);
        if (zero < 0 || zero >> bits != 0) return fail(Code::kCorrupt, "row {}, group {}: zero point {} of a number that 4 bits hold (-8..7)", first + r, group_in_matrix(parts, g), zero - 8);
        TRY(set_zero(zero, first, r, g, "\"symmetric\": true", parts));
      }
    }

  std::vector<std::uint8_t> scratch;
  for (int r = 0; r < parts.rows; ++r) {
    std::uint8_t* row = natural_row(r, parts, scratch);
    const std::byte* from = row_of(bytes[kCodes], first + r);
    if (bits == 8) std::memcpy(row, from, static_cast<std::size_t>(parts.inputs));  // the first in the low bits: bytes in order
    for (std::int64_t k = 0; bits == 4 && k < parts.inputs; k += 8) {
      const std::uint64_t spread = spread_nibbles(word_at(from + k / 2));
      std::memcpy(row + k, &spread, static_cast<std::size_t>(parts.inputs - k < 8 ? parts.inputs - k : 8));
    }
    put_codes(row, r, parts);
  }
  return {};
}

Result<void> take_bytes(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  const Reach reach = settings.group_rows == 0 ? Reach::kWhole : Reach::kRows;
  const std::int64_t unit = settings.group_rows == 0 ? 1 : settings.group_rows;
  TRY(read_scales(bytes[kScale], reach, unit, first, parts));
  const bool fp8 = parts.kind == CodeKind::kE4M3;
  const int middle = zero_code(parts.kind);
  if (const FormBytes& zeros = bytes[kZero]; zeros.data)
    for (int r = 0; r < parts.rows; ++r) {
      const std::byte* row = reach == Reach::kWhole ? zeros.data : row_of(zeros, first + r, unit);
      for (std::int64_t g = 0; g < parts.groups(); ++g) {
        const auto zero = static_cast<std::int8_t>(row[reach == Reach::kWhole ? 0 : g]);
        TRY(set_zero(fp8 ? zero & 0x7f : zero + middle, first, r, g, "\"symmetric\": true", parts));
      }
    }
  for (int r = 0; r < parts.rows; ++r) {
    const std::byte* from = row_of(bytes[kCodes], first + r);
    std::uint8_t* row = parts.codes + r * parts.inputs;
    std::memcpy(row, from, static_cast<std::size_t>(parts.inputs));
    if (parts.kind == CodeKind::kU8)
      for (std::int64_t k = 0; k < parts.inputs; ++k) row[k] ^= 0x80;
    if (parts.kind != CodeKind::kU4) continue;
    std::uint8_t odd = 0;
    for (std::int64_t k = 0; k < parts.inputs; ++k) {
      row[k] = static_cast<std::uint8_t>(row[k] + 8);
      odd |= row[k];
    }
    if (odd > 15)
      for (std::int64_t k = 0; k < parts.inputs; ++k)
        if (row[k] > 15) return fail(Code::kCorrupt, "row {}, column {}: code {} of a number that 4 bits hold (-8..7)", first + r, parts.first_input + k, static_cast<std::int8_t>(row[k] - 8));
  }
  if (fp8) TRY(check_fp8(first, parts));
  return {};
}

Result<void> take_apart(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  return settings.kind == CodeKind::kE4M3 || !settings.packed ? take_bytes(settings, bytes, first, parts) : take_words(settings, bytes, first, parts);
}

}  // namespace

const StoredForm& compressed_form() {
  static constexpr StoredForm kForm = {.name = "compressed-tensors", .tensors = tensors, .take_apart = take_apart, .look = look};
  return kForm;
}

}  // namespace inflight::quant
