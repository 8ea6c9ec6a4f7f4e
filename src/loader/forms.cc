#include "loader/forms.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "loader/chunk.h"
#include "quant/form_bytes.h"

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

InputRange whole_units(const FormSource& source, InputRange inputs, std::int64_t step) {
  std::int64_t unit = 1;
  for (std::size_t t = 0; t < source.tensors.size(); ++t)
    if (source.places[t] >= 0 && source.tensors[t].input_unit > 0) unit = std::lcm(unit, source.tensors[t].input_unit);
  const std::int64_t start = std::lcm(unit, step);
  return {inputs.begin / start * start, std::min(source.inputs, (inputs.end + unit - 1) / unit * unit)};
}

FormLines form_lines(const FormSource& source, std::size_t t, const TensorInfo& info, const FormArea& area) {
  const FormTensor& tensor = source.tensors[t];
  const auto pieces = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t row = std::max<std::int64_t>(row_bytes_of(info, tensor), 1);
  if (tensor.reach == Reach::kWhole) return {.end = 1, .line_bytes = info.bytes(), .bytes = info.bytes()};
  const std::int64_t begin = area.first / tensor.unit, end = pieces(area.first + area.count, tensor.unit);
  const std::int64_t unit = tensor.input_unit, from = unit == 0 ? 0 : area.inputs.begin / unit, to = unit == 0 ? 0 : pieces(area.inputs.end, unit);
  if (tensor.reach == Reach::kColumns) {
    const std::int64_t width = dtype_bits(info.dtype) / 8;
    return {.begin = from, .end = unit == 0 ? info.bytes() / row : to, .line_bytes = row, .offset = begin * width, .bytes = (end - begin) * width, .origin = begin * tensor.unit};
  }
  const std::int64_t line = row * tensor.rows, step = unit == 0 ? line : line / pieces(source.inputs, unit);
  return {.begin = begin, .end = end, .line_bytes = line, .offset = from * step, .bytes = unit == 0 ? line : (to - from) * step, .origin = begin * tensor.unit};
}

Result<FormBytes> read_form(const InputFile& file, const TensorInfo& info, const FormLines& lines, std::byte* buffer) {
  const std::int64_t at = info.begin + lines.begin * lines.line_bytes + lines.offset;
  if (lines.whole()) TRY(file.read_at(buffer, static_cast<std::size_t>(lines.total()), at));
  else
    for (std::int64_t i = 0; i < lines.end - lines.begin; ++i) TRY(file.read_at(buffer + i * lines.bytes, static_cast<std::size_t>(lines.bytes), at + i * lines.line_bytes));
  return FormBytes{buffer, lines.bytes, lines.origin, info.dtype};
}

FormBytes form_view(const TensorInfo& info, const FormLines& lines, const std::byte* whole) {
  return {whole + lines.begin * lines.line_bytes + lines.offset, lines.line_bytes, lines.origin, info.dtype};
}

FormScratch::FormScratch(const FormSource& source) {
  const std::int64_t rows = quant::kPanelRows, group = source.settings.group;
  const std::int64_t groups = group == 0 ? 1 : (source.inputs + group - 1) / group;
  codes_.resize(static_cast<std::size_t>(rows * source.inputs));
  scales_.resize(static_cast<std::size_t>(rows * groups));
  if (source.settings.offsets) offsets_.resize(scales_.size());
  numbers_.resize(codes_.size());
}

quant::RowParts FormScratch::parts(const FormSource& source, int rows, InputRange inputs) {
  return {.kind = source.settings.kind, .rows = rows, .inputs = inputs.end - inputs.begin, .group = source.settings.group, .codes = codes_.data(), .scales = scales_.data(),
          .offsets = offsets_.empty() ? nullptr : offsets_.data(), .order = source.settings.order ? source.settings.order->data() : nullptr,
          .first_input = inputs.begin, .matrix_inputs = source.inputs};
}

void keep_inputs(quant::RowParts& parts, std::int64_t skip, std::int64_t inputs, std::int64_t lead) {
  const std::int64_t all_groups = parts.groups(), all = parts.inputs, first_group = parts.group == 0 ? 0 : skip / parts.group;
  parts.inputs = inputs;
  parts.first_input += skip;
  if (parts.order) parts.order += skip;
  const std::int64_t groups = parts.groups();
  for (int r = 0; r < parts.rows; ++r) {  // forwards: what is written lies before what is still to be read
    std::uint8_t* codes = parts.codes + r * inputs;
    if (inputs != all) std::memmove(codes, parts.codes + r * all + skip, static_cast<std::size_t>(inputs));
    std::fill_n(codes, lead, static_cast<std::uint8_t>(quant::zero_code(parts.kind)));
    for (float* numbers : {parts.scales, parts.offsets})
      if (numbers && groups != all_groups) std::memmove(numbers + r * groups, numbers + r * all_groups + first_group, static_cast<std::size_t>(groups) * sizeof(float));
  }
}

std::int64_t form_scratch_bytes(const FormSource& source) {
  const std::int64_t groups = source.settings.group == 0 ? 1 : (source.inputs + source.settings.group - 1) / source.settings.group;
  std::int64_t companions = 0;  // scales and the like of one chunk: at most those of the whole matrix
  for (std::size_t t = 1; t < source.tensors.size(); ++t) companions += source.places[t] < 0 ? 0 : source.outputs * groups * 4;
  return quant::kPanelRows * (source.inputs * 5 + groups * 8) + companions;
}

}  // namespace inflight::loader
