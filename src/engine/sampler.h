// From a row of logits to a token. Deterministic: the same row, history, seed and position give the same token, alone or in a batch, on any thread.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "kernels/kernels.h"

namespace inflight::engine {

// The distinct tokens of one sequence, for penalties. A token of the prompt alone has count 0.
class TokenHistory {
 public:
  void add_prompt(std::int32_t token) { outputs_.try_emplace(token, 0); }
  void add_output(std::int32_t token) { ++outputs_[token]; }
  const std::unordered_map<std::int32_t, std::int64_t>& outputs() const { return outputs_; }  // token -> occurrences in the output

 private:
  std::unordered_map<std::int32_t, std::int64_t> outputs_;
};

// Whether the parameters look at the history at all.
bool has_penalties(const SamplingParams& params);

// One row to sample from.
struct SampleRow {
  float* logits = nullptr;           // [vocabulary] f32, overwritten
  std::int64_t vocabulary = 0;
  const SamplingParams* params = nullptr;
  const TokenHistory* history = nullptr;  // nullptr without penalties
  std::span<const std::int32_t> banned;   // ids in [0, vocabulary) that may not be chosen (stop ids before min_tokens)
  std::uint64_t seed = 0;
  std::uint64_t position = 0;        // index of the token in the sequence: the generator's counter
};

struct Candidate {
  float value = 0;  // logit less the largest logit, over the temperature
  std::int32_t token = 0;
  double weight = 0;  // exp(value)
};

// Memory of one thread, reused between rows.
struct SampleScratch {
  std::vector<Candidate> candidates;
  std::vector<double> blocks;
};

// The token, or -1 when a logit is NaN or infinite. Order: penalties (repetition, then frequency and presence), bans, temperature, top_k, top_p, min_p, draw.
// Of equal logits the lower id comes first: greedy takes it, and top_k keeps exactly k tokens. top_p keeps the fewest most likely tokens whose
// probabilities, among those that top_k kept, sum to at least top_p.
std::int32_t sample(const SampleRow& row, const kernels::VectorKernels& kernels, SampleScratch& scratch);

// Uniform in [0, 1) with 53 random bits: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the seed as key and the
// position as counter.
double uniform(std::uint64_t seed, std::uint64_t position);

struct Philox {
  std::uint32_t word[4];
};
Philox philox4x32(Philox counter, std::uint32_t key0, std::uint32_t key1);

}  // namespace inflight::engine
