#include "nn/sparse_mlp.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "params/expert_placement.h"

namespace inflight::nn {
namespace {

constexpr std::int64_t kTokenGrain = 16;  // tokens that a worker routes and converts at a time; int8 activation tiles ask for multiples of 16

using params::ParamSpec;
using params::Role;
using params::Split;

// All experts in one tensor: where expert e's piece of `rows` outputs from `first` on lies. `transposed` says whether the tensor is [E, inputs, outputs].
params::Source stacked(const std::string& tensor, bool transposed, std::int64_t experts, std::int64_t outputs, std::int64_t inputs, std::int64_t e, std::int64_t first) {
  if (transposed) return {.tensor = tensor, .shape = {experts, inputs, outputs}, .first_output = first, .first_input = e * inputs};
  return {.tensor = tensor, .shape = {experts, outputs, inputs}, .first_output = e * outputs + first};
}

}  // namespace

SparseMlp::SparseMlp(const Scope& scope, const SparseMlpSizes& c, std::int64_t layer)
    : sizes_(c),
      layer_(layer),
      store_(scope.store()),
      router_(scope.declare({.name = "gate", .role = Role::kRouter, .pieces = {{"gate", c.routing.experts}}, .inputs = c.hidden})) {
  const std::int64_t experts = c.routing.experts;
  const Scope stack = scope.at("experts");
  const bool fused = stack.has_tensor("gate_up_proj");
  // [E, hidden, 2 * intermediate], unless both readings have the same shape.
  const bool up_transposed = fused && stack.has_shape("gate_up_proj", {experts, c.hidden, 2 * c.intermediate}) && c.hidden != 2 * c.intermediate;
  const bool down_transposed = fused && (up_transposed || (stack.has_shape("down_proj", {experts, c.intermediate, c.hidden}) && c.hidden != c.intermediate));
  for (std::int64_t e = 0; e < experts; ++e) {
    const Scope one = scope.at("experts", e);
    ParamSpec up_gate{.name = "up_gate_proj", .role = Role::kExpert, .split = Split::kOutputs, .pieces = {{"gate_proj", c.intermediate}, {"up_proj", c.intermediate}},
                      .inputs = c.hidden, .expert = e, .experts = experts, .layer = layer};
    ParamSpec down{.name = "down_proj", .role = Role::kExpert, .split = Split::kInputs, .pieces = {{"down_proj", c.hidden}}, .inputs = c.intermediate, .expert = e, .experts = experts, .layer = layer};
    if (fused) {
      up_gate.transposed = up_transposed;
      down.transposed = down_transposed;
      for (std::size_t piece = 0; piece < 2; ++piece)
        up_gate.pieces[piece].source = stacked(stack.full("gate_up_proj"), up_transposed, experts, 2 * c.intermediate, c.hidden, e, static_cast<std::int64_t>(piece) * c.intermediate);
      down.pieces[0].source = stacked(stack.full("down_proj"), down_transposed, experts, c.hidden, c.intermediate, e, 0);
    }
    up_gate_.push_back(one.declare(std::move(up_gate)));
    down_.push_back(one.declare(std::move(down)));
  }
  first_ = std::ranges::find_if(up_gate_, [&](std::size_t row) { return scope.holds(row); }) - up_gate_.begin();
  count_ = std::ranges::count_if(up_gate_, [&](std::size_t row) { return scope.holds(row); });
  sizes_.intermediate = scope.topology().expert_share(c.intermediate);
  for (const std::string_view owner : {"gate", "moe_statics"}) {
    const std::string tensor = std::string(owner) + ".e_score_correction_bias";
    if (!scope.has_tensor(tensor)) continue;
    if (c.use_bias) bias_ = static_cast<std::int64_t>(scope.declare({.name = std::string(owner), .role = Role::kVector, .pieces = {{std::string(owner), experts}}, .suffix = "e_score_correction_bias"}));
    else scope.ignore(tensor, "config.json says that this model is not routed by a correction bias");
  }
  if (c.shared_intermediate > 0) {
    shared_.emplace(scope.at(c.shared_name), c.hidden, c.shared_intermediate);
    if (c.shared_gate)
      shared_gate_ = static_cast<std::int64_t>(scope.declare({.name = c.shared_name + "_gate", .role = Role::kRouter, .pieces = {{c.shared_name + "_gate", 1}}, .inputs = c.hidden}));
  }
}

void SparseMlp::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const {
  Runtime& rt = pass.runtime;
  if (shared_ && pass.tokens > 0) shared_->part(pass, x, ldx, y, ldy);
  // Tokens of either arithmetic are sorted by expert among themselves.
  const Part decode{.decode = true, .tokens = pass.decode, .x = x, .ldx = ldx, .y = y, .ldy = ldy};
  const Part prefill{.decode = false, .tokens = pass.tokens - pass.decode, .x = x + pass.decode * ldx, .ldx = ldx, .y = y + pass.decode * ldy, .ldy = ldy};
  for (const Part& part : {decode, prefill}) {
    if (rt.expert_ranks) exchange(rt, part);
    else if (part.tokens > 0) run_experts(rt, part);
  }
  if (pass.tokens > 0) sum_over_ranks(pass, y, ldy);
}

quant::ExpertArithmetic SparseMlp::arithmetic_of(const Runtime& rt, const Part& part) const {
  return {.kernels = rt.kernels, .compute = rt.compute, .decode = part.decode, .like = &store_->matrix(up_gate_[static_cast<std::size_t>(first_)])};
}

SparseMlp::Choices SparseMlp::route_tokens(Runtime& rt, const Part& part, std::int64_t first, std::int64_t last, const quant::ExpertArithmetic* arithmetic, std::byte* converted) const {
  const Routing& routing = sizes_.routing;
  const std::int64_t experts = routing.experts, top_k = routing.top_k, tokens = last - first;
  const auto product = [&](const quant::Matrix& w, std::int64_t begin, std::int64_t end, float* out, std::int64_t stride) {
    quant::multiply_panels(w, quant::Arithmetic::kFp32, *rt.kernels, part.x + begin * part.ldx, part.ldx, end - begin, 0, w.panels(), out, stride, nullptr);
  };
  const quant::Matrix& router = store_->matrix(router_);
  const float* bias = bias_ >= 0 ? store_->vector(static_cast<std::size_t>(bias_)) : nullptr;
  const std::int64_t ldl = padded(experts), ldg = padded(1);
  float* logits = rt.workspace.floats(tokens * ldl);
  float* open = rt.workspace.floats(part.tokens * ldg);
  const Choices choices{.chosen = reinterpret_cast<std::int32_t*>(rt.workspace.floats(tokens * top_k)), .weights = rt.workspace.floats(tokens * top_k)};
  float* scratch = rt.workspace.floats(2 * experts * rt.pool->threads());
  // A region of tokens where every worker gets some; few tokens share the router's panels.
  const bool by_tokens = tokens >= kTokenGrain * rt.pool->threads();
  if (!by_tokens && tokens > 0) quant::apply(router, quant::Arithmetic::kFp32, *rt.kernels, *rt.pool, part.x + first * part.ldx, part.ldx, tokens, logits, ldl, nullptr);
  rt.pool->parallel_for(part.tokens, kTokenGrain, [&](int worker, std::int64_t begin, std::int64_t end) {
    const std::int64_t from = std::clamp(begin, first, last), to = std::clamp(end, first, last);
    if (by_tokens && from < to) product(router, from, to, logits + (from - first) * ldl, ldl);
    if (shared_gate_ >= 0) product(store_->matrix(static_cast<std::size_t>(shared_gate_)), begin, end, open + begin * ldg, ldg);
    for (std::int64_t t = from - first; t < to - first; ++t) route(routing, logits + t * ldl, bias, choices.chosen + t * top_k, choices.weights + t * top_k, scratch + worker * 2 * experts);
    for (std::int64_t t = begin; t < end; ++t) {
      if (!shared_) std::fill_n(part.y + t * part.ldy, sizes_.hidden, 0.0f);
      if (shared_gate_ < 0) continue;
      const float factor = 1 / (1 + std::exp(-open[t * ldg]));
      for (std::int64_t i = 0; i < sizes_.hidden; ++i) part.y[t * part.ldy + i] *= factor;
    }
    if (converted) arithmetic->convert(part.x, part.ldx, begin, end, converted);
  });
  if (rt.expert_tokens)
    for (std::int64_t s = 0; s < tokens * top_k; ++s) ++(*rt.expert_tokens)[static_cast<std::size_t>(layer_)][static_cast<std::size_t>(choices.chosen[s])];
  if (rt.placement) {
    for (std::int64_t s = 0; s < tokens * top_k; ++s) {
      std::int32_t& expert = choices.chosen[s];
      expert = replica_of(*rt.placement, layer_, expert, logits[s / top_k * ldl + expert]);
    }
  }
  return choices;
}

// The token's own score of the expert decides, so that a token goes to the same replica whatever tokens are beside it, and all ranks agree without a word.
std::int32_t SparseMlp::replica_of(const params::ExpertPlacement& placement, std::int64_t layer, std::int32_t expert, float score) {
  const std::span<const std::int32_t> replicas = placement.replicas(layer, expert);
  return replicas[(std::bit_cast<std::uint32_t>(score) * std::uint64_t{0x9e3779b97f4a7c15} >> 32) % replicas.size()];
}

void SparseMlp::localize(const Runtime& rt, int rank, std::int32_t* chosen, std::int64_t count) const {
  for (std::int64_t s = 0; s < count; ++s) {
    if (chosen[s] < 0) continue;
    if (!rt.placement) chosen[s] = is_local(chosen[s]) ? chosen[s] : -1;
    else chosen[s] = rt.placement->rank_of(chosen[s]) == rank ? rt.placement->logical()[static_cast<std::size_t>(layer_)][static_cast<std::size_t>(chosen[s])] : -1;
  }
}

void SparseMlp::run_experts(Runtime& rt, const Part& part) const {
  const quant::ExpertArithmetic arithmetic = arithmetic_of(rt, part);
  std::byte* converted = rt.workspace.bytes(arithmetic.converted_bytes(part.tokens));
  const Choices choices = route_tokens(rt, part, 0, part.tokens, &arithmetic, converted);
  const std::int64_t top_k = sizes_.routing.top_k;
  std::vector<std::int64_t> all;  // rows of each expert on any rank, for the observer
  if (rt.observer) {
    all.resize(static_cast<std::size_t>(sizes_.routing.experts));
    for (std::int64_t s = 0; s < part.tokens * top_k; ++s) ++all[static_cast<std::size_t>(choices.chosen[s])];
  }
  if (rt.tensor_ranks) localize(rt, rt.tensor_ranks->rank(), choices.chosen, part.tokens * top_k);
  compute(rt, arithmetic, converted, {.x = part.x, .ldx = part.ldx, .tokens = part.tokens, .chosen = choices.chosen, .weights = choices.weights}, part.y, part.ldy, all);
}

quant::GatherActivated SparseMlp::gather_over_ranks(Runtime& rt) {
  if (!rt.tensor_ranks) return {};
  return [&rt](const float* activated, std::int64_t ld, std::int64_t rows, std::int64_t columns) -> quant::WholeRows {
    return {gather_parts(rt, activated, ld, rows, columns), columns * rt.tensor_ranks->size()};
  };
}

void SparseMlp::compute(Runtime& rt, const quant::ExpertArithmetic& arithmetic, const std::byte* converted, const ExpertTokens& tokens, float* y, std::int64_t ldy, std::span<const std::int64_t> all) const {
  const std::int64_t experts = sizes_.routing.experts, top_k = sizes_.routing.top_k, rows = tokens.tokens * top_k;
  const auto up_gate = [&](std::int64_t e) { return &store_->matrix(up_gate_[static_cast<std::size_t>(e)]); };
  const auto down = [&](std::int64_t e) { return &store_->matrix(down_[static_cast<std::size_t>(e)]); };
  const auto integers = [&](std::int64_t n) { return reinterpret_cast<std::int32_t*>(rt.workspace.floats(n)); };
  // Counting sort: the rows of an expert lie together, in token order. Those of other ranks are left out.
  std::int32_t* first = integers(experts + 1);
  std::fill_n(first, experts + 1, 0);
  for (std::int64_t s = 0; s < rows; ++s)
    if (tokens.chosen[s] >= 0) ++first[tokens.chosen[s] + 1];
  std::int64_t used = 0;  // experts
  for (std::int64_t e = 0; e < experts; ++e) {
    used += first[e + 1] > 0;
    first[e + 1] += first[e];
  }
  const std::int64_t local_rows = first[experts];
  if (rt.expert_rows) (*rt.expert_rows)[static_cast<std::size_t>(layer_)] += local_rows;
  std::int32_t* filled = integers(experts);
  std::int32_t* token_of = integers(local_rows);
  float* weight_of = rt.workspace.floats(local_rows);
  std::copy_n(first, experts, filled);
  for (std::int64_t s = 0; s < rows; ++s) {
    if (tokens.chosen[s] < 0) continue;
    const std::int32_t row = filled[tokens.chosen[s]]++;
    token_of[row] = static_cast<std::int32_t>(s / top_k);
    weight_of[row] = tokens.weights[s];
  }
  auto* groups = reinterpret_cast<quant::ExpertRows*>(rt.workspace.bytes(static_cast<std::size_t>(used + local_rows / quant::kMostGroupRows) * sizeof(quant::ExpertRows)));
  std::size_t count = 0;
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t row = first[e]; row < first[e + 1]; row += quant::kMostGroupRows)
      groups[count++] = {up_gate(e), down(e), row, std::min<std::int64_t>(first[e + 1] - row, quant::kMostGroupRows)};
  const quant::Routed routed{.x = tokens.x, .ldx = tokens.ldx, .tokens = tokens.tokens, .token_of = token_of, .weight_of = weight_of, .y = y, .ldy = ldy};
  const auto take = [&rt](std::size_t bytes) { return rt.workspace.bytes(bytes); };
  const quant::GatherActivated gather = gather_over_ranks(rt);
  if (!rt.observer || all.empty()) return quant::apply_experts({groups, count}, arithmetic, routed, converted, *rt.pool, take, {}, gather);
  rt.observer->see(up_gate_[0], Observer::Place::kInput, tokens.x, tokens.ldx, tokens.tokens, sizes_.hidden);
  float* seen = rt.workspace.floats(rows * sizes_.intermediate);  // of local rows; others' pass through it
  quant::apply_experts({groups, count}, arithmetic, routed, converted, *rt.pool, take, [&](std::size_t group, const float* activated, std::int64_t ld) {
    for (std::int64_t r = 0; r < groups[group].count; ++r) std::copy_n(activated + r * ld, sizes_.intermediate, seen + (groups[group].first + r) * sizes_.intermediate);
  }, gather);
  for (std::int64_t e = 0; e < experts; ++e)
    show_activated(rt, e, seen + (is_local(e) ? first[e] : local_rows) * sizes_.intermediate, all[static_cast<std::size_t>(e)]);
  force_experts(rt, arithmetic, tokens.tokens, tokens.x, tokens.ldx, converted);
}

// Ranks of one group have the same tokens, of which each sends an equal share; the sum over them that ends the block brings the shares together.
void SparseMlp::exchange(Runtime& rt, const Part& part) const {
  const std::int64_t rank = rt.expert_ranks->rank(), ranks = rt.expert_ranks->size() / static_cast<std::int64_t>(rt.group_tokens.size());  // of a group
  const auto share = [&](std::int64_t n, std::int64_t i) { return n * i / ranks; };
  std::int64_t total = 0, most = 0;
  for (const Runtime::GroupTokens& group : rt.group_tokens) {
    const std::int64_t n = part.decode ? group.decode : group.prefill;
    total += n;
    for (std::int64_t i = 0; i < ranks; ++i) most = std::max(most, share(n, i + 1) - share(n, i));
  }
  if (total == 0) return;  // on no rank
  const std::int64_t first = share(part.tokens, rank % ranks), last = share(part.tokens, rank % ranks + 1);
  const std::size_t mark = rt.workspace.mark();
  const Choices choices = route_tokens(rt, part, first, last, nullptr, nullptr);
  const ExpertTokens mine{.x = part.x + first * part.ldx, .ldx = part.ldx, .tokens = last - first, .chosen = choices.chosen, .weights = choices.weights};
  const std::int64_t physical = rt.placement ? rt.placement->physical() : sizes_.routing.experts;
  const ExchangeSizes sizes{.hidden = sizes_.hidden, .top_k = sizes_.routing.top_k, .rank_experts = physical / rt.expert_ranks->size()};
  const auto compute_theirs = [&](const ExpertTokens& theirs, float* sums, std::int64_t ld) {
    const quant::ExpertArithmetic arithmetic = arithmetic_of(rt, part);
    std::byte* converted = rt.workspace.bytes(arithmetic.converted_bytes(theirs.tokens));
    rt.pool->parallel_for(theirs.tokens, kTokenGrain, [&](std::int64_t begin, std::int64_t end) { arithmetic.convert(theirs.x, theirs.ldx, begin, end, converted); });
    localize(rt, static_cast<int>(rank), theirs.chosen, theirs.tokens * sizes.top_k);
    compute(rt, arithmetic, converted, theirs, sums, ld, {});
  };
  float* y = part.y + first * part.ldy;
  const bool gather = rt.travel == Runtime::Travel::kMeasured ? gather_pays(rt.expert_ranks->size(), sizes.top_k) : rt.travel == Runtime::Travel::kToAll;
  if (gather) exchange_all_gather(rt, sizes, mine, most, compute_theirs, y, part.ldy);
  else exchange_all_to_all(rt, sizes, mine, compute_theirs, y, part.ldy);
  rt.workspace.rewind(mark);
}

void SparseMlp::show_activated(Runtime& rt, std::int64_t expert, float* activated, std::int64_t rows) const {
  if (rows == 0) return;
  const std::size_t row = down_[static_cast<std::size_t>(expert)];
  const bool whole = count_ < sizes_.routing.experts;  // experts are dealt out: one rank has all of it
  if (!whole) return show_parts(rt, row, Observer::Place::kInput, activated, sizes_.intermediate, rows, sizes_.intermediate);
  rt.tensor_ranks->broadcast(activated, rows * sizes_.intermediate * static_cast<std::int64_t>(sizeof(float)), static_cast<int>(expert / count_));
  rt.observer->see(row, Observer::Place::kInput, activated, sizes_.intermediate, rows, sizes_.intermediate);
}

void SparseMlp::force_experts(Runtime& rt, const quant::ExpertArithmetic& arithmetic, std::int64_t tokens, const float* x, std::int64_t ldx, const std::byte* converted) const {
  // The first rank's observer speaks for all.
  const std::span<const std::int32_t> wanted = rt.observer->forced_experts(layer_);
  std::vector<std::int32_t> forced(wanted.begin(), wanted.end());
  if (rt.tensor_ranks) {
    auto n = static_cast<std::int64_t>(forced.size());
    rt.tensor_ranks->broadcast(&n, sizeof n, 0);
    if (rt.tensor_ranks->error()) return;
    forced.resize(static_cast<std::size_t>(n));
    rt.tensor_ranks->broadcast(forced.data(), n * static_cast<std::int64_t>(sizeof(std::int32_t)), 0);
    if (rt.tensor_ranks->error()) return;
  }
  if (forced.empty()) return;
  const std::int64_t ldy = padded(sizes_.hidden);
  auto* token_of = reinterpret_cast<std::int32_t*>(rt.workspace.floats(tokens));
  float* weight_of = rt.workspace.floats(tokens);
  float* dropped = rt.workspace.floats(tokens * ldy);
  float* seen = rt.workspace.floats(tokens * sizes_.intermediate);
  for (std::int64_t t = 0; t < tokens; ++t) token_of[t] = static_cast<std::int32_t>(t);
  std::fill_n(weight_of, tokens, 0.0f);
  std::fill_n(dropped, tokens * ldy, 0.0f);
  const quant::Routed routed{.x = x, .ldx = ldx, .tokens = tokens, .token_of = token_of, .weight_of = weight_of, .y = dropped, .ldy = ldy};
  std::vector<quant::ExpertRows> groups;
  for (const std::int32_t e : forced) {
    const auto expert = static_cast<std::size_t>(e);
    groups.clear();
    for (std::int64_t row = 0; is_local(e) && row < tokens; row += quant::kMostGroupRows)
      groups.push_back({&store_->matrix(up_gate_[expert]), &store_->matrix(down_[expert]), row, std::min(tokens - row, quant::kMostGroupRows)});
    const std::size_t mark = rt.workspace.mark();
    quant::apply_experts(groups, arithmetic, routed, converted, *rt.pool, [&rt](std::size_t bytes) { return rt.workspace.bytes(bytes); },
                         [&](std::size_t group, const float* activated, std::int64_t ld) {
                           for (std::int64_t r = 0; r < groups[group].count; ++r) std::copy_n(activated + r * ld, sizes_.intermediate, seen + (groups[group].first + r) * sizes_.intermediate);
                         }, gather_over_ranks(rt));
    show_activated(rt, e, seen, tokens);
    rt.workspace.rewind(mark);
  }
}

}  // namespace inflight::nn
