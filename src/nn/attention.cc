#include "nn/attention.h"

#include <algorithm>
#include <cmath>

namespace inflight::nn {

RopeTable rope_table(const Step& step, const Rope& rope, Runtime& runtime) {
  const std::int64_t half = rope.rotary_dim() / 2;
  const auto tokens = static_cast<std::int64_t>(step.ids.size());
  float* cos = runtime.workspace.floats(tokens * half);
  float* sin = runtime.workspace.floats(tokens * half);
  for (const Span& span : step.spans)
    runtime.pool->parallel_for(span.count, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = span.first + begin; t < span.first + end; ++t) {
        const std::int64_t position = step.positions[static_cast<std::size_t>(t)];
        rope.angles(position, span.rope_length ? span.rope_length : position + 1, cos + t * half, sin + t * half);
      }
    });
  return {cos, sin, rope.rotary_dim()};
}

Attention::Attention(const Scope& scope, const AttentionSizes& c, std::int64_t layer, std::int64_t window)
    : sizes_(c),
      layer_(layer),
      window_(window),
      qkv_(scope, {.name = "qkv_proj", .split = params::Split::kOutputs,
                   .pieces = {{"q_proj", c.heads * c.head_dim}, {"k_proj", c.kv_heads * c.head_dim, true}, {"v_proj", c.kv_heads * c.head_dim, true}},
                   .inputs = c.hidden, .unit = c.head_dim}),
      o_(scope, {.name = "o_proj", .split = params::Split::kInputs, .pieces = {{"o_proj", c.hidden}}, .inputs = c.heads * c.head_dim, .unit = c.head_dim}) {
  if (c.qk_norm) {
    q_norm_.emplace(scope, "q_norm", c.head_dim, c.norm_eps);
    k_norm_.emplace(scope, "k_norm", c.head_dim, c.norm_eps);
  }
}

void Attention::operator()(const Pass& pass, const Step& step, const RopeTable& rope, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const {
  Runtime& rt = pass.runtime;
  const kernels::VectorKernels& vector = *rt.kernels->vector;
  const auto [hidden, heads, kv_heads, head_dim, eps, qk_norm] = sizes_;
  const std::int64_t group = heads / kv_heads, half = rope.rotary_dim / 2;
  const KvCache& cache = *step.cache;
  const KvShape& shape = cache.shape();
  const std::int64_t stride = cache.block_stride();

  const std::int64_t ldqkv = padded(qkv_.outputs());
  float* qkv = rt.workspace.floats(pass.tokens * ldqkv);
  qkv_(pass, x, ldx, qkv, ldqkv);

  // Which span a token is in: spans are few and in token order.
  auto* span_of = reinterpret_cast<std::int32_t*>(rt.workspace.bytes(static_cast<std::size_t>(pass.tokens) * sizeof(std::int32_t)));
  for (std::size_t s = 0; s < step.spans.size(); ++s)
    std::fill_n(span_of + step.spans[s].first, step.spans[s].count, static_cast<std::int32_t>(s));

  // Norm, rotate, and put K and V into the cache. All tokens must be there before any attends: later tokens of a chunk see earlier ones.
  const auto store = shape.dtype == DType::kF32 ? vector.store_kv_f32 : vector.store_kv_bf16;
  rt.pool->parallel_for(pass.tokens, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* q = qkv + t * ldqkv;
      float* k = q + heads * head_dim;
      const float* v = k + kv_heads * head_dim;
      if (qk_norm) {
        for (std::int64_t h = 0; h < heads; ++h) (*q_norm_)(*rt.kernels, q + h * head_dim, q + h * head_dim);
        for (std::int64_t h = 0; h < kv_heads; ++h) (*k_norm_)(*rt.kernels, k + h * head_dim, k + h * head_dim);
      }
      vector.rope_half(q, heads, head_dim, rope.rotary_dim, rope.cos + t * half, rope.sin + t * half);
      vector.rope_half(k, kv_heads, head_dim, rope.rotary_dim, rope.cos + t * half, rope.sin + t * half);
      const Span& span = step.spans[static_cast<std::size_t>(span_of[t])];
      const std::int64_t position = step.positions[static_cast<std::size_t>(t)];
      const std::int64_t block = span.block_table[position / shape.block_size], slot = position % shape.block_size;
      for (std::int64_t h = 0; h < kv_heads; ++h)
        store(k + h * head_dim, v + h * head_dim, head_dim, slot, cache.keys(layer_, h) + block * stride, cache.values(layer_, h) + block * stride);
    }
  });

  const std::int64_t ldattended = heads * head_dim;
  float* attended = rt.workspace.floats(pass.tokens * ldattended);
  const std::int64_t scratch_floats = vector.attend_scratch(group, head_dim);
  float* scratch = rt.workspace.floats(scratch_floats * rt.pool->threads());
  const auto attend = shape.dtype == DType::kF32 ? vector.attend_f32 : vector.attend_bf16;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  // Head-major: one worker walks the tokens of a head, so that head's keys stay in its cache.
  rt.pool->parallel_for(kv_heads * pass.tokens, [&](int worker, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t h = i / pass.tokens, t = i % pass.tokens;
      const std::int64_t position = step.positions[static_cast<std::size_t>(t)];
      attend({.q = qkv + t * ldqkv + h * group * head_dim, .heads = group, .head_dim = head_dim,
              .keys = cache.keys(layer_, h), .values = cache.values(layer_, h), .block_stride = stride,
              .block_table = step.spans[static_cast<std::size_t>(span_of[t])].block_table, .block_size = shape.block_size,
              .begin = window_ > 0 ? std::max<std::int64_t>(0, position - window_ + 1) : 0, .end = position + 1, .scale = scale, .cold = t < pass.decode,
              .out = attended + t * ldattended + h * group * head_dim, .scratch = scratch + worker * scratch_floats});
    }
  });
  o_(pass, attended, ldattended, y, ldy);
}

}  // namespace inflight::nn
