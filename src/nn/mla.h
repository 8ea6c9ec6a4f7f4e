// Multi-head latent attention (DeepSeek-V2 and later): keys and values of all heads are linear images of one latent row a token, and that row,
// with a rotary part beside it, is all that the cache holds.
//
//     [c | k_pe] = kv_a_proj(x), c normed, k_pe rotated: the cached row, R + P numbers       [k_nope | v] of head h = kv_b_proj_h . c
//     score of head h = (q_nope . k_nope + q_pe . k_pe) * scale = (k_b_h . q_nope) . c + q_pe . k_pe          k_b_h [R, N]: kv_b_proj_h's key rows, transposed
//     output of head h = sum of weights * v = v_b_h . (sum of weights * c)                                   v_b_h [V, R]: its value rows
//
// The second forms are the absorbed ones: attention of all heads over one latent row, with 2 (2 R + P) operations for a query and a row. k_b and v_b are derived
// parameters. Generated tokens take them. Prompt tokens take the first forms, 2 (N + P + V) operations: keys and values of a tile of rows are made from the cached
// rows with the same k_b and v_b, once for all of a span's tokens in the step, which costs 2 R (N + V) a row. That is less than absorbing already
// where a prompt comes in one piece, and half of it in pieces of 512. Where N or V is no multiple of 16, prompt tokens are absorbed as well.
#pragma once
#include <optional>

#include "nn/attention.h"
#include "nn/module.h"
#include "nn/step.h"

namespace inflight::nn {

struct LatentAttentionSizes {
  std::int64_t q_rank = 0;   // of q's own low-rank form (q_a_proj, q_b_proj); 0: a plain q_proj
  std::int64_t rank = 0;     // R, kv_lora_rank: a multiple of 16; 0: this is no latent attention
  std::int64_t nope_dim = 0; // N, of a head of q and k that is not rotated
  std::int64_t rope_dim = 0; // P, of the rotated part, even
  std::int64_t value_dim = 0;
  float score_scale = 1;     // on q . k

  std::int64_t query_dim() const { return nope_dim + rope_dim; }
  std::int64_t row_dim() const { return rank + rope_dim; }  // of a cached row
};

class LatentAttention {
 public:
  // Of `common`: hidden, heads and rope_pairs.
  LatentAttention(const Scope& scope, const AttentionSizes& common, const LatentAttentionSizes& sizes, std::int64_t layer);
  // y [T, padded(hidden)] = o_proj(attention(x)); writes this layer's latent row of every token into the cache.
  void operator()(const Pass& pass, const Step& step, const RopeTable& rope, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const;

  // Whether prompt tokens take the plain form.
  static bool expands(std::int64_t nope_dim, std::int64_t value_dim) { return nope_dim % 16 == 0 && value_dim % 16 == 0; }
  // Arithmetic of attention itself, of prompt and of generated tokens alike: with many heads on one row, both wait for arithmetic rather than memory.
  static quant::Arithmetic arithmetic(const Runtime& runtime, DType cache);
  // Floats in latent space at a time, beside a token's ordinary activations.
  static std::int64_t workspace_floats(std::int64_t heads, std::int64_t row_dim, std::int64_t rank);

  // Whether the checkpoint holds k_b and v_b (k_b_proj [heads * R, N], v_b_proj [heads * V, R]) in place of kv_b_proj. V must be a multiple of 16 then.
  static bool has_halves(const Scope& scope);

 private:
  struct Halves {
    std::size_t k_b, v_b;  // rows of the table
    std::int64_t kv_b;     // of what they follow from; -1: they are there themselves
  };
  static Halves declare_halves(const Scope& scope, const AttentionSizes& common, const LatentAttentionSizes& sizes);
  void absorbed(const Pass& pass, const Step& step, std::int64_t first, std::int64_t count, const std::int32_t* span_of, const float* q, std::int64_t ldq, float* heads_out, std::int64_t ldh) const;
  void plain(const Pass& pass, const Step& step, const float* q, std::int64_t ldq, float* heads_out, std::int64_t ldh) const;
  void attend(Runtime& rt, const Step& step, std::int64_t first, std::int64_t count, bool decode, const std::int32_t* span_of, const float* q, float* out) const;

  AttentionSizes common_;          // heads: of this rank
  LatentAttentionSizes sizes_;
  std::int64_t layer_;
  Linear down_;                    // [q_a | kv_a] or kv_a
  std::optional<RmsNorm> q_norm_;
  RmsNorm kv_norm_;
  Linear q_;
  const quant::ParamStore* store_;
  Halves halves_;
  Linear o_;
};

}  // namespace inflight::nn
