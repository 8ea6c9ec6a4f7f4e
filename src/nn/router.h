// Which experts a token goes to, and with what weights. FP32 throughout; pure functions of one token's scores.
#pragma once
#include <cstdint>

namespace inflight::nn {

// How scores of experts become choices. In order: score = softmax or sigmoid of the logits; choice = score + bias; the best groups by choice; the best
// experts in them by choice (equal: the lower index); weight = score, never choice; renormalized if asked; times `scaling`.
struct Routing {
  enum class Score { kSoftmax, kSigmoid };
  enum class GroupScore { kMax, kTopTwo };  // of a group's choices: the largest (DeepSeek-V2), or the sum of the two largest (DeepSeek-V3)

  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  Score score = Score::kSoftmax;
  bool renormalize = true;           // weights of the chosen sum to one
  float least_sum = 1e-20f;          // what they are divided by at least
  float scaling = 1;
  std::int64_t groups = 1;           // equal runs of experts
  std::int64_t top_groups = 1;       // groups that stay in the running
  GroupScore group_score = GroupScore::kTopTwo;
};

// logits [experts]; bias [experts] or nullptr. chosen, weights [top_k], ascending by expert. scratch: 2 * experts floats.
// NaN logits still give top_k different experts.
void route(const Routing& routing, const float* logits, const float* bias, std::int32_t* chosen, float* weights, float* scratch);

}  // namespace inflight::nn
