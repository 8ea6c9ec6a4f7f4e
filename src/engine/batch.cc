#include "engine/batch.h"

#include <algorithm>

namespace inflight::engine {

// Tokens [begin, end) of the chunk's sequence.
void Batch::add(const Chunk& chunk, std::int64_t begin, std::int64_t end, std::int64_t rope_length) {
  if (begin >= end) return;
  Sequence& sequence = *chunk.sequence;
  spans_.push_back({static_cast<std::int64_t>(ids_.size()), end - begin, sequence.blocks.data(), rope_length});
  ids_.insert(ids_.end(), sequence.tokens.begin() + begin, sequence.tokens.begin() + end);
  for (std::int64_t position = begin; position < end; ++position) positions_.push_back(static_cast<std::int32_t>(position));
  if (end != sequence.length()) return;
  logit_rows_.push_back(static_cast<std::int32_t>(ids_.size()) - 1);
  sampled_.push_back(&sequence);
}

void Batch::build(std::span<const Chunk> chunks) {
  ids_.clear();
  positions_.clear();
  logit_rows_.clear();
  spans_.clear();
  sampled_.clear();
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    add(chunk, std::max(sequence.computed, sequence.prompt_tokens), sequence.computed + chunk.count, 0);
  }
  step_ = {};
  step_.decode_tokens = static_cast<std::int64_t>(ids_.size());
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    add(chunk, sequence.computed, std::min(sequence.prompt_tokens, sequence.computed + chunk.count), sequence.prompt_tokens);
  }
  step_.ids = ids_;
  step_.positions = positions_;
  step_.spans = spans_;
  step_.logit_rows = logit_rows_;
}

}  // namespace inflight::engine
