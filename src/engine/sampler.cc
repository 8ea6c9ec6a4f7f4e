#include "engine/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace inflight::engine {
namespace {

constexpr double kGreedyTemperature = 1e-5;  // below it a division only overflows; the draw is the largest logit anyway
constexpr float kBanned = -FLT_MAX;          // below every other value: see kLowest
constexpr float kLowest = -1e30f;            // logits and scaled logits are kept above it; exp() of it is 0
constexpr std::int64_t kDrawBlock = 512;     // tokens whose weights are summed at once in a draw over the whole vocabulary
constexpr double kMassSlack = 1e-6;          // a sum this close to top_p (relative) has reached it: sums of exponentials are rounded
constexpr std::int64_t kFirstSelection = 256;  // candidates among which top_p looks first; it rarely needs more

bool before(const Candidate& a, const Candidate& b) { return a.value != b.value ? a.value > b.value : a.token < b.token; }

bool greedy(const SamplingParams& params) { return params.temperature < kGreedyTemperature || params.top_k == 1 || params.top_p == 0; }

float bounded(double value) { return static_cast<float>(std::clamp(value, static_cast<double>(kLowest), -static_cast<double>(kLowest))); }

void penalize(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  for (const auto& [token, count] : row.history->outputs()) {
    double value = row.logits[token];
    value = value > 0 ? value / params.repetition_penalty : value * params.repetition_penalty;
    if (count > 0) value -= params.frequency_penalty * static_cast<double>(count) + params.presence_penalty;
    row.logits[token] = bounded(value);
  }
}

void ban(const SampleRow& row) {
  for (const std::int32_t token : row.banned) row.logits[token] = kBanned;
}

// The `count` largest of x in no order. One pass: the buffer holds up to twice the count and is cut back when full, which raises the bar for the rest.
void select_largest(const float* x, std::int64_t n, std::int64_t count, std::vector<Candidate>& kept) {
  kept.clear();
  const auto capacity = static_cast<std::size_t>(std::min(n, 2 * count));
  const auto keep = static_cast<std::size_t>(std::min(n, count));
  kept.reserve(capacity);
  float bar = -std::numeric_limits<float>::infinity();  // an equal value with a higher id comes after those kept, so it must exceed the bar
  const auto cut = [&] {
    std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(keep) - 1, kept.end(), before);
    kept.resize(keep);
  };
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(x[i] > bar)) continue;
    if (kept.size() == capacity) {
      cut();
      bar = kept.back().value;  // nth_element left the last of the kept at its place
      if (!(x[i] > bar)) continue;
    }
    kept.push_back({x[i], static_cast<std::int32_t>(i), 0});
  }
  if (kept.size() > keep) cut();
}

double weigh(std::vector<Candidate>& candidates) {
  double total = 0;
  for (Candidate& candidate : candidates) total += candidate.weight = std::exp(static_cast<double>(candidate.value));
  return total;
}

// Keeps the fewest most likely candidates that weigh at least the share `top_p` of `total`, in no order: a bisection that moves only the half in question,
// so O(n) where a sort would take O(n log n) moves. False, and all are kept, when they weigh less.
bool keep_share(std::vector<Candidate>& candidates, double top_p, double total) {
  const double target = top_p * total * (1 - kMassSlack);
  double sum = 0;  // of the candidates before `begin`: less than the target, and those before `end` reach it
  std::size_t begin = 0, end = candidates.size();
  const auto weight_of = [&](std::size_t from, std::size_t to) {
    double weight = 0;
    for (std::size_t i = from; i < to; ++i) weight += candidates[i].weight;
    return weight;
  };
  if (weight_of(begin, end) < target) return false;
  const auto at = [&](std::size_t i) { return candidates.begin() + static_cast<std::ptrdiff_t>(i); };
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), before);
    const double upper = weight_of(begin, middle);
    if (sum + upper >= target) {
      end = middle;
    } else {
      sum += upper;
      begin = middle;
    }
  }
  candidates.resize(end);
  return true;
}

std::int32_t draw_among(const std::vector<Candidate>& candidates, double random) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  const double target = random * total;
  double sum = 0;
  std::int32_t last = candidates.front().token;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight > 0) last = candidate.token;
    sum += candidate.weight;
    if (sum > target) break;
  }
  return last;
}

std::int32_t draw_among_all(const float* x, std::int64_t n, double random, const kernels::VectorKernels& kernels, std::vector<double>& blocks) {
  blocks.clear();
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kDrawBlock) {
    blocks.push_back(std::exp(kernels.log_sum_exp(x + begin, std::min(kDrawBlock, n - begin))));
    total += blocks.back();
  }
  double target = random * total;
  std::size_t block = 0, last_block = 0;  // last_block: in case rounding leaves no block past the target
  for (; block < blocks.size(); ++block) {
    if (blocks[block] > 0) last_block = block;
    if (blocks[block] > target) break;
    target -= blocks[block];
  }
  if (block == blocks.size()) block = last_block;
  const std::int64_t begin = static_cast<std::int64_t>(block) * kDrawBlock, end = std::min(begin + kDrawBlock, n);
  double sum = 0;
  std::int64_t last = begin;
  for (std::int64_t i = begin; i < end; ++i) {
    const double weight = std::exp(static_cast<double>(x[i]));
    if (weight > 0) last = i;
    sum += weight;
    if (sum > target) break;
  }
  return static_cast<std::int32_t>(last);
}

// The candidates that top_k and top_p leave, with weights, in order of their ids: so a rounding error in a logit moves no other token's place in the draw.
void narrow(const float* x, std::int64_t n, const SamplingParams& params, const kernels::VectorKernels& kernels, std::vector<Candidate>& candidates) {
  if (params.top_k > 0 && params.top_k < n) {
    select_largest(x, n, params.top_k, candidates);
    const double total = weigh(candidates);
    if (params.top_p < 1) keep_share(candidates, params.top_p, total);
  } else {
    const double total = std::exp(kernels.log_sum_exp(x, n));
    for (std::int64_t count = std::min(n, kFirstSelection);; count = std::min(n, 16 * count)) {
      select_largest(x, n, count, candidates);
      weigh(candidates);
      if (keep_share(candidates, params.top_p, total) || count == n) break;
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

}  // namespace

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

Philox philox4x32(Philox counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0], product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

double uniform(std::uint64_t seed, std::uint64_t position) {
  const Philox bits = philox4x32({{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0}}, static_cast<std::uint32_t>(seed),
                                 static_cast<std::uint32_t>(seed >> 32));
  return static_cast<double>((std::uint64_t{bits.word[1]} << 32 | bits.word[0]) >> 11) * 0x1p-53;
}

std::int32_t sample(const SampleRow& row, const kernels::VectorKernels& kernels, SampleScratch& scratch) {
  const SamplingParams& params = *row.params;
  float* x = row.logits;
  const std::int64_t n = row.vocabulary;
  std::int64_t best = kernels.argmax(x, n);
  if (best < 0) return -1;
  const bool penalties = row.history != nullptr && has_penalties(params);
  if (penalties) penalize(row);
  ban(row);
  if (penalties || !row.banned.empty()) best = kernels.argmax(x, n);
  if (greedy(params)) return static_cast<std::int32_t>(best);

  const double max = x[best], rate = 1 / params.temperature;
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(std::max((static_cast<double>(x[i]) - max) * rate, static_cast<double>(kLowest)));
  ban(row);  // a huge temperature lifted them
  const double random = uniform(row.seed, row.position);
  const bool narrowed = params.top_p < 1 || (params.top_k > 0 && params.top_k < n);
  if (!narrowed && params.min_p <= 0) return draw_among_all(x, n, random, kernels, scratch.blocks);

  std::vector<Candidate>& candidates = scratch.candidates;
  if (narrowed) {
    narrow(x, n, params, kernels, candidates);
    std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.weight < params.min_p; });  // the largest weighs 1
  } else {
    candidates.clear();
    const double bar = std::log(params.min_p);
    for (std::int64_t i = 0; i < n; ++i)
      if (x[i] >= bar) candidates.push_back({x[i], static_cast<std::int32_t>(i), 0});
    weigh(candidates);
  }
  return draw_among(candidates, random);
}

}  // namespace inflight::engine
