// Grouped-query attention over the paged KV cache, with optional q/k norms and a sliding window.
#pragma once
#include <optional>

#include "nn/module.h"
#include "nn/rope.h"
#include "nn/step.h"

namespace inflight::nn {

struct AttentionSizes {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float norm_eps = 1e-6f;
  bool qk_norm = false;     // RMS norm of each head of q and k before the rotation (Qwen3)
  bool rope_pairs = false;  // rotates neighbours (2i, 2i + 1) of a head rather than its halves (i, i + half) (ERNIE 4.5)
};

// cos and sin of every token of a step, shared by all layers.
struct RopeTable {
  const float* cos = nullptr;  // [T, rotary_dim / 2]
  const float* sin = nullptr;
  std::int64_t rotary_dim = 0;
};
RopeTable rope_table(const Step& step, const Rope& rope, Runtime& runtime);

class Attention {
 public:
  Attention(const Scope& scope, const AttentionSizes& sizes, std::int64_t layer, std::int64_t window);
  // y [T, padded(hidden)] = o_proj(attention(qkv_proj(x))); writes this layer's K and V of every token into the cache.
  void operator()(const Pass& pass, const Step& step, const RopeTable& rope, const float* x, std::int64_t ldx, float* y, std::int64_t ldy,
                  const quant::PrepareRows& prepare = {}) const;

  // Arithmetic of prompt tokens over a cache of this type: BF16 dot products where the instruction set has them and --compute allows BF16. Generated tokens: FP32.
  static quant::Arithmetic prefill_arithmetic(const Runtime& runtime, DType cache);

 private:
  AttentionSizes sizes_;  // of this rank
  std::int64_t kv_copies_;  // neighbouring ranks that have the same KV heads
  std::int64_t layer_;
  std::int64_t window_;  // key j is visible to query i iff i - j < window; 0: all
  Linear qkv_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  Linear o_;
};

}  // namespace inflight::nn
