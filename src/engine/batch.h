// A schedule as the arrays of nn::Step. Tokens of the decode arithmetic (generated ones) come first, then prompt tokens; a sequence that is recomputed
// may have a part in both.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "nn/step.h"

namespace inflight::engine {

class Batch {
 public:
  // The arrays that the step points to live until the next build().
  void build(std::span<const Chunk> chunks);

  const nn::Step& step() const { return step_; }  // cache and logits are the caller's to set
  nn::Step& step() { return step_; }
  // Sequences whose next token is to be sampled, one per row of logits.
  std::span<Sequence* const> sampled() const { return sampled_; }

 private:
  void add(const Chunk& chunk, std::int64_t begin, std::int64_t end, std::int64_t rope_length);

  nn::Step step_;
  std::vector<std::int32_t> ids_, positions_, logit_rows_;
  std::vector<nn::Span> spans_;
  std::vector<Sequence*> sampled_;
};

}  // namespace inflight::engine
