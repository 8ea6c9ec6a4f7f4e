#include "nn/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace inflight::nn {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kGrain = 16;  // tokens that a worker copies at a time

// How a token travels: its numbers, its experts, their weights, in whole cache lines.
struct Record {
  explicit Record(const ExchangeSizes& sizes) : hidden(sizes.hidden), top_k(sizes.top_k), floats((hidden + 2 * top_k + 15) / 16 * 16) {}
  std::int64_t hidden, top_k;
  std::int64_t floats;

  // Choices of experts [first, last) alone; the others are -1.
  void write(const ExpertTokens& tokens, std::int64_t t, std::int64_t first, std::int64_t last, float* record) const {
    std::copy_n(tokens.x + t * tokens.ldx, hidden, record);
    std::int32_t chosen[kMost];
    for (std::int64_t k = 0; k < top_k; k += kMost) {
      const std::int64_t n = std::min(top_k - k, kMost);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int32_t e = tokens.chosen[t * top_k + k + i];
        chosen[i] = e >= first && e < last ? e : -1;
      }
      std::memcpy(record + hidden + k, chosen, static_cast<std::size_t>(n * kFloat));
    }
    std::copy_n(tokens.weights + t * top_k, top_k, record + hidden + top_k);
  }

  // What arrived, with the choices in arrays of their own, those of experts outside [first, last) -1.
  ExpertTokens read(Runtime& rt, const float* records, std::int64_t tokens, std::int64_t first, std::int64_t last) const {
    auto* chosen = reinterpret_cast<std::int32_t*>(rt.workspace.floats(tokens * top_k));
    float* weights = rt.workspace.floats(tokens * top_k);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* tail = records + t * floats + hidden;
      std::memcpy(chosen + t * top_k, tail, static_cast<std::size_t>(top_k * kFloat));
      std::copy_n(tail + top_k, top_k, weights + t * top_k);
      for (std::int64_t k = t * top_k; k < (t + 1) * top_k; ++k)
        if (chosen[k] < first || chosen[k] >= last) chosen[k] = -1;
    }
    return {.x = records, .ldx = floats, .tokens = tokens, .chosen = chosen, .weights = weights};
  }

 private:
  static constexpr std::int64_t kMost = 16;
};

float* zeros(Runtime& rt, std::int64_t tokens, std::int64_t ld) {
  float* y = rt.workspace.floats(tokens * ld);
  rt.pool->parallel_for(tokens, kGrain, [&](std::int64_t begin, std::int64_t end) { std::fill_n(y + begin * ld, (end - begin) * ld, 0.0f); });
  return y;
}

}  // namespace

bool gather_pays(std::int64_t ranks, std::int64_t top_k) {
  const auto n = static_cast<double>(ranks);
  return 1 - std::pow(1 - 1 / n, static_cast<double>(top_k)) >= 0.5;  // of the ranks
}

void exchange_all_to_all(Runtime& rt, const ExchangeSizes& sizes, const ExpertTokens& mine, const ComputeExperts& compute, float* y, std::int64_t ldy) {
  comm::Comm& ranks = *rt.expert_ranks;
  const Record record(sizes);
  const std::int64_t size = ranks.size(), top_k = sizes.top_k, hidden = sizes.hidden, experts = sizes.rank_experts;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };

  // A token goes once to each rank that it needs. place[t, r]: which of those that go to rank r it is, or -1.
  auto* place = reinterpret_cast<std::int32_t*>(rt.workspace.floats(mine.tokens * size));
  std::fill_n(place, mine.tokens * size, -1);
  std::vector<std::int64_t> sent(at(size)), received(at(size));
  for (std::int64_t t = 0; t < mine.tokens; ++t)
    for (std::int64_t k = 0; k < top_k; ++k) {
      const std::int64_t rank = mine.chosen[t * top_k + k] / experts;
      if (std::int32_t& p = place[t * size + rank]; p < 0) p = static_cast<std::int32_t>(sent[at(rank)]++);
    }
  const std::vector<std::int64_t> counts(at(size), sizeof(std::int64_t));
  ranks.all_to_all(sent.data(), counts, received.data(), counts);
  if (ranks.error()) return;  // the counts mean nothing

  std::vector<std::int64_t> first(at(size) + 1);  // of the tokens to a rank
  std::partial_sum(sent.begin(), sent.end(), first.begin() + 1);
  float* outgoing = rt.workspace.floats(first.back() * record.floats);
  rt.pool->parallel_for(mine.tokens, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t rank = 0; rank < size; ++rank)
        if (const std::int32_t p = place[t * size + rank]; p >= 0) record.write(mine, t, rank * experts, (rank + 1) * experts, outgoing + (first[at(rank)] + p) * record.floats);
  });
  const auto bytes = [](std::vector<std::int64_t> tokens, std::int64_t floats) {
    for (std::int64_t& n : tokens) n *= floats * kFloat;
    return tokens;
  };
  const std::int64_t arrived = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  float* incoming = rt.workspace.floats(arrived * record.floats);
  ranks.all_to_all(outgoing, bytes(sent, record.floats), incoming, bytes(received, record.floats));
  if (ranks.error()) return;

  const ExpertTokens theirs = record.read(rt, incoming, arrived, ranks.rank() * experts, (ranks.rank() + 1) * experts);
  float* sums = zeros(rt, arrived, ldy);
  compute(theirs, sums, ldy);
  float* back = rt.workspace.floats(first.back() * ldy);
  ranks.all_to_all(sums, bytes(received, ldy), back, bytes(sent, ldy));
  rt.pool->parallel_for(mine.tokens, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t rank = 0; rank < size; ++rank)
        if (const std::int32_t p = place[t * size + rank]; p >= 0) rt.kernels->vector->add(y + t * ldy, back + (first[at(rank)] + p) * ldy, hidden);
  });
}

void exchange_all_gather(Runtime& rt, const ExchangeSizes& sizes, const ExpertTokens& mine, std::int64_t most, const ComputeExperts& compute, float* y, std::int64_t ldy) {
  comm::Comm& ranks = *rt.expert_ranks;
  const Record record(sizes);
  const std::int64_t size = ranks.size(), experts = sizes.rank_experts, all = size * most;
  float* outgoing = rt.workspace.floats(most * record.floats);
  for (std::int64_t t = 0; t < mine.tokens; ++t) record.write(mine, t, 0, size * experts, outgoing + t * record.floats);
  for (std::int64_t t = mine.tokens; t < most; ++t) {  // places of no token
    std::fill_n(outgoing + t * record.floats, record.floats, 0.0f);
    const std::vector<std::int32_t> nowhere(static_cast<std::size_t>(sizes.top_k), -1);
    std::memcpy(outgoing + t * record.floats + sizes.hidden, nowhere.data(), nowhere.size() * sizeof(std::int32_t));
  }
  float* incoming = rt.workspace.floats(all * record.floats);
  ranks.all_gather(outgoing, most * record.floats * kFloat, incoming);
  if (ranks.error()) return;

  const ExpertTokens theirs = record.read(rt, incoming, all, ranks.rank() * experts, (ranks.rank() + 1) * experts);
  float* sums = zeros(rt, all, ldy);
  compute(theirs, sums, ldy);
  float* back = rt.workspace.floats(most * ldy);
  ranks.reduce_scatter_sum(sums, most * ldy, back);
  for (std::int64_t t = 0; t < mine.tokens; ++t) rt.kernels->vector->add(y + t * ldy, back + t * ldy, sizes.hidden);
}

}  // namespace inflight::nn
