#include "loader/forms.h"

#include <algorithm>

#include "loader/chunk.h"

namespace inflight::loader {
namespace {

using checkpoint::TensorInfo;
using quant::FormBytes;
using quant::FormTensor;
using quant::Reach;

constexpr std::string_view kWeight = ".weight";

bool is_plain(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

// "model.layers.0.mlp.down_proj" of "model.layers.0.mlp.down_proj.weight"; a stack of experts ("...experts.down_proj") is its own base.
std::string_view base_of(std::string_view weight) { return weight.ends_with(kWeight) ? weight.substr(0, weight.size() - kWeight.size()) : weight; }

}  // namespace

bool keeps(const FormSource& source, const quant::Format& format) {
  const quant::FormSettings& settings = source.settings;
  return format.import_parts && &format == quant::native_format(settings.kind, settings.group, settings.offsets);
}

Result<Forms> Forms::of(const checkpoint::Checkpoint& checkpoint) {
  Forms forms(checkpoint);
  forms.config_ = TRY(quant::FormConfig::parse({&checkpoint.config(), checkpoint.config_path()}));
  return forms;
}

bool Forms::has(std::string_view tensor) const {
  if (checkpoint_->find(tensor)) return true;
  if (!tensor.ends_with(kWeight)) return false;
  return std::ranges::any_of(quant::codes_suffixes(), [&](std::string_view suffix) { return checkpoint_->find(fmt::format("{}.{}", base_of(tensor), suffix)) != nullptr; });
}

Result<std::optional<FormSource>> Forms::find(std::string_view weight, std::int64_t outputs, std::int64_t inputs) const {
  const checkpoint::Tensor* plain = checkpoint_->find(weight);
  if (plain && is_plain(plain->info.dtype)) return std::nullopt;
  FormSource source{.base = std::string(base_of(weight)), .outputs = outputs, .inputs = inputs};
  if (plain && is_block_type(plain->info.dtype)) {
    source.form = &quant::gguf_form();
    source.settings = quant::gguf_settings(plain->info.dtype);
  } else if (config_) {
    const auto choice = TRY(config_->choice(source.base));
    if (!choice) {
      for (const std::string_view suffix : quant::codes_suffixes())
        if (const auto* codes = checkpoint_->find(fmt::format("{}.{}", source.base, suffix)); codes && !is_plain(codes->info.dtype))
          return fail(Code::kCorrupt, "{}: \"{}\" is there, but quantization_config says that {} is not converted\n  hint: config.json and weights disagree", checkpoint_->config_path(),
                      codes->info.name, source.base);
      return std::nullopt;
    }
    source.form = choice->form;
    source.settings = choice->settings;
  } else {
    return std::nullopt;
  }
  const auto where = [&] { return fmt::format("{}: {} in {} form", checkpoint_->folder(), source.base, source.form->name); };
  if (source.form->look) {
    const auto seen = [&](std::string_view suffix) -> std::optional<quant::SeenTensor> {
      const auto* tensor = checkpoint_->find(fmt::format("{}.{}", source.base, suffix));
      return tensor ? std::optional(quant::SeenTensor{tensor->info.dtype, tensor->info.shape}) : std::nullopt;
    };
    if (auto looked = source.form->look(source.settings, outputs, inputs, seen); !looked) return fail_at(where(), std::move(looked).error());
  }
  auto tensors = source.form->tensors(source.settings, outputs, inputs);
  if (!tensors) return fail_at(where(), std::move(tensors).error());
  source.tensors = *std::move(tensors);
  for (FormTensor& tensor : source.tensors) {
    const auto* found = checkpoint_->find(fmt::format("{}.{}", source.base, tensor.suffix));
    if (!found && &tensor == &source.tensors[0] && plain && tensor.suffix == "weight") found = plain;
    source.places.push_back(found ? static_cast<int>(found - checkpoint_->tensors().data()) : -1);
  }
  return source;
}

namespace {

// A row of the file as `unit` outputs have it: a vector has one element for each.
std::int64_t row_bytes_of(const TensorInfo& info, const FormTensor& tensor) {
  return tensor.reach == Reach::kRows && info.shape.size() == 1 ? dtype_bits(info.dtype) / 8 : file_row_bytes(info);
}

}  // namespace

FormRange form_range(const FormTensor& tensor, std::int64_t first, std::int64_t count) {
  if (tensor.reach == Reach::kWhole) return {};
  const std::int64_t begin = first / tensor.unit, end = (first + count + tensor.unit - 1) / tensor.unit;
  return {begin * tensor.rows, end * tensor.rows, begin * tensor.unit};
}

std::int64_t form_bytes(const TensorInfo& info, const FormTensor& tensor, std::int64_t first, std::int64_t count) {
  const FormRange range = form_range(tensor, first, count);
  const std::int64_t row = row_bytes_of(info, tensor);
  if (tensor.reach == Reach::kRows) return (range.end - range.begin) * row;
  if (tensor.reach == Reach::kColumns) return info.bytes() / std::max<std::int64_t>(row, 1) * (range.end - range.begin) * dtype_bits(info.dtype) / 8;
  return info.bytes();
}

Result<FormBytes> read_form(const InputFile& file, const TensorInfo& info, const FormTensor& tensor, std::int64_t first, std::int64_t count, std::byte* buffer) {
  const FormRange range = form_range(tensor, first, count);
  const std::int64_t row = row_bytes_of(info, tensor), bytes = form_bytes(info, tensor, first, count);
  if (tensor.reach != Reach::kColumns) {
    TRY(file.read_at(buffer, static_cast<std::size_t>(bytes), info.begin + range.begin * row));
    return FormBytes{buffer, row, range.origin, info.dtype};
  }
  const std::int64_t width = dtype_bits(info.dtype) / 8, part = (range.end - range.begin) * width;
  if (part == row) TRY(file.read_at(buffer, static_cast<std::size_t>(bytes), info.begin));
  else
    for (std::int64_t k = 0; k < info.bytes() / row; ++k) TRY(file.read_at(buffer + k * part, static_cast<std::size_t>(part), info.begin + k * row + range.begin * width));
  return FormBytes{buffer, part, range.origin, info.dtype};
}

FormBytes form_view(const TensorInfo& info, const FormTensor& tensor, std::int64_t first, const std::byte* whole) {
  const FormRange range = form_range(tensor, first, 0);
  const std::int64_t row = row_bytes_of(info, tensor);
  if (tensor.reach == Reach::kRows) return {whole + range.begin * row, row, range.origin, info.dtype};
  if (tensor.reach == Reach::kColumns) return {whole + range.begin * dtype_bits(info.dtype) / 8, row, range.origin, info.dtype};
  return {whole, row, 0, info.dtype};
}

FormScratch::FormScratch(const FormSource& source) {
  const std::int64_t rows = quant::kPanelRows, group = source.settings.group;
  const std::int64_t groups = group == 0 ? 1 : (source.inputs + group - 1) / group;
  codes_.resize(static_cast<std::size_t>(rows * source.inputs));
  scales_.resize(static_cast<std::size_t>(rows * groups));
  if (source.settings.offsets) offsets_.resize(scales_.size());
  numbers_.resize(codes_.size());
}

quant::RowParts FormScratch::parts(const FormSource& source, int rows) {
  return {.kind = source.settings.kind, .rows = rows, .inputs = source.inputs, .group = source.settings.group, .codes = codes_.data(), .scales = scales_.data(),
          .offsets = offsets_.empty() ? nullptr : offsets_.data(), .order = source.settings.order ? source.settings.order->data() : nullptr};
}

std::int64_t form_scratch_bytes(const FormSource& source) {
  const std::int64_t groups = source.settings.group == 0 ? 1 : (source.inputs + source.settings.group - 1) / source.settings.group;
  std::int64_t companions = 0;  // scales and the like of one chunk: at most those of the whole matrix
  for (std::size_t t = 1; t < source.tensors.size(); ++t) companions += source.places[t] < 0 ? 0 : source.outputs * groups * 4;
  return quant::kPanelRows * (source.inputs * 5 + groups * 8) + companions;
}

}  // namespace inflight::loader
