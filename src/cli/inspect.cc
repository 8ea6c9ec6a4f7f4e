// inflight inspect MODEL [--json]: what loading would do. inflight inspect --eplb FILE: the balance of experts' loads. inflight inspect --supported: what this binary can do.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/inspect_eplb.h"
#include "cli/supported.h"
#include "engine/memory_limit.h"
#include "engine/open_model.h"
#include "params/names.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  EplbArguments eplb;
  bool json = false;
  bool supported = false;
  bool names = false;
};

std::string_view format_name(const quant::Slot& slot) { return slot.format ? slot.format->name : "f32"; }
std::int64_t slot_bytes(const quant::Slot& slot) { return slot.bytes.codes + slot.bytes.scales + slot.bytes.offsets; }
std::vector<std::int64_t> slot_shape(const quant::Slot& slot, const params::ParamSpec& row) {
  if (row.role == params::Role::kVector) return {slot.outputs};
  return {slot.outputs, slot.inputs};
}

bool spreads_experts(const engine::EngineOptions& parallel) { return parallel.enable_expert_parallel || parallel.data_parallel_size > 1; }

// Over what the ranks share a parameter.
std::string_view split_name(const params::ParamSpec& row, const engine::EngineOptions& parallel) {
  if (row.expert >= 0 && spreads_experts(parallel)) return "experts";
  if (row.split == params::Split::kReplicate) return "none";
  return row.split == params::Split::kOutputs ? "outputs" : "inputs";
}

// {"model.layers.0.self_attn.qkv_proj.weight": ["model.layers.0.self_attn.q_proj.weight", ...], ...}
OrderedJson names_json(const engine::ModelPlan& plan) {
  OrderedJson json = OrderedJson::object();
  for (const params::NameMapping& mapping : params::names_to_trainer(plan.table)) json[mapping.runtime] = mapping.trainer;
  return json;
}

OrderedJson plan_json(const engine::ModelPlan& plan, const std::string& quantization, const engine::EngineOptions& parallel, const engine::MemoryLimit& memory) {
  OrderedJson json;
  const models::ModelInfo& info = plan.info;
  json["model"] = plan.folder;
  json["architecture"] = info.architecture;
  json["quantization"] = quantization;
  json["layers"] = info.layers;
  json["hidden"] = info.hidden;
  json["vocabulary"] = info.vocabulary;
  json["heads"] = info.heads;
  json["kv_heads"] = info.kv_heads;
  json["head_dim"] = info.head_dim;
  if (info.experts > 0) {
    json["experts"] = info.experts;
    json["experts_per_token"] = info.experts_per_token;
  }
  if (info.value_dim > 0) json["latent_dim"] = info.value_dim;  // head_dim is then that of a cached row, kv_heads 1
  json["max_positions"] = info.max_positions;
  json["parameters"] = OrderedJson::array();
  for (std::size_t i = 0; i < plan.table.rows.size(); ++i) {
    const quant::Slot& slot = plan.plan.slots[i];
    const params::ParamSpec& row = plan.table.rows[i];
    OrderedJson pieces = OrderedJson::array();
    for (std::size_t p = 0; p < row.pieces.size() && !row.derivation; ++p) {
      OrderedJson piece{{"tensor", row.piece_name(p)}, {"rows", row.pieces[p].rows}};
      if (!row.pieces[p].source.tensor.empty()) piece["first_row"] = row.pieces[p].source.first_output;
      pieces.push_back(std::move(piece));
    }
    json["parameters"].push_back({{"name", row.full_name()}, {"shape", slot_shape(slot, row)}, {"pieces", std::move(pieces)}, {"format", format_name(slot)}, {"bytes", slot_bytes(slot)},
                                  {"split", split_name(row, parallel)}});
  }
  json["tensor_parallel_size"] = parallel.tensor_parallel_size;
  json["data_parallel_size"] = parallel.data_parallel_size;
  json["expert_parallel"] = spreads_experts(parallel);
  json["ranks"] = OrderedJson::array();
  engine::RankPlan most, sum;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const engine::RankPlan& r = plan.ranks[rank];
    json["ranks"].push_back({{"rank", rank}, {"weight_bytes", r.weight_bytes}, {"source_bytes", r.source_bytes}, {"staging_bytes", r.staging_bytes}, {"kv_bytes_per_token", r.kv_bytes_per_token}});
    most.weight_bytes = std::max(most.weight_bytes, r.weight_bytes + r.staging_bytes);
    sum.weight_bytes += r.weight_bytes;
    sum.source_bytes += r.source_bytes;
  }
  json["weight_bytes"] = sum.weight_bytes;
  json["source_bytes"] = sum.source_bytes;
  json["memory"] = {{"needed_bytes_per_rank", most.weight_bytes}, {"available_bytes", memory.bytes}, {"limited_by", memory.source}};
  json["ignored"] = plan.ignored;
  json["notes"] = plan.notes;
  return json;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

struct Line {
  std::string name, shape;
  std::string_view format;
  std::int64_t bytes = 0;
};

// The parameters in order; experts of a layer that are alike share a line, "model.layers.1.mlp.experts.0-63.down_proj.weight".
std::vector<Line> plan_lines(const engine::ModelPlan& plan) {
  std::vector<Line> lines;
  struct Run {
    std::size_t line;
    std::int64_t first, last;
    std::string before, after;  // the expert's number
  };
  std::map<std::string, Run> open;  // by layer, name, shape and format
  for (std::size_t i = 0; i < plan.table.rows.size(); ++i) {
    const params::ParamSpec& row = plan.table.rows[i];
    const quant::Slot& slot = plan.plan.slots[i];
    const Line line{row.full_name(), shape_text(slot_shape(slot, row)), format_name(slot), slot_bytes(slot)};
    const std::string number = std::to_string(row.expert);
    if (row.expert < 0 || !row.scope.ends_with("." + number)) {
      lines.push_back(line);
      continue;
    }
    const std::string before = row.scope.substr(0, row.scope.size() - number.size()), after = line.name.substr(row.scope.size());
    const std::string key = fmt::format("{}|{}|{}|{}", before, after, line.shape, line.format);
    const auto found = open.find(key);
    if (found == open.end() || found->second.last + 1 != row.expert) {
      open[key] = {lines.size(), row.expert, row.expert, before, after};
      lines.push_back(line);
      continue;
    }
    Run& run = found->second;
    run.last = row.expert;
    lines[run.line].bytes += line.bytes;
    lines[run.line].name = fmt::format("{}{}-{}{}", run.before, run.first, run.last, run.after);
    lines[run.line].shape = fmt::format("{} x {}", run.last - run.first + 1, line.shape);
  }
  return lines;
}

std::string heads_text(const models::ModelInfo& info) {
  if (info.value_dim > 0) return fmt::format("{} heads of {} over a latent of {} + {}", info.heads, info.query_dim, info.value_dim, info.head_dim - info.value_dim);
  return fmt::format("{} heads ({} of keys and values) of {}", info.heads, info.kv_heads, info.head_dim);
}

std::string plan_text(const engine::ModelPlan& plan, const engine::EngineOptions& parallel, const engine::MemoryLimit& memory) {
  const models::ModelInfo& info = plan.info;
  std::string text = fmt::format("{}\n{}: {} layers, hidden {}, vocabulary {}, {}, context {}\n\n", plan.folder, info.architecture, info.layers, info.hidden,
                                 info.vocabulary, heads_text(info), info.max_positions);
  if (info.experts > 0) text.insert(text.size() - 1, fmt::format("{} experts, {} a token\n", info.experts, info.experts_per_token));
  const std::vector<Line> lines = plan_lines(plan);
  std::size_t width = 9, shapes = 16;
  for (const Line& line : lines) {
    width = std::max(width, line.name.size());
    shapes = std::max(shapes, line.shape.size());
  }
  text += fmt::format("{:<{}}  {:<{}} {:<12} {:>14}\n", "parameter", width, "shape", shapes, "format", "bytes");
  std::map<std::string_view, std::int64_t> by_format;
  for (const Line& line : lines) {
    text += fmt::format("{:<{}}  {:<{}} {:<12} {:>14}\n", line.name, width, line.shape, shapes, line.format, grouped(line.bytes));
    by_format[line.format] += line.bytes;
  }
  text += "\n";
  for (const auto& [format, bytes] : by_format) text += fmt::format("{:<14} {:>10}\n", format, human_bytes(bytes));
  text += "\n";
  std::int64_t source = 0, needed = 0;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const engine::RankPlan& r = plan.ranks[rank];
    source += r.source_bytes;
    needed = std::max(needed, r.weight_bytes + r.staging_bytes);
    text += fmt::format("rank {} of {}: weights {} ({} bytes), staging while loading {}, KV cache {} a token, reads {}\n", rank, plan.ranks.size(), human_bytes(r.weight_bytes), grouped(r.weight_bytes),
                        human_bytes(r.staging_bytes), human_bytes(r.kv_bytes_per_token), human_bytes(r.source_bytes));
  }
  if (plan.ranks.size() > 1) text += fmt::format("experts are {}\n", spreads_experts(parallel) ? "spread whole over the ranks" : "cut like all other matrices");
  text += fmt::format("read from the checkpoint: {}\nmemory: {} a rank to load, {} available here ({}){}\n", human_bytes(source), human_bytes(needed), human_bytes(memory.bytes), memory.source,
                      needed > memory.bytes ? ": too little" : "");
  for (const std::string& line : plan.ignored) text += fmt::format("ignored tensor: {}\n", line);
  for (const std::string& line : plan.notes) text += fmt::format("note: {}\n", line);
  return text;
}

Result<int> run(const Arguments& arguments) {
  if (arguments.supported) {
    print(supported_table());
    return kDone;
  }
  if (!arguments.eplb.file.empty()) {
    if (!arguments.model.model.empty() || arguments.names) return fail(Code::kInvalidArgument, "--eplb shows the balance of a file alone; leave out {}", arguments.names ? "--names" : "MODEL");
    TRY(check(arguments.model, /*only_plan=*/true));
    return run_eplb(arguments.eplb, arguments.model.engine, arguments.json);
  }
  if (arguments.model.model.empty()) return fail(Code::kInvalidArgument, "inspect needs a MODEL, --supported or --eplb FILE");
  if (arguments.names && arguments.json) return fail(Code::kInvalidArgument, "--names is JSON by itself; leave out --json");
  TRY(check(arguments.model, /*only_plan=*/true));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  const engine::ModelPlan plan = TRY(engine::plan_model(folder, arguments.model.engine));
  const engine::MemoryLimit memory = TRY(engine::available_memory());
  if (arguments.names) {
    print(names_json(plan).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  } else if (arguments.json) {
    const std::string& asked = arguments.model.engine.quantization;
    print(plan_json(plan, asked.empty() ? "as stored" : asked, arguments.model.engine, memory).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  } else {
    print(plan_text(plan, arguments.model.engine, memory));
  }
  return kDone;
}

}  // namespace

Action declare_inspect(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model, /*model_required=*/false);
  add_eplb_arguments(app, arguments->eplb);
  app.add_flag("--json", arguments->json, "One JSON object");
  app.add_flag("--names", arguments->names, "JSON: each parameter and the checkpoint tensors that fill it, in order");
  app.add_flag("--supported", arguments->supported, "Architectures, formats and instruction sets of this program, as a Markdown table");
  return [arguments] { return run(*arguments); };
}

}  // namespace inflight::cli
