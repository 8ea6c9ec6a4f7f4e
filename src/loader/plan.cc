#include "loader/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "loader/chunk.h"
#include "quant/integer_formats.h"

namespace inflight::loader {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Tensor;
using params::ParamSpec;
using params::Role;

// One tensor that a parameter needs.
struct Need {
  std::string name;
  std::size_t param;
  std::size_t piece;
  int stored;                       // -1, or index into Format::stored()
  std::vector<DType> dtypes;        // accepted
  std::vector<std::int64_t> shape;
};

const std::vector<DType> kFloatTypes = {DType::kBF16, DType::kF16, DType::kF32};

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// At most eight names, then a count.
std::string name_list(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += "\n  " + names[i];
  if (names.size() > kShown) text += fmt::format("\n  ... and {} more", names.size() - kShown);
  return text;
}

std::vector<Need> needs_of(const params::ParamTable& table, const std::optional<quant::FormatPolicy>& stored) {
  std::vector<Need> needs;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ParamSpec& row = table.rows[i];
    const quant::Format* format = !stored ? nullptr : row.role == Role::kLinear ? stored->linear : row.role == Role::kHead ? stored->head : nullptr;
    for (std::size_t p = 0; p < row.pieces.size(); ++p) {
      const std::int64_t rows = row.pieces[p].rows;
      if (row.role == Role::kVector) {
        needs.push_back({row.piece_name(p), i, p, -1, kFloatTypes, {rows}});
      } else if (!format || !format->quantized()) {
        needs.push_back({row.piece_name(p), i, p, -1, kFloatTypes, {rows, row.inputs}});
      } else {
        const auto narrow = format->stored(rows, row.inputs, format->group, false), wide = format->stored(rows, row.inputs, format->group, true);
        for (std::size_t t = 0; t < narrow.size(); ++t)
          needs.push_back({row.piece_base(p) + "." + narrow[t].suffix, i, p, static_cast<int>(t), {narrow[t].dtype, wide[t].dtype}, narrow[t].shape});
      }
    }
  }
  return needs;
}

Result<void> check_fit(const Checkpoint& checkpoint, const Tensor& tensor, const Need& need, const ParamSpec& row) {
  const std::string& file = checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].path();
  if (tensor.info.shape != need.shape)
    return fail(Code::kCorrupt,
                "cannot load \"{}\"\n  from {}, bytes [{}, {})\n  shape {} {}, but the model needs {} (for {})\n  hint: config.json and weights disagree; is this checkpoint complete and its own?",
                need.name, file, tensor.info.begin, tensor.info.end, shape_text(tensor.info.shape), dtype_name(tensor.info.dtype), shape_text(need.shape), row.full_name());
  if (std::ranges::find(need.dtypes, tensor.info.dtype) == need.dtypes.end()) {
    std::vector<std::string_view> names;
    for (const DType dtype : need.dtypes)
      if (names.empty() || names.back() != dtype_name(dtype)) names.push_back(dtype_name(dtype));
    return fail(Code::kUnsupported, "cannot load \"{}\"\n  from {}\n  dtype {} is not supported here; expected {}", need.name, file, dtype_name(tensor.info.dtype), fmt::join(names, " or "));
  }
  return {};
}

}  // namespace

Result<std::optional<quant::FormatPolicy>> stored_policy(const JsonView& config) {
  if (!config.has("quantization_config")) return std::nullopt;
  const Json& quantization = (*config.object)["quantization_config"];
  if (!quantization.is_object()) return fail(Code::kCorrupt, "{}: \"quantization_config\" must be an object", config.where);
  const JsonView view{&quantization, config.where + ": quantization_config"};
  if (!view.has("inflight"))
    return fail(Code::kUnsupported, "{}: quantization method \"{}\" of another producer cannot be loaded yet; use the unquantized checkpoint and --quantization",
                config.where, TRY(view.string_or("quant_method", "?")));
  const JsonView own{&quantization["inflight"], view.where + ": inflight"};
  if (!own.object->is_object()) return fail(Code::kCorrupt, "{} must be an object", own.where);
  const std::int64_t version = TRY(own.integer("version"));
  if (version != 1) return fail(Code::kUnsupported, "{}: version {} is not known (this program reads 1); convert the folder again, or use a newer program", own.where, version);
  quant::FormatPolicy policy;
  const auto format = [&](std::string_view key) -> Result<const quant::Format*> {
    auto found = quant::find_format(TRY(own.string(key)));
    if (!found) return fail_at(own.where, std::move(found).error());
    return (*found)->quantized() ? *found : nullptr;
  };
  policy.linear = TRY(format("linear"));
  policy.head = TRY(format("lm_head"));
  return policy;
}

Result<LoadPlan> plan_load(const Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology,
                           const quant::FormatPolicy& policy, int threads) {
  const auto stored = TRY(stored_policy({&checkpoint.config(), checkpoint.config_path()}));
  if (stored && policy.linear && policy.linear != stored->linear)
    return fail(Code::kInvalidArgument, "{} holds weights already quantized as {}; leave out --quantization {} or start from the original checkpoint",
                checkpoint.folder(), stored->linear ? stored->linear->name : "bf16", policy.linear->name);

  LoadPlan plan;
  std::unordered_map<std::string_view, std::size_t> need_of;  // tensor name -> need
  const std::vector<Need> needs = needs_of(table, stored);
  std::vector<std::string> missing;
  std::vector<bool> wide(table.rows.size(), false);
  for (std::size_t i = 0; i < needs.size(); ++i) {
    if (!need_of.emplace(needs[i].name, i).second) return fail(Code::kInternal, "tensor \"{}\" is declared twice", needs[i].name);
    const Tensor* tensor = checkpoint.find(needs[i].name);
    if (!tensor) {
      missing.push_back(needs[i].name);
      continue;
    }
    TRY(check_fit(checkpoint, *tensor, needs[i], table.rows[needs[i].param]));
    if (needs[i].stored < 0 && tensor->info.dtype != DType::kBF16) wide[needs[i].param] = true;
  }
  if (!missing.empty())
    return fail(Code::kCorrupt, "{}: {} of the {} tensors that the model needs are missing:{}\n  hint: an incomplete download, or config.json of another model?",
                checkpoint.folder(), missing.size(), needs.size(), name_list(missing));

  std::vector<std::string> unexpected;
  for (std::size_t t = 0; t < checkpoint.tensors().size(); ++t) {
    const Tensor& tensor = checkpoint.tensors()[t];
    const auto found = need_of.find(tensor.info.name);
    if (found == need_of.end()) {
      const auto rule = std::ranges::find_if(table.ignored, [&](const params::IgnoreRule& r) { return tensor.info.name.ends_with(r.suffix); });
      if (rule != table.ignored.end()) plan.ignored.push_back(fmt::format("{} ({})", tensor.info.name, rule->reason));
      else unexpected.push_back(fmt::format("{} {}", tensor.info.name, shape_text(tensor.info.shape)));
      continue;
    }
    const Need& need = needs[found->second];
    const params::Slice slice = TRY(params::slice_of(table.rows[need.param], need.piece, topology));
    const std::int64_t whole = table.rows[need.param].pieces[need.piece].rows * table.rows[need.param].inputs;
    const std::int64_t part = (slice.row_end - slice.row_begin) * (slice.col_end - slice.col_begin);
    plan.source_bytes += static_cast<std::int64_t>(static_cast<double>(tensor.info.bytes()) * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1)));
    plan.routes.push_back({static_cast<int>(t), need.param, slice, need.stored});
  }
  if (!unexpected.empty())
    return fail(Code::kCorrupt, "{}: {} tensors belong to no parameter of this model, and no rule ignores them:{}\n  hint: config.json of another model, or a variant that is not supported?",
                checkpoint.folder(), unexpected.size(), name_list(unexpected));

  std::vector<const quant::Format*> stored_format(table.rows.size(), nullptr);
  if (stored)
    for (std::size_t i = 0; i < table.rows.size(); ++i)
      stored_format[i] = table.rows[i].role == Role::kLinear ? stored->linear : table.rows[i].role == Role::kHead ? stored->head : nullptr;
  plan.params = TRY(quant::plan_params(table, topology, stored ? quant::FormatPolicy{} : policy, wide, stored_format));
  const quant::Format* linear = stored ? stored->linear : policy.linear;
  plan.quantization = linear ? std::string(linear->name) : "bf16";
  plan.staging_bytes = staging_bytes(checkpoint, plan, threads);
  return plan;
}

}  // namespace inflight::loader
