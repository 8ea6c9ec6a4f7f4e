// inflight inspect MODEL [--json]: what loading would do. inflight inspect --supported: what this binary can do.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/supported.h"
#include "engine/open_model.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  bool json = false;
  bool supported = false;
};

std::string_view format_name(const quant::Slot& slot) { return slot.format ? slot.format->name : "f32"; }
std::int64_t slot_bytes(const quant::Slot& slot) { return slot.bytes.codes + slot.bytes.scales + slot.bytes.offsets; }
std::vector<std::int64_t> slot_shape(const quant::Slot& slot, const params::ParamSpec& row) {
  if (row.role == params::Role::kVector) return {slot.outputs};
  return {slot.outputs, slot.inputs};
}

OrderedJson plan_json(const engine::ModelPlan& plan, const std::string& quantization) {
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
    json["parameters"].push_back({{"name", plan.table.rows[i].full_name()}, {"shape", slot_shape(slot, plan.table.rows[i])}, {"format", format_name(slot)}, {"bytes", slot_bytes(slot)}});
  }
  json["ranks"] = OrderedJson::array();
  json["ranks"].push_back({{"rank", 0}, {"weight_bytes", plan.plan.weight_bytes}, {"staging_bytes", plan.staging_bytes}, {"kv_bytes_per_token", plan.kv_bytes_per_token}});
  json["source_bytes"] = plan.source_bytes;
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

std::string plan_text(const engine::ModelPlan& plan) {
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
  text += fmt::format("\nrank 0 of 1: weights {} ({} bytes), staging while loading {}, KV cache {} a token\nread from the checkpoint: {}\n", human_bytes(plan.plan.weight_bytes),
                      grouped(plan.plan.weight_bytes), human_bytes(plan.staging_bytes), human_bytes(plan.kv_bytes_per_token), human_bytes(plan.source_bytes));
  for (const std::string& line : plan.ignored) text += fmt::format("ignored tensor: {}\n", line);
  for (const std::string& line : plan.notes) text += fmt::format("note: {}\n", line);
  return text;
}

Result<int> run(const Arguments& arguments) {
  if (arguments.supported) {
    print(supported_table());
    return kDone;
  }
  if (arguments.model.model.empty()) return fail(Code::kInvalidArgument, "inspect needs a MODEL, or --supported");
  TRY(check(arguments.model));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  const engine::ModelPlan plan = TRY(engine::plan_model(folder, arguments.model.engine));
  if (arguments.json) {
    const std::string& asked = arguments.model.engine.quantization;
    print(plan_json(plan, asked.empty() ? "as stored" : asked).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  } else {
    print(plan_text(plan));
  }
  return kDone;
}

}  // namespace

Action declare_inspect(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model, /*model_required=*/false);
  app.add_flag("--json", arguments->json, "One JSON object");
  app.add_flag("--supported", arguments->supported, "Architectures, formats and instruction sets of this program, as a Markdown table");
  return [arguments] { return run(*arguments); };
}

}  // namespace inflight::cli
