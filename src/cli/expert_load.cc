#include "cli/expert_load.h"

#include "base/json.h"
#include "cli/console.h"
#include "cli/html_page.h"
#include "engine/ranks.h"

namespace inflight::cli {

void add_expert_load_argument(CLI::App& app, ModelArguments& arguments) {
  app.add_option("--expert-load", arguments.expert_load, "Also write how many tokens each expert of each layer got (JSON, for inspect --eplb)")->type_name("FILE");
}

Result<params::ExpertLoads> parse_expert_load(std::string_view text, std::string_view where) {
  const Json json = TRY(parse_json(text, where));
  if (!json.is_object() || !json.contains("layers") || !json["layers"].is_array() || json["layers"].empty())
    return fail(Code::kCorrupt, "{}: must be an object with \"layers\", a list of the tokens of each expert for each layer, as --expert-load writes it", where);
  params::ExpertLoads loads;
  std::size_t experts = 0;
  for (const Json& layer : json["layers"]) {
    const std::string here = fmt::format("{}: layer {}", where, loads.size());
    if (!layer.is_array() || layer.empty()) return fail(Code::kCorrupt, "{} must be a list of numbers, but is {}", here, layer.dump().substr(0, 40));
    if (loads.empty()) experts = layer.size();
    if (layer.size() != experts) return fail(Code::kCorrupt, "{} has {} experts, layer 0 has {}", here, layer.size(), experts);
    std::vector<std::int64_t>& tokens = loads.emplace_back();
    for (const Json& number : layer) {
      // So many tokens that a sum over experts still fits.
      if (!number.is_number_integer() || number < 0 || number > (std::int64_t{1} << 40)) return fail(Code::kCorrupt, "{} has {} where a number of tokens belongs", here, number.dump().substr(0, 40));
      tokens.push_back(number.get<std::int64_t>());
    }
  }
  return loads;
}

std::string expert_load_json(const params::ExpertLoads& loads) { return Json{{"layers", loads}}.dump() + "\n"; }

void note_rebalance(const engine::Engine& engine) {
  const auto& last = engine.last_rebalance();
  if (!last) return;
  if (*last) note("experts were placed by their loads: the heaviest rank has {:.2f} times the mean, before {:.2f} ({} layers changed)", (*last)->after, (*last)->before, (*last)->layers);
  else note("experts stay where they were: {}", last->error().message);
}

Result<void> ExpertLoad::count(const engine::OpenedModel& opened, bool wanted) {
  if (path_.empty() && !wanted) return {};
  const models::ModelInfo& info = opened.model->info();
  if (info.experts == 0) return fail(Code::kInvalidArgument, "--expert-load: {} has no experts", info.architecture);
  opened_ = &opened;
  if (opened.runtime->expert_tokens) return {};  // they are counted anyway
  loads_.assign(static_cast<std::size_t>(info.layers), std::vector<std::int64_t>(static_cast<std::size_t>(info.experts)));
  opened.runtime->expert_tokens = &loads_;
  return {};
}

Result<void> ExpertLoad::write() const {
  if (opened_) engine::collect_expert_tokens(*opened_);
  if (path_.empty()) return {};
  TRY(write_text_file(path_, expert_load_json(loads())));
  note("wrote {}", path_);
  return {};
}

}  // namespace inflight::cli
