// PaddlePaddle's tensor_wise_fp8: E4M3 codes as int8, [inputs, outputs], one scale for the matrix or one an output. Bytes: docs/formats/tensor_wise_fp8.md.
#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kScale };

// One scale, or one an output (experts, by newer tools).
Result<void> look(FormSettings& settings, std::int64_t outputs, std::int64_t, const TensorsSeen& seen) {
  const auto scale = seen("weight_scale");
  if (!scale) return {};
  std::int64_t scales = 1;
  for (const std::int64_t side : scale->shape) scales *= side;
  if (scales == outputs) settings.group_rows = 1;
  return {};
}

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  const std::vector<DType> scale_types = {DType::kBF16, DType::kF16, DType::kF32};
  FormTensor scale{"weight_scale", scale_types, {1}, Reach::kWhole};
  if (settings.group_rows != 0) scale = {"weight_scale", scale_types, {outputs, 1}};
  return std::vector<FormTensor>{by_inputs(1, {"quant_weight", {DType::kI8, DType::kU8, DType::kF8E4M3}, {inputs, outputs}, Reach::kColumns}), std::move(scale)};
}

Result<void> take_apart(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  TRY(read_scales(bytes[kScale], settings.group_rows == 0 ? Reach::kWhole : Reach::kRows, 1, first, parts));
  const FormBytes& codes = bytes[kCodes];
  const std::byte* column = codes.data + (first - codes.origin);
  for (std::int64_t k = 0; k < parts.inputs; ++k, column += codes.stride)
    for (int r = 0; r < parts.rows; ++r) parts.codes[r * parts.inputs + k] = static_cast<std::uint8_t>(column[r]);
  return check_fp8(first, parts);
}

}  // namespace

const StoredForm& paddle_fp8_form() {
  static constexpr StoredForm kForm = {.name = "PaddlePaddle FP8", .tensors = tensors, .take_apart = take_apart, .look = look};
  return kForm;
}

}  // namespace inflight::quant
