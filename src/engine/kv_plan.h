// How many KV blocks to make and how long a sequence may be, from what memory holds.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/memory_limit.h"
#include "engine/options.h"
#include "models/model.h"
#include "nn/kv_cache.h"

namespace inflight::engine {

struct KvPlan {
  nn::KvShape shape;
  std::int64_t blocks = 0;         // enough for one sequence of max_model_len; never more than max_num_seqs of them can use
  std::int64_t max_model_len = 0;  // tokens of prompt and answer together
  std::string bound;               // what set max_model_len, for messages: "the model's 4096 positions", "--max-model-len 2048", "memory: ..."
};

// Checks the options that shape steps and cache: sequences, batched tokens, block size, lengths, cache dtype.
Result<nn::KvShape> kv_shape(const models::ModelInfo& info, const EngineOptions& options);

// Bytes that a forward pass needs beside weights and cache: activations of max_num_batched_tokens tokens, logits of max_num_seqs rows, 64 MiB for
// everything else. An estimate from above for dense models whose intermediate size is at most 6 H.
std::int64_t workspace_estimate(const models::ModelInfo& info, const EngineOptions& options);

// Bytes for the cache: options.kv_cache_bytes where set; else `available` less the workspace estimate less a tenth of `available`.
// blocks = floor(bytes / block bytes), at most max_num_seqs * ceil(max_model_len / block_size).
// max_model_len: the smallest of the model's promise, --max-model-len and what the blocks hold. A --max-model-len over the promise (kInvalidArgument)
// or over what the blocks hold (kExhausted) is refused with both numbers, and so is a cache of less than one block.
Result<KvPlan> plan_kv(const models::ModelInfo& info, const EngineOptions& options, const MemoryLimit& available);

}  // namespace inflight::engine
