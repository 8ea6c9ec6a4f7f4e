#include "cli/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace inflight::cli {
namespace {

double log_sum_exp(const float* x, std::int64_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

std::int32_t largest_of(const float* x, std::int64_t n) { return static_cast<std::int32_t>(std::max_element(x, x + n) - x); }

bool worse(const WorstToken& a, const WorstToken& b) {
  if (a.score.kl != b.score.kl) return a.score.kl > b.score.kl;
  if (a.window != b.window) return a.window < b.window;
  return a.position < b.position;
}

}  // namespace

RowScore score_row(const float* logits, const float* reference, std::int64_t vocabulary, std::int32_t target) {
  RowScore score;
  const double total = log_sum_exp(logits, vocabulary);
  score.nats = total - logits[target];
  score.top = largest_of(logits, vocabulary);
  score.top_p = std::exp(logits[score.top] - total);
  if (!reference) return score;
  const double reference_total = log_sum_exp(reference, vocabulary);
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    const double log_p = reference[i] - reference_total;
    score.kl += std::exp(log_p) * (log_p - (logits[i] - total));
  }
  score.reference_nats = reference_total - reference[target];
  score.reference_top = largest_of(reference, vocabulary);
  score.reference_top_p = std::exp(reference[score.reference_top] - reference_total);
  score.same_top = score.top == score.reference_top;
  return score;
}

double percentile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const double low = values[below], high = values[std::min(below + 1, values.size() - 1)];
  return low + (high - low) * (at - std::floor(at));
}

void WorstTokens::add(const WorstToken& token) {
  if (!(token.score.kl > 0) || limit_ == 0) return;
  if (heap_.size() == limit_) {
    if (!worse(token, heap_.front())) return;
    std::ranges::pop_heap(heap_, worse);
    heap_.pop_back();
  }
  heap_.push_back(token);
  std::ranges::push_heap(heap_, worse);
}

std::vector<WorstToken> WorstTokens::sorted() const {
  std::vector<WorstToken> tokens = heap_;
  std::ranges::sort(tokens, worse);
  return tokens;
}

void Noise::add(const float* x, const float* reference, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double r = reference[i], difference = r - x[i];
    signal += r * r;
    noise += difference * difference;
  }
}

double Noise::decibels() const { return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise); }

}  // namespace inflight::cli
