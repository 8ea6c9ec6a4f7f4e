// One forward step: a ragged batch of tokens of many sequences over the paged KV cache. A single sequence is the batch of one.
#pragma once
#include <cstdint>
#include <span>

#include "nn/kv_cache.h"

namespace inflight::nn {

// Consecutive tokens of one sequence inside a step: step tokens [first, first + count), positions ascending by one.
struct Span {
  std::int64_t first = 0;
  std::int64_t count = 0;
  const std::int32_t* block_table = nullptr;  // cache block ids of the sequence, enough for its last position here
  // The sequence length that a length-dependent rotary base (dynamic NTK) sees: the prompt's length for prompt tokens;
  // 0 for generated tokens, each of which sees its own position + 1. So recomputation gives the same keys.
  std::int64_t rope_length = 0;
};

struct Step {
  std::span<const std::int32_t> ids;        // [T], each in [0, vocabulary rows)
  std::span<const std::int32_t> positions;  // [T]
  std::span<const Span> spans;              // in token order, covering all T tokens. A sequence may have two spans in one step (prompt part, generated part)
  // Tokens [0, decode_tokens) use the decode arithmetic, the others the prefill arithmetic. Arithmetic belongs to the token:
  // generated tokens are decode tokens also when they are recomputed after preemption.
  std::int64_t decode_tokens = 0;
  std::span<const std::int32_t> logit_rows;  // ascending token indices whose logits are wanted
  KvCache* cache = nullptr;
  float* logits = nullptr;  // [logit_rows.size(), Model::logits_stride()] f32
  float* hidden = nullptr;  // nullptr, or [layers + 1, T, H] f32: after the embedding, then after each layer (the last after the final norm)
};

}  // namespace inflight::nn
