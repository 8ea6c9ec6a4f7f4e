#include "loader/plan.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "loader/activation_scales.h"
#include "loader/chunk.h"
#include "loader/exchange.h"
#include "loader/shared_reads.h"
#include "loader/stored_columns.h"
#include "quant/derive.h"

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
  int form = -1;                    // index into LoadPlan::forms
  std::size_t part = 0;             // of the form's tensors
  bool optional = false;
};

const std::vector<DType> kFloatTypes = {DType::kBF16, DType::kF16, DType::kF32};

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Adds what one piece in a stored form needs; the same matrix may serve several pieces. false: its numbers are plain.
Result<bool> add_form_needs(const Forms& forms, const ParamSpec& row, std::size_t param, std::size_t p, std::vector<FormSource>& sources, std::map<std::string, int>& known, std::vector<Need>& needs) {
  const params::Piece& piece = row.pieces[p];
  const std::string weight = row.piece_name(p);
  std::int64_t outputs = piece.rows;
  if (!piece.source.tensor.empty()) {
    outputs = row.transposed ? piece.source.shape.back() : 1;
    for (std::size_t d = 0; !row.transposed && d + 1 < piece.source.shape.size(); ++d) outputs *= piece.source.shape[d];
  }
  auto [at, added] = known.try_emplace(weight, -1);
  if (added) {
    if (auto source = TRY(forms.find(weight, outputs, row.inputs))) {
      at->second = static_cast<int>(sources.size());
      sources.push_back(*std::move(source));
    }
  }
  if (at->second < 0) return false;
  const FormSource& source = sources[static_cast<std::size_t>(at->second)];
  for (std::size_t t = 0; t < source.tensors.size(); ++t) {
    const quant::FormTensor& tensor = source.tensors[t];
    std::vector<std::int64_t> shape = tensor.shape;
    if (t == 0 && !piece.source.tensor.empty() && source.form == &quant::gguf_form()) shape = piece.source.shape;
    const std::string name = source.places[t] >= 0 && t == 0 && tensor.suffix == "weight" ? weight : source.base + "." + tensor.suffix;
    needs.push_back({name, param, p, -1, tensor.dtypes, std::move(shape), at->second, t, tensor.optional});
  }
  return true;
}

Result<std::vector<Need>> needs_of(const params::ParamTable& table, const std::optional<quant::FormatPolicy>& stored, const Forms& forms, std::vector<FormSource>& sources) {
  std::vector<Need> needs;
  std::map<std::string, int> known;  // index into sources, by the matrix's name; -1: plain
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ParamSpec& row = table.rows[i];
    if (row.derivation) continue;
    const quant::Format* format = stored ? stored->of(row) : nullptr;
    for (std::size_t p = 0; p < row.pieces.size(); ++p) {
      const params::Piece& piece = row.pieces[p];
      if (format && format->quantized()) {
        const auto narrow = format->stored(piece.rows, row.inputs, format->group, false), wide = format->stored(piece.rows, row.inputs, format->group, true);
        for (std::size_t t = 0; t < narrow.size(); ++t)
          needs.push_back({row.piece_base(p) + "." + narrow[t].suffix, i, p, static_cast<int>(t), {narrow[t].dtype, wide[t].dtype}, narrow[t].shape});
      } else if (row.role == Role::kVector || stored || !TRY(add_form_needs(forms, row, i, p, sources, known, needs))) {
        std::vector<std::int64_t> shape = {piece.rows, row.inputs};
        if (!piece.source.tensor.empty()) shape = piece.source.shape;
        else if (row.role == Role::kVector) shape = {piece.rows};
        else if (row.transposed) shape = {row.inputs, piece.rows};
        needs.push_back({row.piece_name(p), i, p, -1, kFloatTypes, std::move(shape)});
      }
    }
  }
  return needs;
}

std::vector<std::int64_t> without_ones(std::vector<std::int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

// A vector may be stored as [1, n]; of a stored form, where producers differ, any dimension of 1 may be there or not.
bool fits(const Tensor& tensor, const Need& need) {
  const auto& shape = tensor.info.shape;
  if (need.form >= 0) return without_ones(shape) == without_ones(need.shape);
  return shape == need.shape || (need.shape.size() == 1 && shape.size() == 2 && shape[0] == 1 && shape[1] == need.shape[0]);
}

Result<void> check_fit(const Checkpoint& checkpoint, const Tensor& tensor, const Need& need, const ParamSpec& row) {
  const std::string& file = checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].path();
  if (!fits(tensor, need))
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

// Pieces that share a tensor must cover it exactly once, so that no number is loaded twice or left over.
Result<void> check_shares(const Tensor& tensor, const std::vector<Need>& needs, const std::vector<std::size_t>& sharing, const params::ParamTable& table, const std::vector<FormSource>& sources) {
  struct Area {
    std::int64_t input, output, rows, inputs;
  };
  std::int64_t elements = 1, covered = 0;
  if (const int form = needs[sharing[0]].form; form >= 0) elements = sources[static_cast<std::size_t>(form)].outputs * sources[static_cast<std::size_t>(form)].inputs;
  else
    for (const std::int64_t n : tensor.info.shape) elements *= n;
  if (sharing.size() == 1 && table.rows[needs[sharing[0]].param].pieces[needs[sharing[0]].piece].source.tensor.empty()) return {};
  std::vector<Area> areas;
  for (const std::size_t n : sharing) {
    const ParamSpec& row = table.rows[needs[n].param];
    const params::Piece& piece = row.pieces[needs[n].piece];
    areas.push_back({piece.source.first_input, piece.source.first_output, piece.rows, row.inputs});
    covered += piece.rows * row.inputs;
  }
  std::ranges::sort(areas, {}, [](const Area& a) { return std::pair(a.input, a.output); });
  bool apart = true;
  for (std::size_t i = 1; i < areas.size(); ++i)
    apart &= areas[i].input > areas[i - 1].input ? areas[i].input >= areas[i - 1].input + areas[i - 1].inputs : areas[i].output >= areas[i - 1].output + areas[i - 1].rows;
  if (!apart || covered != elements) return fail(Code::kInternal, "tensor \"{}\" is declared {}", tensor.info.name, apart ? "in part" : "twice");
  return {};
}

// Whether the tensor is a bias beside a matrix in a stored form, for which the model declares none: some tools write one of zeros beside every matrix. An error
// where it is not all zeros, for then it would be missed.
Result<bool> is_bias_of_zeros(const Checkpoint& checkpoint, const Tensor& tensor, const std::vector<FormSource>& sources) {
  constexpr std::string_view kBias = ".bias";
  const std::string_view name = tensor.info.name;
  if (!name.ends_with(kBias) || std::ranges::find(kFloatTypes, tensor.info.dtype) == kFloatTypes.end()) return false;
  const auto source = std::ranges::find(sources, name.substr(0, name.size() - kBias.size()), &FormSource::base);
  if (source == sources.end() || tensor.info.elements() != source->outputs) return false;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.info.bytes()));
  TRY(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].read_at(bytes.data(), bytes.size(), tensor.info.begin));
  const std::size_t width = bytes.size() / static_cast<std::size_t>(source->outputs);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if ((i % width == width - 1 ? bytes[i] & 0x7f : bytes[i]) != 0)  // zeros have signs
      return fail(Code::kUnsupported, "{}: \"{}\" is a bias that the model does not have, and its number {} is not 0; only a bias of zeros can be left out\n  hint: config.json of another model?",
                  checkpoint.folder(), name, i / width);
  return true;
}

// Reads which input belongs to which group, where a stored form says so in a tensor of its own.
Result<void> read_order(const Checkpoint& checkpoint, FormSource& source) {
  for (std::size_t t = 0; t < source.tensors.size(); ++t) {
    if (source.places[t] < 0 || !source.tensors[t].suffix.ends_with("g_idx")) continue;
    const Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(source.places[t])];
    std::vector<std::int32_t> groups(static_cast<std::size_t>(tensor.info.elements()));
    TRY(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].read_at(groups.data(), static_cast<std::size_t>(tensor.info.bytes()), tensor.info.begin));
    if (auto read = quant::set_order(source.settings, groups); !read) return fail_at(fmt::format("\"{}\"", tensor.info.name), std::move(read).error());
  }
  return {};
}

// The order of a converted row's inputs, where the folder holds one; `seen` gets the tensors that say it.
Result<quant::InputOrder> stored_order(const Checkpoint& checkpoint, const ParamSpec& row, std::unordered_set<int>& seen) {
  quant::InputOrder order;
  for (std::size_t p = 0; p < row.pieces.size(); ++p) {
    const Tensor* tensor = checkpoint.find(fmt::format("{}.{}", row.piece_base(p), kOrderSuffix));
    if (!tensor) {
      if (order) return fail(Code::kCorrupt, "{}: \"{}.{}\" is missing, though other parts of {} have one", checkpoint.folder(), row.piece_base(p), kOrderSuffix, row.full_name());
      continue;
    }
    if (tensor->info.dtype != DType::kI32 || tensor->info.shape != std::vector{row.inputs})
      return fail(Code::kCorrupt, "\"{}\" must be I32 [{}], not {} {}", tensor->info.name, row.inputs, dtype_name(tensor->info.dtype), shape_text(tensor->info.shape));
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(row.inputs));
    TRY(checkpoint.shards()[static_cast<std::size_t>(tensor->shard)].read_at(inputs.data(), static_cast<std::size_t>(tensor->info.bytes()), tensor->info.begin));
    std::vector<bool> named(inputs.size(), false);
    for (const std::int32_t k : inputs) {
      if (k < 0 || k >= row.inputs || named[static_cast<std::size_t>(k)]) return fail(Code::kCorrupt, "\"{}\" names input {} twice or beyond the {} there are", tensor->info.name, k, row.inputs);
      named[static_cast<std::size_t>(k)] = true;
    }
    if ((p != 0 && !order) || (order && *order != inputs)) return fail(Code::kCorrupt, "\"{}\" differs from the order of the other parts of {}", tensor->info.name, row.full_name());
    if (!order) order = std::make_shared<const std::vector<std::int32_t>>(std::move(inputs));
    seen.insert(static_cast<int>(tensor - checkpoint.tensors().data()));
  }
  return order;
}

// A row whose pieces all lie in one kind of stored form keeps it, where a format of ours holds it and `policy` asks for no other; else it is FP32 (or what `policy`
// asks for). `orders` gets the order of its inputs.
// The same on every rank, of the rows that it does not hold too.
Result<void> keep_forms(const Checkpoint& checkpoint, const params::ParamTable& table, const quant::FormatPolicy& policy, const std::vector<Need>& needs, LoadPlan& plan,
                                                  std::vector<const quant::Format*>& stored_format, std::vector<bool>& wide, std::vector<quant::InputOrder>& orders) {
  for (FormSource& source : plan.forms) TRY(read_order(checkpoint, source));
  std::vector<std::vector<const FormSource*>> of_row(table.rows.size());
  for (const Need& need : needs)
    if (need.form >= 0 && need.part == 0) of_row[need.param].push_back(&plan.forms[static_cast<std::size_t>(need.form)]);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    if (of_row[i].empty() || policy.of(table.rows[i])) continue;
    const quant::FormSettings& first = of_row[i][0]->settings;
    const auto same = [&](const FormSource* source) {
      const quant::FormSettings& s = source->settings;
      return s.kind == first.kind && s.group == first.group && s.offsets == first.offsets && (s.order == first.order || (s.order && first.order && *s.order == *first.order));
    };
    const bool all = of_row[i].size() == table.rows[i].pieces.size() && std::ranges::all_of(of_row[i], same) && table.rows[i].role != Role::kRouter;
    stored_format[i] = all ? quant::native_format(first.kind, first.group, first.offsets) : nullptr;
    if (stored_format[i]) orders[i] = first.order;
    else wide[i] = true;
  }
  return {};
}

// Of sorted inputs a rank holds a run, whose numbers come from all ranks' inputs: each product gathers those (Matrix::gathers_inputs).
Result<void> set_order(const ParamSpec& row, const params::Topology& topology, const quant::InputOrder& order, quant::Slot& slot) {
  slot.order = order;
  const params::Slice slice = TRY(params::slice_of(row, 0, topology));
  if (slice.col_end - slice.col_begin == row.inputs) return {};
  slot.order = std::make_shared<const std::vector<std::int32_t>>(order->begin() + slice.col_begin - slot.lead, order->begin() + slice.col_end);
  slot.gathers_inputs = true;
  return {};
}

// Bytes of the checkpoint that are read for a route of the plan.
std::int64_t source_bytes(const Checkpoint& checkpoint, const LoadPlan& plan, const Route& route) {
  const checkpoint::TensorInfo& info = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
  const std::int64_t rows = route.slice.row_end - route.slice.row_begin;
  if (route.stored >= 0) return route.matrix ? rows * stored_columns(plan.params.slots[route.param], route, info.dtype).bytes() : info.bytes();
  if (route.form < 0) return rows * (route.slice.col_end - route.slice.col_begin) * dtype_bits(info.dtype) / 8;
  const FormSource& source = plan.forms[static_cast<std::size_t>(route.form)];
  const FormArea area = form_area(plan, {static_cast<std::size_t>(&route - plan.routes.data()), route.slice.row_begin, rows});
  std::int64_t bytes = 0;
  for (std::size_t t = 0; t < source.tensors.size(); ++t)
    if (source.places[t] >= 0) bytes += form_lines(source, t, checkpoint.tensors()[static_cast<std::size_t>(source.places[t])].info, area).total();
  return bytes;
}

// Which inputs are read of matrices that arrive quantized, and how many bytes that is: those of the slice with what else decides over its codes.
void plan_quantized(const Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology, LoadPlan& plan) {
  for (Route& route : plan.routes) {
    if (route.stored >= 0) plan.source_bytes += source_bytes(checkpoint, plan, route);
    if (route.form < 0) continue;
    const FormSource& source = plan.forms[static_cast<std::size_t>(route.form)];
    const quant::Slot& slot = plan.params.slots[route.param];
    const quant::Format& format = *slot.format;
    const bool anew = format.quantized() && !keeps(source, format);
    InputRange wanted{route.slice.col_begin - slot.lead, route.slice.col_end};
    if (anew && format.scale_inputs() != 0) wanted.end = std::min((wanted.end + format.scale_inputs() - 1) / format.scale_inputs() * format.scale_inputs(), source.inputs);
    if (source.settings.order || (anew && format.scale_inputs() == 0)) wanted = {0, source.inputs};
    route.read = whole_units(source, wanted, anew ? std::max<std::int64_t>(format.scale_inputs(), 1) : 1);
  }
  plan_shared_reads(checkpoint, table, topology, plan);
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    const Route& route = plan.routes[r];
    if (route.shared_read) plan.source_bytes += shared_source_bytes(checkpoint, plan, r, topology);
    else if (route.form >= 0) plan.source_bytes += source_bytes(checkpoint, plan, route);
  }
}

// "wint8", or "wint8, experts wint4, 3 overrides".
std::string describe_policy(const quant::FormatPolicy& policy, const params::ParamTable& table) {
  const auto name = [](const quant::Format* format) { return format ? format->name : std::string_view("bf16"); };
  std::string text(name(policy.linear));
  if (policy.expert != policy.linear && std::ranges::any_of(table.rows, [](const ParamSpec& row) { return row.role == Role::kExpert; })) text += fmt::format(", experts {}", name(policy.expert));
  if (!policy.overrides.empty()) text += fmt::format(", {} override{}", policy.overrides.size(), policy.overrides.size() == 1 ? "" : "s");
  return text;
}

}  // namespace

std::string name_list(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += "\n  " + names[i];
  if (names.size() > kShown) text += fmt::format("\n  ... and {} more", names.size() - kShown);
  return text;
}

Result<std::optional<quant::FormatPolicy>> stored_policy(const JsonView& config) {
  if (!config.has("quantization_config")) return std::nullopt;
  const Json& quantization = (*config.object)["quantization_config"];
  if (!quantization.is_object()) return fail(Code::kCorrupt, "{}: \"quantization_config\" must be an object", config.where);
  const JsonView view{&quantization, config.where + ": quantization_config"};
  if (!view.has("inflight")) return std::nullopt;
  const JsonView own{&quantization["inflight"], view.where + ": inflight"};
  if (!own.object->is_object()) return fail(Code::kCorrupt, "{} must be an object", own.where);
  const std::int64_t version = TRY(own.integer("version"));
  if (version != 1 && version != 2) return fail(Code::kUnsupported, "{}: version {} is not known (this program reads 1 and 2); convert the folder again, or use a newer program", own.where, version);
  quant::FormatPolicy policy;
  const auto format = [&](const std::string& where, const std::string& name) -> Result<const quant::Format*> {
    auto found = quant::find_format(name);
    if (!found) return fail_at(where, std::move(found).error());
    return (*found)->quantized() ? *found : nullptr;
  };
  const std::string linear = TRY(own.string("linear"));
  policy.linear = TRY(format(own.where, linear));
  policy.expert = TRY(format(own.where, TRY(own.string_or("experts", linear))));
  policy.head = TRY(format(own.where, TRY(own.string("lm_head"))));
  policy.embedding = TRY(format(own.where, TRY(own.string_or("embedding", "bf16"))));
  if (own.has("overrides")) {
    const Json& overrides = (*own.object)["overrides"];
    if (!overrides.is_object()) return fail(Code::kCorrupt, "{}: \"overrides\" must be an object of names and formats", own.where);
    for (const auto& [pattern, name] : overrides.items()) {
      if (!name.is_string()) return fail(Code::kCorrupt, "{}: overrides: \"{}\" must be a format's name, not {}", own.where, pattern, name.dump());
      policy.overrides.push_back({pattern, TRY(format(own.where + ": overrides", name.get<std::string>()))});
    }
  }
  return policy;
}

Result<LoadPlan> plan_load(const Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology,
                           const quant::FormatPolicy& policy, int threads) {
  const auto stored = TRY(stored_policy({&checkpoint.config(), checkpoint.config_path()}));
  TRY(policy.check_overrides(table));
  TRY(params::check_ranks(table, topology));

  LoadPlan plan;
  std::unordered_map<std::string_view, std::vector<std::size_t>> needs_by_tensor;
  const Forms forms = TRY(Forms::of(checkpoint));
  const std::vector<Need> needs = TRY(needs_of(table, stored, forms, plan.forms));
  std::vector<std::string> missing;
  std::vector<bool> wide(table.rows.size(), false);
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const Tensor* tensor = checkpoint.find(needs[i].name);
    if (!tensor && needs[i].optional) continue;
    needs_by_tensor[needs[i].name].push_back(i);
    if (!tensor) {
      if (missing.empty() || missing.back() != needs[i].name) missing.push_back(needs[i].name);
      continue;
    }
    TRY(check_fit(checkpoint, *tensor, needs[i], table.rows[needs[i].param]));
    if (needs[i].stored < 0 && needs[i].form < 0 && tensor->info.dtype != DType::kBF16) wide[needs[i].param] = true;
  }
  if (!missing.empty())
    return fail(Code::kCorrupt, "{}: {} of the {} tensors that the model needs are missing:{}\n  hint: an incomplete download, or config.json of another model?",
                checkpoint.folder(), missing.size(), needs.size(), name_list(missing));

  std::unordered_set<int> read_apart;  // before the weights: orders of inputs, scales of activations
  std::vector<quant::InputOrder> orders(table.rows.size());
  if (stored)
    for (std::size_t i = 0; i < table.rows.size(); ++i)
      if (const quant::Format* format = stored->of(table.rows[i]); format && std::ranges::find(quant::forms(), format) != quant::forms().end())
        orders[i] = TRY(stored_order(checkpoint, table.rows[i], read_apart));
  for (const ScaleTensor& scale : scale_tensors(checkpoint, table, {&checkpoint.config(), checkpoint.config_path()})) read_apart.insert(scale.tensor);
  std::vector<std::string> unexpected;
  for (std::size_t t = 0; t < checkpoint.tensors().size(); ++t) {
    const Tensor& tensor = checkpoint.tensors()[t];
    const auto found = needs_by_tensor.find(tensor.info.name);
    if (found == needs_by_tensor.end()) {
      if (read_apart.contains(static_cast<int>(t))) {
        ++plan.tensors_loaded;
        continue;
      }
      const auto rule = std::ranges::find_if(table.ignored, [&](const params::IgnoreRule& r) { return ::fnmatch(r.pattern.c_str(), tensor.info.name.c_str(), 0) == 0; });
      if (rule != table.ignored.end()) plan.ignored.push_back(fmt::format("{} ({})", tensor.info.name, rule->reason));
      else if (TRY(is_bias_of_zeros(checkpoint, tensor, plan.forms))) plan.ignored.push_back(fmt::format("{} (zeros, and the model has no bias there)", tensor.info.name));
      else unexpected.push_back(fmt::format("{} {}", tensor.info.name, shape_text(tensor.info.shape)));
      continue;
    }
    TRY(check_shares(tensor, needs, found->second, table, plan.forms));
    bool here = false;  // this rank reads some of it
    for (const std::size_t n : found->second) {
      const Need& need = needs[n];
      const ParamSpec& row = table.rows[need.param];
      const params::Piece& piece = row.pieces[need.piece];
      if (!TRY(params::is_local(row, topology))) continue;
      if (need.form >= 0) {
        Route route{.tensor = static_cast<int>(t), .param = need.param, .slice = TRY(params::slice_of(row, need.piece, topology)), .form = need.form, .rows = piece.rows, .inputs = row.inputs,
                    .piece = need.piece, .first_row = piece.source.first_output};
        route.slice.row_begin += piece.source.first_output;
        route.slice.row_end += piece.source.first_output;
        here |= route.slice.row_begin < route.slice.row_end;
        if (need.part == 0) plan.routes.push_back(route);
        continue;
      }
      Route route{.tensor = static_cast<int>(t), .param = need.param, .slice = TRY(params::slice_of(row, need.piece, topology)), .stored = need.stored,
                  .matrix = need.shape.size() >= 2, .transposed = need.stored < 0 && need.shape.size() >= 2 && row.transposed, .first_input = piece.source.first_input,
                  .rows = piece.rows, .inputs = row.inputs, .piece = need.piece, .first_row = piece.source.first_output};
      const std::int64_t part = (route.slice.row_end - route.slice.row_begin) * (route.slice.col_end - route.slice.col_begin);
      if (need.stored < 0) {
        plan.source_bytes += part * dtype_bits(tensor.info.dtype) / 8;
        route.slice.row_begin += piece.source.first_output;
        route.slice.row_end += piece.source.first_output;
      }
      here |= route.slice.row_begin < route.slice.row_end;
      plan.routes.push_back(route);
    }
    ++(here ? plan.tensors_loaded : plan.tensors_elsewhere);
  }
  if (!unexpected.empty())
    return fail(Code::kCorrupt, "{}: {} tensors belong to no parameter of this model, and no rule ignores them:{}\n  hint: config.json of another model, or a variant that is not supported?",
                checkpoint.folder(), unexpected.size(), name_list(unexpected));

  std::vector<const quant::Format*> stored_format(table.rows.size(), nullptr);
  if (stored)
    for (std::size_t i = 0; i < table.rows.size(); ++i)
      stored_format[i] = stored->of(table.rows[i]);
  TRY(keep_forms(checkpoint, table, policy, needs, plan, stored_format, wide, orders));
  const quant::FormatPolicy as_stored{.wide_derived = policy.wide_derived};
  plan.params = TRY(quant::plan_params(table, topology, stored ? as_stored : policy, wide, stored_format));
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (stored_format[i] && orders[i]) TRY(set_order(table.rows[i], topology, orders[i], plan.params.slots[i]));
  plan_quantized(checkpoint, table, topology, plan);
  TRY(plan_exchange(checkpoint, table, topology, stored_format, plan));
  for (const ParamSpec& row : table.rows)
    if (row.derivation) plan.derive_bytes.push_back(quant::derive_bytes(table.rows[row.derivation->source].inputs, *row.derivation));
  plan.quantization = describe_policy(stored ? *stored : policy, table);
  plan.staging_bytes = staging_bytes(checkpoint, plan, threads);
  return plan;
}

void keep_params(const Checkpoint& checkpoint, const std::vector<bool>& kept, int threads, LoadPlan& plan) {
  quant::keep_params(plan.params, kept);
  std::erase_if(plan.routes, [&](const Route& route) { return !kept[route.param]; });
  plan.source_bytes = 0;
  std::set<int> tensors;
  for (const Route& route : plan.routes) {
    plan.source_bytes += source_bytes(checkpoint, plan, route);
    tensors.insert(route.tensor);
  }
  plan.tensors_elsewhere += plan.tensors_loaded - static_cast<std::int64_t>(tensors.size());
  plan.tensors_loaded = static_cast<std::int64_t>(tensors.size());
  plan.staging_bytes = staging_bytes(checkpoint, plan, threads);
}

}  // namespace inflight::loader
