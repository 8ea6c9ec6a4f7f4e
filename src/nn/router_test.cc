#include "nn/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace inflight::nn {
namespace {

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed run(Routing routing, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  routing.experts = static_cast<std::int64_t>(logits.size());
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(routing.top_k), -1), std::vector<float>(static_cast<std::size_t>(routing.top_k))};
  std::vector<float> scratch(2 * logits.size());
  route(routing, logits.data(), bias.empty() ? nullptr : bias.data(), routed.experts.data(), routed.weights.data(), scratch.data());
  return routed;
}

using testing::ElementsAre;
using testing::FloatNear;

// Values of the softmax and sigmoid routers of transformers' Qwen3-MoE and DeepSeek-V3 on these scores.
TEST(Router, SoftmaxWithAndWithoutRenormalizing) {
  EXPECT_THAT(run({.top_k = 2, .renormalize = false}, {2, 1, 0, -1}).weights, ElementsAre(FloatNear(0.6439f, 1e-4f), FloatNear(0.2369f, 1e-4f)));
  const Routed routed = run({.top_k = 2}, {2, 1, 0, -1});
  EXPECT_THAT(routed.experts, ElementsAre(0, 1));
  EXPECT_THAT(routed.weights, ElementsAre(FloatNear(0.7311f, 1e-4f), FloatNear(0.2689f, 1e-4f)));
}

TEST(Router, TheBiasChoosesButDoesNotWeigh) {
  const Routed routed = run({.top_k = 2, .score = Routing::Score::kSigmoid}, {1, 0.5, 0, -2}, {0, 0, 0, 0.7f});
  EXPECT_THAT(routed.experts, ElementsAre(0, 3));
  EXPECT_THAT(routed.weights, ElementsAre(FloatNear(0.8598f, 1e-4f), FloatNear(0.1402f, 1e-4f)));
}

TEST(Router, ScalingComesLast) {
  const Routed routed = run({.top_k = 2, .score = Routing::Score::kSigmoid, .scaling = 2.5f}, {1, 0.5, 0, -2}, {0, 0, 0, 0.7f});
  EXPECT_THAT(routed.weights, ElementsAre(FloatNear(2.5f * 0.8598f, 3e-4f), FloatNear(2.5f * 0.1402f, 3e-4f)));
}

TEST(Router, OnlyTheBestGroupsStay) {
  // Groups {0,1} {2,3} {4,5} {6,7}: by their largest, groups 0 and 3 lead; by the sum of two, groups 1 and 2.
  const std::vector<float> logits = {3, -9, 2, 2, 1.9f, 1.9f, 2.5f, -9};
  Routing routing{.top_k = 3, .groups = 4, .top_groups = 2, .group_score = Routing::GroupScore::kMax};
  EXPECT_THAT(run(routing, logits).experts, ElementsAre(0, 1, 6));
  routing.score = Routing::Score::kSigmoid;
  routing.group_score = Routing::GroupScore::kTopTwo;
  EXPECT_THAT(run(routing, logits).experts, ElementsAre(2, 3, 4));
}

// Groups that are out stay out even when every choice that is left is negative (a mask of zeros would let them back in).
TEST(Router, NegativeChoicesDoNotLetOtherGroupsIn) {
  const Routed routed = run({.top_k = 2, .score = Routing::Score::kSigmoid, .groups = 2, .top_groups = 1}, {-5, -5, -6, -6}, {-1, -1, -1, -1});
  EXPECT_THAT(routed.experts, ElementsAre(0, 1));
}

TEST(Router, EqualScoresTakeTheLowerIndex) { EXPECT_THAT(run({.top_k = 3}, {1, 1, 1, 1, 1}).experts, ElementsAre(0, 1, 2)); }

TEST(Router, NaNStillGivesDifferentExpertsAndNaNWeights) {
  const Routed routed = run({.top_k = 3}, std::vector<float>(6, std::numeric_limits<float>::quiet_NaN()));
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(routed.experts[k] >= 0 && routed.experts[k] < 6);
    if (k > 0) {
      EXPECT_GT(routed.experts[k], routed.experts[k - 1]);
    }
    EXPECT_TRUE(std::isnan(routed.weights[k]));
  }
}

}  // namespace
}  // namespace inflight::nn
