#include "cli/divergence.h"

#include <algorithm>
#include <cmath>

namespace inflight::cli {
namespace {

double log_sum_exp(const float* x, std::int64_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

}  // namespace

RowScore score_row(const float* logits, const float* reference, std::int64_t vocabulary, std::int32_t target) {
  RowScore score;
  const double total = log_sum_exp(logits, vocabulary);
  score.nats = total - logits[target];
  if (!reference) return score;
  const double reference_total = log_sum_exp(reference, vocabulary);
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    const double log_p = reference[i] - reference_total;
    score.kl += std::exp(log_p) * (log_p - (logits[i] - total));
  }
  score.same_top = std::max_element(logits, logits + vocabulary) - logits == std::max_element(reference, reference + vocabulary) - reference;
  return score;
}

double percentile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const double low = values[below], high = values[std::min(below + 1, values.size() - 1)];
  return low + (high - low) * (at - std::floor(at));
}

}  // namespace inflight::cli
