#include "cli/inspect_eplb.h"

#include <algorithm>
#include <numeric>

#include "cli/command.h"
#include "cli/console.h"
#include "cli/expert_load.h"
#include "cli/input.h"

namespace inflight::cli {
namespace {

using Side = std::vector<double> BalanceReport::Layer::*;

// Over all layers; nothing where the experts do not divide.
std::optional<double> overall(const BalanceReport& report, Side side) {
  std::vector<std::vector<double>> layers;
  for (const BalanceReport::Layer& layer : report.layers) {
    if ((layer.*side).empty()) return std::nullopt;
    layers.push_back(layer.*side);
  }
  return params::imbalance(layers);
}

std::optional<double> of_layer(const std::vector<double>& ranks) { return ranks.empty() ? std::nullopt : std::optional(params::imbalance(ranks)); }

std::string factor(std::optional<double> value) { return value ? fmt::format("{:.3f}", *value) : "-"; }
Json number(std::optional<double> value) { return value ? Json(*value) : Json(); }

}  // namespace

void add_eplb_arguments(CLI::App& app, EplbArguments& arguments) {
  const std::string group = "Balance of experts";
  app.add_option("--eplb", arguments.file, "Experts' loads (a file of --expert-load): how even they lie on the ranks, and with --redundant-experts replicas placed by them")->type_name("FILE")->group(group);
  app.add_option("--nodes", arguments.nodes, "Machines that the ranks are on, equally many on each; 0: one for each 8 ranks")->capture_default_str()->group(group);
  app.add_option("--eplb-strategy", arguments.strategy, "auto, hierarchical, global, balance_intra_node")->capture_default_str()->group(group);
}

Result<BalanceReport> balance_report(const params::ExpertLoads& loads, const params::Balancing& balancing) {
  const params::ExpertPlacement placed = TRY(params::balance_experts(loads, balancing));
  const std::vector<std::vector<double>> after = params::rank_loads(placed, loads);
  const auto plain = params::ExpertPlacement::initial(placed.layers(), placed.experts(), balancing.ranks, 0);
  const std::vector<std::vector<double>> before = plain ? params::rank_loads(*plain, loads) : std::vector<std::vector<double>>(loads.size());
  BalanceReport report{.balancing = balancing, .experts = placed.experts(), .layers = {}};
  for (std::size_t layer = 0; layer < loads.size(); ++layer) {
    const std::int64_t tokens = std::accumulate(loads[layer].begin(), loads[layer].end(), std::int64_t{0});
    if (tokens > 0) report.layers.push_back({static_cast<std::int64_t>(layer), tokens, before[layer], after[layer], placed.logical()[layer]});
  }
  if (report.layers.empty()) return fail(Code::kInvalidArgument, "no layer has any load: no token was counted");
  return report;
}

std::string balance_text(const BalanceReport& report) {
  const params::Balancing& b = report.balancing;
  std::string text = fmt::format("{} experts and {} redundant ones over {} rank{} on {} node{}, {}: the heaviest rank against the mean\n\n{:>5}  {:>12}  {:>8}  {:>8}\n", report.experts, b.redundant, b.ranks,
                                 b.ranks == 1 ? "" : "s", b.nodes, b.nodes == 1 ? "" : "s", params::balance_strategy_name(b.strategy), "layer", "routed", "before", "after");
  for (const BalanceReport::Layer& layer : report.layers) text += fmt::format("{:>5}  {:>12}  {:>8}  {:>8}\n", layer.layer, layer.tokens, factor(of_layer(layer.before)), factor(of_layer(layer.after)));
  text += fmt::format("{:>5}  {:>12}  {:>8}  {:>8}\n", "all", "", factor(overall(report, &BalanceReport::Layer::before)), factor(overall(report, &BalanceReport::Layer::after)));
  if (report.layers[0].before.empty()) text += fmt::format("\nwithout redundant experts, {} experts do not divide over {} ranks\n", report.experts, b.ranks);
  return text;
}

OrderedJson balance_json(const BalanceReport& report) {
  const params::Balancing& b = report.balancing;
  OrderedJson json{{"ranks", b.ranks}, {"nodes", b.nodes}, {"experts", report.experts}, {"redundant_experts", b.redundant}, {"strategy", params::balance_strategy_name(b.strategy)},
                   {"before", number(overall(report, &BalanceReport::Layer::before))}, {"after", number(overall(report, &BalanceReport::Layer::after))}, {"layers", OrderedJson::array()}};
  for (const BalanceReport::Layer& layer : report.layers)
    json["layers"].push_back({{"layer", layer.layer}, {"routed", layer.tokens}, {"before", number(of_layer(layer.before))}, {"after", number(of_layer(layer.after))},
                              {"rank_loads_before", layer.before}, {"rank_loads_after", layer.after}, {"physical_experts", layer.physical}});
  return json;
}

Result<int> run_eplb(const EplbArguments& arguments, const engine::EngineOptions& parallel, bool json) {
  params::Balancing balancing{.ranks = parallel.tensor_parallel_size * parallel.data_parallel_size, .redundant = parallel.redundant_experts};
  balancing.strategy = TRY(params::parse_balance_strategy(arguments.strategy));
  if (arguments.nodes < 0) return fail(Code::kInvalidArgument, "--nodes must be at least 0, but is {}", arguments.nodes);
  balancing.nodes = arguments.nodes > 0 ? arguments.nodes : std::max(balancing.ranks / 8, 1);
  const params::ExpertLoads loads = TRY(parse_expert_load(TRY(read_input(arguments.file)), arguments.file));
  auto report = balance_report(loads, balancing);
  if (!report) return fail_at(arguments.file, std::move(report).error());
  print(json ? balance_json(*report).dump(2) + "\n" : balance_text(*report));
  return kDone;
}

}  // namespace inflight::cli
