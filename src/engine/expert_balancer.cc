#include "engine/expert_balancer.h"

#include <algorithm>

#include "engine/ranks.h"

namespace inflight::engine {
namespace {

// A layer moves when its heaviest rank gets lighter by at least this part: loads differ a little from one time to the next, and experts should not move for that.
constexpr double kLeastGain = 0.02;

// Hosts that experts are dealt to before their ranks: 1 where experts or replicas do not divide over them.
int nodes_for(const comm::Comm& ranks, const params::ExpertPlacement& placement) {
  const int hosts = ranks.equal_hosts();
  return placement.experts() % hosts == 0 && placement.physical() % hosts == 0 ? hosts : 1;
}

}  // namespace

Result<ExpertBalancer::Next> ExpertBalancer::next() {
  OpenedModel& opened = *opened_;
  if (!opened.runtime->placement || !opened.leader)
    return fail(Code::kInvalidArgument, "experts can only be placed anew on several ranks with --enable-eplb, and --enable-expert-parallel or --data-parallel-size");
  collect_expert_tokens(opened);
  const params::ExpertPlacement& now = *opened.runtime->placement;
  const params::ExpertLoads all = *opened.runtime->expert_tokens;
  params::ExpertLoads loads = all;
  std::int64_t sum = 0;
  for (std::size_t layer = 0; layer < loads.size(); ++layer)
    for (std::size_t e = 0; e < loads[layer].size(); ++e) sum += loads[layer][e] -= counted_.empty() ? 0 : counted_[layer][e];
  if (sum == 0) return fail(Code::kInvalidArgument, "no token has been routed since experts were placed: there is nothing to balance by");
  counted_ = all;
  const params::ExpertPlacement best = TRY(params::balance_experts(loads, {.ranks = now.ranks(), .nodes = nodes_for(*opened.ranks, now), .redundant = now.physical() - now.experts()}));
  const auto heavy = params::rank_loads(now, loads), light = params::rank_loads(best, loads);
  Next next{.placement = nullptr, .promised = {.before = params::imbalance(heavy)}};
  std::vector<std::vector<std::int32_t>> logical = now.logical();
  for (std::size_t layer = 0; layer < loads.size(); ++layer) {
    const double most = std::ranges::max(heavy[layer]);  // 0: no token came, or the layer has no experts
    if (most == 0 || std::ranges::max(light[layer]) > (1 - kLeastGain) * most || logical[layer] == best.logical()[layer]) continue;
    logical[layer] = best.logical()[layer];
    ++next.promised.layers;
  }
  auto placement = std::make_shared<const params::ExpertPlacement>(TRY(params::ExpertPlacement::create(now.experts(), now.ranks(), std::move(logical))));
  next.promised.after = params::imbalance(params::rank_loads(*placement, loads));
  if (next.promised.layers > 0) next.placement = std::move(placement);
  return next;
}

Result<Rebalanced> ExpertBalancer::rebalance() {
  if (promised_) {  // one is under way: it ends first
    promised_.reset();
    TRY(finish_expert_move(*opened_, /*wait=*/true));
  }
  Next next = TRY(this->next());
  steps_ = 0;
  if (!next.placement) return next.promised;
  begin_expert_move(*opened_, std::move(next.placement));
  TRY(finish_expert_move(*opened_, /*wait=*/true));
  return next.promised;
}

void ExpertBalancer::step() {
  if (promised_) {
    const Result<bool> over = finish_expert_move(*opened_, /*wait=*/false);
    if (over && !*over) return;
    last_ = over ? Result<Rebalanced>(*promised_) : std::unexpected(over.error());
    promised_.reset();
  }
  if (interval_ == 0 || ++steps_ < interval_ || !opened_->runtime->placement || !opened_->leader) return;
  steps_ = 0;
  auto next = this->next();
  if (!next || !next->placement) return;  // no load, or nothing to gain
  promised_ = next->promised;
  begin_expert_move(*opened_, std::move(next->placement));
}

}  // namespace inflight::engine
