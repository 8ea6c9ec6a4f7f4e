// Where the experts of each layer are: every expert has one or more physical ones (replicas), and the physical experts are dealt to the expert-parallel ranks in
// equal runs. And how a placement follows from the experts' loads (EPLB, the algorithm published for DeepSeek-V3).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace inflight::params {

using ExpertLoads = std::vector<std::vector<std::int64_t>>;  // [layers][experts]: tokens that were routed to each

class ExpertPlacement {
 public:
  // logical [layers][physical]: the expert that each physical one is a replica of. An error says what does not hold: each expert is there in each layer, ids are below
  // `experts`, layers are alike, and the physical experts divide over the ranks.
  static Result<ExpertPlacement> create(std::int64_t experts, int ranks, std::vector<std::vector<std::int32_t>> logical);
  // One physical expert for each, in order, then `redundant` replicas of experts 0, 1, 2, ...: what is there before loads are known.
  static Result<ExpertPlacement> initial(std::int64_t layers, std::int64_t experts, int ranks, std::int64_t redundant);

  std::int64_t layers() const { return static_cast<std::int64_t>(logical_.size()); }
  std::int64_t experts() const { return experts_; }
  std::int64_t physical() const { return physical_; }
  int ranks() const { return ranks_; }
  const std::vector<std::vector<std::int32_t>>& logical() const { return logical_; }
  // The physical experts of one expert, ascending.
  std::span<const std::int32_t> replicas(std::int64_t layer, std::int64_t expert) const;
  int rank_of(std::int64_t physical) const { return static_cast<int>(physical / (physical_ / ranks_)); }
  bool on_rank(std::int64_t layer, std::int64_t expert, int rank) const;

  bool operator==(const ExpertPlacement& other) const { return experts_ == other.experts_ && ranks_ == other.ranks_ && logical_ == other.logical_; }

 private:
  ExpertPlacement() = default;
  std::int64_t experts_ = 0, physical_ = 0;
  int ranks_ = 1;
  std::vector<std::vector<std::int32_t>> logical_;   // [layers][physical]
  std::vector<std::vector<std::int32_t>> replicas_;  // [layers][physical]: those of expert 0, then of expert 1, ...
  std::vector<std::vector<std::int32_t>> first_;     // [layers][experts + 1]: where an expert's replicas begin
};

enum class BalanceStrategy {
  kAuto,          // hierarchical where groups divide over nodes, else global
  kHierarchical,  // groups of experts to nodes, replicas within each node, then replicas to its ranks
  kGlobal,        // replicas alone: they follow the experts in the order in which they were made, and ranks take them in runs
  kIntraNode,     // replicas over all, then those that fall on each node to its ranks: experts keep their node
};
Result<BalanceStrategy> parse_balance_strategy(std::string_view name);  // auto, hierarchical, global, balance_intra_node
std::string_view balance_strategy_name(BalanceStrategy strategy);

struct Balancing {
  int ranks = 1;
  int nodes = 1;                // of equal numbers of ranks
  std::int64_t redundant = 0;   // physical experts beside one of each
  std::int64_t groups = 0;      // of experts that stay on one node (expert groups of the router); 0: each expert by itself
  BalanceStrategy strategy = BalanceStrategy::kAuto;
};

// A function of its arguments alone: of equal loads the lower index goes first, of equally loaded ranks too. A layer without any load is placed as if its experts had equal ones.
// kInvalidArgument names the numbers that do not divide.
Result<ExpertPlacement> balance_experts(const ExpertLoads& loads, const Balancing& balancing);

// [layers][ranks]: the load of every rank, where an expert's is shared evenly by its replicas.
std::vector<std::vector<double>> rank_loads(const ExpertPlacement& placement, const ExpertLoads& loads);

// The heaviest rank over the mean of the ranks; 1 where there is no load.
double imbalance(std::span<const double> ranks);
// Of layers that run one after another, each as long as its heaviest rank needs: the sum of the heaviest over the sum of the means.
double imbalance(const std::vector<std::vector<double>>& layers);

// The steps, for one layer or one node of it, as the tests take them apart.
struct Packed {
  std::vector<std::int32_t> pack, place;  // of each item: which pack, and which place in it
};
// Items by falling weight, each to the least loaded pack that has a place left: items / packs in each. As many packs as items: each its own.
Packed balanced_packing(std::span<const double> weights, int packs);
// The items in order, then for each further place the item whose weight per replica is the largest. counts: replicas of each.
std::vector<std::int32_t> replicate_experts(std::span<const double> weights, std::int64_t places, std::vector<std::int32_t>& counts);

}  // namespace inflight::params
