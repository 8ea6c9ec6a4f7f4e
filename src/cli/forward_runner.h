// Runs a model directly on token ids, without the scheduler: for `logits`, `eval` and `bench`.
//
//     ForwardRunner runner = TRY(ForwardRunner::create(opened, options, 1, tokens));
//     runner.forward({.ids = chunk, .position = 0, .phase = Phase::kPrefill, .logits = rows});
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/open_model.h"
#include "engine/options.h"
#include "nn/kv_cache.h"

namespace inflight::cli {

// Which arithmetic tokens take.
enum class Phase { kPrefill, kDecode };

class ForwardRunner {
 public:
  // A KV cache for `sequences` sequences of up to `tokens` tokens each; its pages become resident as they are written.
  static Result<ForwardRunner> create(engine::OpenedModel& opened, const engine::EngineOptions& options, std::int64_t sequences, std::int64_t tokens);

  struct Chunk {
    std::span<const std::int32_t> ids;  // [T], of one sequence
    std::int64_t sequence = 0;
    std::int64_t position = 0;          // of ids[0]
    Phase phase = Phase::kPrefill;
    std::int64_t rope_length = 0;       // what a length-dependent rotary base sees: the length of the prompt; 0: each token its own position + 1
    std::int64_t logits_from = 0;       // rows [logits_from, T) get logits
    float* logits = nullptr;            // [T - logits_from, logits_stride()]; nullptr: none
    float* hidden = nullptr;            // nullptr, or [layers + 1, T, H]
  };
  // An error: a rank of several failed.
  Result<void> forward(const Chunk& chunk);

  // One decode token of each of the first ids.size() sequences, all at `position`. logits: [ids.size(), logits_stride()].
  Result<void> decode(std::span<const std::int32_t> ids, std::int64_t position, float* logits);

  // Copies the cache content of sequence 0's tokens [0, filled) over and over up to token `upto` of every sequence.
  // For speed measurements, where the numbers in the cache do not matter but their being there does. `filled` > 0.
  void repeat_cache(std::int64_t filled, std::int64_t upto);

  std::int64_t stride() const { return opened_->model->logits_stride(); }
  const nn::KvShape& kv_shape() const { return cache_->shape(); }

 private:
  ForwardRunner() = default;
  Result<void> run(const nn::Step& step);
  engine::OpenedModel* opened_ = nullptr;
  std::shared_ptr<nn::KvCache> cache_;
  std::int64_t blocks_per_sequence_ = 0;
  std::vector<std::int32_t> table_;  // block ids, [sequences][blocks_per_sequence_]
  std::vector<std::int32_t> positions_, rows_;
};

// Every id must have an embedding row, and all of them must fit the context that the model promises.
Result<void> check_ids(std::span<const std::int32_t> ids, const models::ModelInfo& info);

// Deterministic ids for measurements: spread over the vocabulary.
std::vector<std::int32_t> synthetic_ids(std::int64_t count, std::int64_t vocabulary);

}  // namespace inflight::cli
