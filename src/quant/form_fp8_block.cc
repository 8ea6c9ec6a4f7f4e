// FP8 (E4M3) with one scale per block of outputs and inputs, per output, or for the whole matrix. Bytes: docs/formats/fp8-block.md.
#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kScaleInv, kScale };

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  const std::vector<DType> scale_types = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0};
  std::vector<FormTensor> all = {by_inputs(1, {"weight", {DType::kF8E4M3}, {outputs, inputs}})};
  const std::int64_t groups = settings.group == 0 ? 1 : (inputs + settings.group - 1) / settings.group;
  const std::int64_t unit = settings.group_rows == 0 ? 1 : settings.group_rows;
  const bool blocks = settings.group_rows > 1;
  for (const char* suffix : {"weight_scale_inv", "weight_scale"}) {  // without blocks, tools differ in the name; take_apart() wants one of them
    if (settings.group_rows == 0) all.push_back({suffix, scale_types, {1}, Reach::kWhole, 1, true});
    else all.push_back(by_inputs(settings.group, {suffix, scale_types, {(outputs + unit - 1) / unit, groups}, Reach::kRows, unit, !blocks}));
    if (blocks) return all;
  }
  return all;
}

Result<void> take_apart(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  const FormBytes* scales = &bytes[kScaleInv];
  if (!scales->data && bytes.size() > kScale) scales = &bytes[kScale];
  if (!scales->data) return fail(Code::kCorrupt, "FP8 codes without a scale: neither weight_scale nor weight_scale_inv is there");
  TRY(read_scales(*scales, settings.group_rows == 0 ? Reach::kWhole : Reach::kRows, settings.group_rows == 0 ? 1 : settings.group_rows, first, parts));
  for (int r = 0; r < parts.rows; ++r) std::memcpy(parts.codes + r * parts.inputs, row_of(bytes[kCodes], first + r), static_cast<std::size_t>(parts.inputs));
  return check_fp8(first, parts);
}

}  // namespace

const StoredForm& fp8_form() {
  static constexpr StoredForm kForm = {.name = "FP8", .tensors = tensors, .take_apart = take_apart};
  return kForm;
}

}  // namespace inflight::quant
