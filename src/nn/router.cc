#include "nn/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace inflight::nn {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

// The index of the largest of x[0, n) that is not taken yet, or of the first one left when none compares.
std::int64_t take_largest(float* x, std::int64_t n, const std::int32_t* taken, std::int64_t count) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < n; ++i) {
    if (best >= 0 && !(x[i] > x[best])) continue;
    if (std::find(taken, taken + count, static_cast<std::int32_t>(i)) == taken + count) best = i;
  }
  return best;
}

float group_score(const float* choice, std::int64_t n, Routing::GroupScore kind) {
  float first = kOut, second = kOut;
  for (std::int64_t i = 0; i < n; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return kind == Routing::GroupScore::kMax || n < 2 ? first : first + second;
}

}  // namespace

void route(const Routing& r, const float* logits, const float* bias, std::int32_t* chosen, float* weights, float* scratch) {
  float* score = scratch;
  float* choice = scratch + r.experts;
  if (r.score == Routing::Score::kSoftmax) {
    const float most = *std::max_element(logits, logits + r.experts);
    float sum = 0;
    for (std::int64_t e = 0; e < r.experts; ++e) sum += score[e] = std::exp(logits[e] - most);
    for (std::int64_t e = 0; e < r.experts; ++e) score[e] /= sum;
  } else {
    for (std::int64_t e = 0; e < r.experts; ++e) score[e] = 1 / (1 + std::exp(-logits[e]));
  }
  for (std::int64_t e = 0; e < r.experts; ++e) choice[e] = score[e] + (bias ? bias[e] : 0);

  if (r.top_groups < r.groups) {
    const std::int64_t width = r.experts / r.groups;
    const auto worst_left = [&] {  // groups that are out have no choice above minus infinity
      std::int64_t worst = 0;
      float least = std::numeric_limits<float>::infinity();
      for (std::int64_t g = 0; g < r.groups; ++g) {
        const float value = group_score(choice + g * width, width, r.group_score);
        if (value > kOut && value <= least) {  // of equal groups the later one goes
          least = value;
          worst = g;
        }
      }
      return worst;
    };
    for (std::int64_t out = r.top_groups; out < r.groups; ++out) {
      const std::int64_t worst = worst_left();
      std::fill(choice + worst * width, choice + (worst + 1) * width, kOut);
    }
  }
  for (std::int64_t k = 0; k < r.top_k; ++k) chosen[k] = static_cast<std::int32_t>(take_largest(choice, r.experts, chosen, k));
  std::sort(chosen, chosen + r.top_k);

  float sum = 0;
  for (std::int64_t k = 0; k < r.top_k; ++k) sum += weights[k] = score[chosen[k]];
  if (r.renormalize)
    for (std::int64_t k = 0; k < r.top_k; ++k) weights[k] /= std::max(sum, r.least_sum);
  for (std::int64_t k = 0; k < r.top_k; ++k) weights[k] *= r.scaling;
}

}  // namespace inflight::nn
