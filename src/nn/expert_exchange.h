// How tokens travel to the ranks that hold their experts, and what these give back, where ranks have tokens of their own (data-parallel attention).
// Two ways with the same sums: tokens go to the ranks that are asked for (all-to-all), or all tokens go to all ranks, which then share out the sums
// (all-gather and reduce-scatter): fewer calls, but more bytes.
#pragma once
#include <cstdint>
#include <functional>

#include "nn/runtime.h"

namespace inflight::nn {

// Tokens, and the physical experts (params::ExpertPlacement) that each goes to. Everything belongs to the workspace.
struct ExpertTokens {
  const float* x = nullptr;              // [tokens, ldx]
  std::int64_t ldx = 0;
  std::int64_t tokens = 0;
  std::int32_t* chosen = nullptr;        // [tokens, top_k]; -1: that choice is another rank's
  const float* weights = nullptr;        // [tokens, top_k]
};

// Adds what this rank's experts give to y [tokens, ldy].
using ComputeExperts = std::function<void(const ExpertTokens& tokens, float* y, std::int64_t ldy)>;

struct ExchangeSizes {
  std::int64_t hidden = 0;
  std::int64_t top_k = 0;
  std::int64_t rank_experts = 0;  // physical experts of a rank: rank r has [r * rank_experts, (r + 1) * rank_experts)
};

// Which way is less work. A token with k of so many experts reaches ranks * (1 - (1 - 1/ranks)^k) ranks; a copy on the way to some of them costs about twice what one to all
// does. Measured with ranks that share a host's memory (two cores, hidden 2048, 8 of 128 experts, 1 to 1024 tokens): all-gather takes 0.5 to 1.2 times as long on 2, 4 and 8
// ranks (1.6 for one token on 4; a token reaches 2.0, 3.6, 5.3 of them), 0.7 to 2.9 times on 16 (6.5), where all-to-all wins at 9 of 11 counts. How many tokens there are decides little.
bool gather_pays(std::int64_t ranks, std::int64_t top_k);

// A collective of rt.expert_ranks: y [tokens, ldy] of `mine` gets what all its experts give, added rank after rank. A rank may have no tokens.
// After a failure of the group y is unspecified.
void exchange_all_to_all(Runtime& rt, const ExchangeSizes& sizes, const ExpertTokens& mine, const ComputeExperts& compute, float* y, std::int64_t ldy);
// most: the tokens of the rank that has most; the same number on all ranks.
void exchange_all_gather(Runtime& rt, const ExchangeSizes& sizes, const ExpertTokens& mine, std::int64_t most, const ComputeExperts& compute, float* y, std::int64_t ldy);

}  // namespace inflight::nn
