#include "params/expert_placement.h"

#include <algorithm>
#include <numeric>

#include "base/nearest.h"

namespace inflight::params {
namespace {

constexpr std::string_view kNames[] = {"auto", "hierarchical", "global", "balance_intra_node"};

Result<void> check_divides(std::int64_t n, std::string_view what, std::int64_t by, std::string_view parts) {
  if (by > 0 && n % by == 0) return {};
  return fail(Code::kInvalidArgument, "{} {} do not divide over {} {}", n, what, by, parts);
}

std::vector<double> weights_of(const std::vector<std::int64_t>& loads) {
  if (std::ranges::all_of(loads, [](std::int64_t load) { return load == 0; })) return std::vector<double>(loads.size(), 1.0);
  return {loads.begin(), loads.end()};
}

// Deals the items of one node to its ranks: what lies in each place of the node, rank after rank.
std::vector<std::int32_t> deal(std::span<const std::int32_t> items, std::span<const double> weights, int ranks) {
  const Packed packed = balanced_packing(weights, ranks);
  std::vector<std::int32_t> dealt(items.size());
  const std::size_t places = items.size() / static_cast<std::size_t>(ranks);
  for (std::size_t i = 0; i < items.size(); ++i) dealt[static_cast<std::size_t>(packed.pack[i]) * places + static_cast<std::size_t>(packed.place[i])] = items[i];
  return dealt;
}

// One layer. Sizes divide.
std::vector<std::int32_t> hierarchical(std::span<const double> weights, std::int64_t physical, std::int64_t groups, const Balancing& balancing) {
  const auto experts = static_cast<std::int64_t>(weights.size());
  const std::int64_t width = experts / groups;
  std::vector<double> group_weights(static_cast<std::size_t>(groups));
  for (std::int64_t e = 0; e < experts; ++e) group_weights[static_cast<std::size_t>(e / width)] += weights[static_cast<std::size_t>(e)];
  std::vector<std::int32_t> group_ids(static_cast<std::size_t>(groups));
  std::iota(group_ids.begin(), group_ids.end(), 0);
  const std::vector<std::int32_t> dealt = deal(group_ids, group_weights, balancing.nodes);

  std::vector<std::int32_t> logical;
  const std::int64_t node_groups = groups / balancing.nodes;
  for (std::int64_t node = 0; node < balancing.nodes; ++node) {
    std::vector<std::int32_t> members;
    std::vector<double> member_weights;
    for (std::int64_t g = node * node_groups; g < (node + 1) * node_groups; ++g)
      for (std::int64_t i = 0; i < width; ++i) {
        members.push_back(static_cast<std::int32_t>(dealt[static_cast<std::size_t>(g)] * width + i));
        member_weights.push_back(weights[static_cast<std::size_t>(members.back())]);
      }
    std::vector<std::int32_t> counts;
    std::vector<std::int32_t> places = replicate_experts(member_weights, physical / balancing.nodes, counts);
    std::vector<double> place_weights;
    for (std::int32_t& place : places) {
      place_weights.push_back(member_weights[static_cast<std::size_t>(place)] / counts[static_cast<std::size_t>(place)]);
      place = members[static_cast<std::size_t>(place)];
    }
    const std::vector<std::int32_t> places_dealt = deal(places, place_weights, balancing.ranks / balancing.nodes);
    logical.insert(logical.end(), places_dealt.begin(), places_dealt.end());
  }
  return logical;
}

std::vector<std::int32_t> intra_node(std::span<const double> weights, std::int64_t physical, const Balancing& balancing) {
  std::vector<std::int32_t> counts, logical;
  const std::vector<std::int32_t> places = replicate_experts(weights, physical, counts);
  std::vector<double> place_weights;
  for (const std::int32_t place : places) place_weights.push_back(weights[static_cast<std::size_t>(place)] / counts[static_cast<std::size_t>(place)]);
  const auto width = static_cast<std::size_t>(physical / balancing.nodes);
  for (std::size_t node = 0; node < static_cast<std::size_t>(balancing.nodes); ++node) {
    const std::vector<std::int32_t> dealt = deal(std::span(places).subspan(node * width, width), std::span(place_weights).subspan(node * width, width), balancing.ranks / balancing.nodes);
    logical.insert(logical.end(), dealt.begin(), dealt.end());
  }
  return logical;
}

}  // namespace

Result<ExpertPlacement> ExpertPlacement::create(std::int64_t experts, int ranks, std::vector<std::vector<std::int32_t>> logical) {
  ExpertPlacement placement;
  placement.experts_ = experts;
  placement.ranks_ = ranks;
  placement.physical_ = logical.empty() ? experts : static_cast<std::int64_t>(logical[0].size());
  TRY(check_divides(placement.physical_, "experts, replicas included,", ranks, "ranks"));
  for (std::size_t layer = 0; layer < logical.size(); ++layer) {
    if (static_cast<std::int64_t>(logical[layer].size()) != placement.physical_)
      return fail(Code::kInvalidArgument, "layer {} of a placement has {} physical experts, layer 0 {}", layer, logical[layer].size(), placement.physical_);
    std::vector<std::int32_t> first(static_cast<std::size_t>(experts) + 1);
    for (const std::int32_t e : logical[layer]) {
      if (e < 0 || e >= experts) return fail(Code::kInvalidArgument, "layer {} of a placement names expert {} of {}", layer, e, experts);
      ++first[static_cast<std::size_t>(e) + 1];
    }
    for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
      if (first[e + 1] == 0) return fail(Code::kInvalidArgument, "layer {} of a placement has no place for expert {}", layer, e);
      first[e + 1] += first[e];
    }
    std::vector<std::int32_t> filled(first.begin(), first.end() - 1), replicas(logical[layer].size());
    for (std::size_t p = 0; p < logical[layer].size(); ++p) replicas[static_cast<std::size_t>(filled[static_cast<std::size_t>(logical[layer][p])]++)] = static_cast<std::int32_t>(p);
    placement.first_.push_back(std::move(first));
    placement.replicas_.push_back(std::move(replicas));
  }
  placement.logical_ = std::move(logical);
  return placement;
}

Result<ExpertPlacement> ExpertPlacement::initial(std::int64_t layers, std::int64_t experts, int ranks, std::int64_t redundant) {
  std::vector<std::int32_t> logical;
  for (std::int64_t p = 0; p < experts + redundant; ++p) logical.push_back(static_cast<std::int32_t>(p % experts));
  return create(experts, ranks, std::vector(static_cast<std::size_t>(layers), logical));
}

std::span<const std::int32_t> ExpertPlacement::replicas(std::int64_t layer, std::int64_t expert) const {
  const std::vector<std::int32_t>& first = first_[static_cast<std::size_t>(layer)];
  const auto e = static_cast<std::size_t>(expert);
  return std::span(replicas_[static_cast<std::size_t>(layer)]).subspan(static_cast<std::size_t>(first[e]), static_cast<std::size_t>(first[e + 1] - first[e]));
}

bool ExpertPlacement::on_rank(std::int64_t layer, std::int64_t expert, int rank) const {
  return std::ranges::any_of(replicas(layer, expert), [&](std::int32_t physical) { return rank_of(physical) == rank; });
}

Result<BalanceStrategy> parse_balance_strategy(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<BalanceStrategy>(i);
  return fail(Code::kInvalidArgument, "unknown strategy \"{}\" of placing experts; {}", name, known_names_hint(name, kNames));
}

std::string_view balance_strategy_name(BalanceStrategy strategy) { return kNames[static_cast<std::size_t>(strategy)]; }

Packed balanced_packing(std::span<const double> weights, int packs) {
  const std::size_t items = weights.size(), places = items / static_cast<std::size_t>(packs);
  Packed packed{std::vector<std::int32_t>(items), std::vector<std::int32_t>(items)};
  std::vector<std::size_t> order(items);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (places == 1) {
    std::iota(packed.pack.begin(), packed.pack.end(), 0);
    return packed;
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return weights[a] != weights[b] ? weights[a] > weights[b] : a < b; });
  std::vector<double> load(static_cast<std::size_t>(packs));
  std::vector<std::size_t> filled(static_cast<std::size_t>(packs));
  for (const std::size_t item : order) {
    std::size_t best = load.size();
    for (std::size_t pack = 0; pack < load.size(); ++pack)
      if (filled[pack] < places && (best == load.size() || load[pack] < load[best])) best = pack;
    packed.pack[item] = static_cast<std::int32_t>(best);
    packed.place[item] = static_cast<std::int32_t>(filled[best]++);
    load[best] += weights[item];
  }
  return packed;
}

std::vector<std::int32_t> replicate_experts(std::span<const double> weights, std::int64_t places, std::vector<std::int32_t>& counts) {
  std::vector<std::int32_t> item_of(weights.size());
  std::iota(item_of.begin(), item_of.end(), 0);
  counts.assign(weights.size(), 1);
  while (static_cast<std::int64_t>(item_of.size()) < places) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < weights.size(); ++i)
      if (weights[i] / counts[i] > weights[most] / counts[most]) most = i;
    item_of.push_back(static_cast<std::int32_t>(most));
    ++counts[most];
  }
  return item_of;
}

Result<ExpertPlacement> balance_experts(const ExpertLoads& loads, const Balancing& balancing) {
  const std::int64_t experts = loads.empty() ? 0 : static_cast<std::int64_t>(loads[0].size()), physical = experts + balancing.redundant;
  if (experts == 0) return fail(Code::kInvalidArgument, "there are no loads of experts to balance");
  if (balancing.redundant < 0) return fail(Code::kInvalidArgument, "{} redundant experts", balancing.redundant);
  for (std::size_t layer = 0; layer < loads.size(); ++layer) {
    if (static_cast<std::int64_t>(loads[layer].size()) != experts) return fail(Code::kInvalidArgument, "layer {} has loads of {} experts, layer 0 of {}", layer, loads[layer].size(), experts);
    for (const std::int64_t load : loads[layer])
      if (load < 0) return fail(Code::kInvalidArgument, "layer {} has a load of {}", layer, load);
  }
  const std::int64_t groups = balancing.groups == 0 ? experts : balancing.groups;
  TRY(check_divides(experts, "experts", groups, "groups"));
  TRY(check_divides(balancing.ranks, "ranks", balancing.nodes, "nodes"));
  TRY(check_divides(physical, "experts, replicas included,", balancing.ranks, "ranks"));
  BalanceStrategy strategy = balancing.strategy;
  if (strategy == BalanceStrategy::kAuto) strategy = groups % balancing.nodes == 0 ? BalanceStrategy::kHierarchical : BalanceStrategy::kGlobal;
  if (strategy == BalanceStrategy::kHierarchical) TRY(check_divides(groups, "groups of experts", balancing.nodes, "nodes"));
  if (strategy == BalanceStrategy::kIntraNode) {  // so that a node holds either experts or further replicas
    const std::int64_t node = physical / balancing.nodes;
    if (experts % node != 0 || balancing.redundant % node != 0)
      return fail(Code::kInvalidArgument, "{} places experts and replicas on nodes of their own: {} experts and {} redundant ones must both divide by the {} of a node",
                  balance_strategy_name(strategy), experts, balancing.redundant, node);
  }
  std::vector<std::vector<std::int32_t>> logical;
  for (const std::vector<std::int64_t>& layer : loads) {
    const std::vector<double> weights = weights_of(layer);
    std::vector<std::int32_t> counts;
    if (strategy == BalanceStrategy::kHierarchical) logical.push_back(hierarchical(weights, physical, groups, balancing));
    else if (strategy == BalanceStrategy::kIntraNode) logical.push_back(intra_node(weights, physical, balancing));
    else logical.push_back(replicate_experts(weights, physical, counts));
  }
  return ExpertPlacement::create(experts, balancing.ranks, std::move(logical));
}

std::vector<std::vector<double>> rank_loads(const ExpertPlacement& placement, const ExpertLoads& loads) {
  std::vector<std::vector<double>> result;
  for (std::int64_t layer = 0; layer < placement.layers(); ++layer) {
    std::vector<double>& ranks = result.emplace_back(static_cast<std::size_t>(placement.ranks()));
    for (std::int64_t e = 0; e < placement.experts(); ++e) {
      const std::span<const std::int32_t> replicas = placement.replicas(layer, e);
      const double share = static_cast<double>(loads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(e)]) / static_cast<double>(replicas.size());
      for (const std::int32_t physical : replicas) ranks[static_cast<std::size_t>(placement.rank_of(physical))] += share;
    }
  }
  return result;
}

double imbalance(std::span<const double> ranks) {
  const double sum = std::accumulate(ranks.begin(), ranks.end(), 0.0);
  return sum > 0 ? std::ranges::max(ranks) * static_cast<double>(ranks.size()) / sum : 1;
}

double imbalance(const std::vector<std::vector<double>>& layers) {
  double most = 0, mean = 0;
  for (const std::vector<double>& ranks : layers) {
    most += std::ranges::max(ranks);
    mean += std::accumulate(ranks.begin(), ranks.end(), 0.0) / static_cast<double>(ranks.size());
  }
  return mean > 0 ? most / mean : 1;
}

}  // namespace inflight::params
