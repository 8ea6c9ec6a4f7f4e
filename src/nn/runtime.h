// What a forward pass runs on: kernels, threads, the arithmetic of prefill and decode tokens, and reusable memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "nn/observer.h"
#include "params/expert_placement.h"
#include "quant/apply.h"
#include "tensor/buffer.h"

namespace inflight::nn {

// Memory that is reused between steps; grows to the largest step seen and is never shared between forward passes.
class Workspace {
 public:
  void reset() { used_ = 0; }
  // What was handed out after mark() may be handed out again after rewind(mark).
  std::size_t mark() const { return used_; }
  void rewind(std::size_t mark) { used_ = mark; }
  // 64-byte aligned, uninitialized, valid until reset(). Slots keep their memory, so pointers stay good while others grow.
  std::byte* bytes(std::size_t count);
  float* floats(std::int64_t count) { return reinterpret_cast<float*>(bytes(static_cast<std::size_t>(count) * sizeof(float))); }

 private:
  std::vector<Buffer> slots_;
  std::size_t used_ = 0;
};

// Of one layer with an E4M3 KV cache: FP32 dequantization multipliers of queries, keys and values.
struct AttentionScales {
  float q = 1, k = 1, v = 1;
};

struct Runtime {
  const kernels::Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
  quant::ComputePolicy compute;  // which arithmetic prefill and decode tokens use, per format
  std::vector<AttentionScales> attention_scales;  // [layers]; empty: the cache is not E4M3
  float fp8_bound = 448;         // the largest E4M3 number in use
  bool fp8_attention = false;    // queries and probabilities are E4M3 too
  comm::Comm* tensor_ranks = nullptr;  // that share each matrix; nullptr: one
  comm::Comm* expert_ranks = nullptr;  // that share the experts; nullptr: they are those of tensor_ranks, and all have the same tokens
  // With expert_ranks, which are groups of equally many tensor_ranks one after another: the tokens of each group in this step, by arithmetic.
  struct GroupTokens {
    std::int64_t decode = 0, prefill = 0;
  };
  std::vector<GroupTokens> group_tokens;
  enum class Travel { kMeasured, kToExperts, kToAll };
  Travel travel = Travel::kMeasured;  // of tokens between those ranks: as gather_pays() says, or always in one way (expert_exchange.h)
  std::shared_ptr<const params::ExpertPlacement> placement;  // nullptr: ranks have equal runs of the experts
  Workspace workspace;
  std::vector<std::vector<std::int64_t>>* expert_tokens = nullptr;  // [layers][experts]: tokens sent to each expert are counted here, where it is wanted
  std::vector<std::int64_t>* expert_rows = nullptr;  // [layers]: tokens that experts of this rank computed, a token once for each of them, where that is wanted
  Observer* observer = nullptr;  // is shown activations, where there is one
};

}  // namespace inflight::nn
