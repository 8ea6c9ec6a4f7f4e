#include "nn/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/attention_fp8.h"

namespace inflight::nn {
namespace {

// Rows (query heads times tokens) that share one walk over the keys: their state fits the second-level cache beside a tile.
constexpr std::int64_t kBlockRows = 128;

// Consecutive tokens of one span.
struct Block {
  std::int64_t first;
  std::int64_t count;
  const std::int32_t* block_table;
};

}  // namespace

quant::Arithmetic Attention::prefill_arithmetic(const Runtime& runtime, DType cache) {
  if (cache == DType::kF8E4M3 && runtime.fp8_attention) return quant::Arithmetic::kFp8;
  const bool has_dots = cache == DType::kBF16 ? runtime.kernels->vector->attend_bf16_dot != nullptr : cache == DType::kF8E4M3 && runtime.kernels->fp8_attention->attend_e4m3_dot;
  const bool dots = has_dots && runtime.compute.plain_prefill == quant::Arithmetic::kBf16;
  return dots ? quant::Arithmetic::kBf16 : quant::Arithmetic::kFp32;
}

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
      kv_copies_(std::max<std::int64_t>(scope.topology().tp_size / c.kv_heads, 1)),
      layer_(layer),
      window_(window),
      qkv_(scope, {.name = "qkv_proj", .split = params::Split::kOutputs,
                   .pieces = {{"q_proj", c.heads * c.head_dim}, {"k_proj", c.kv_heads * c.head_dim, true}, {"v_proj", c.kv_heads * c.head_dim, true}},
                   .inputs = c.hidden, .unit = c.head_dim}),
      o_(scope, {.name = "o_proj", .split = params::Split::kInputs, .pieces = {{"o_proj", c.hidden}}, .inputs = c.heads * c.head_dim, .unit = c.head_dim}) {
  sizes_.heads = scope.topology().share(c.heads);
  sizes_.kv_heads = scope.topology().kv_share(c.kv_heads);
  if (c.qk_norm) {
    q_norm_.emplace(scope, "q_norm", c.head_dim, c.norm_eps);
    k_norm_.emplace(scope, "k_norm", c.head_dim, c.norm_eps);
  }
}

void Attention::operator()(const Pass& pass, const Step& step, const RopeTable& rope, const float* x, std::int64_t ldx, float* y, std::int64_t ldy,
                           const quant::PrepareRows& prepare) const {
  Runtime& rt = pass.runtime;
  const kernels::VectorKernels& vector = *rt.kernels->vector;
  const auto [hidden, heads, kv_heads, head_dim, eps, qk_norm, rope_pairs] = sizes_;
  const std::int64_t group = heads / kv_heads, half = rope.rotary_dim / 2;
  const KvCache& cache = *step.cache;
  const KvShape& shape = cache.shape();
  const std::int64_t stride = cache.block_stride();

  const std::int64_t ldqkv = padded(qkv_.outputs());
  float* qkv = rt.workspace.floats(pass.tokens * ldqkv);
  qkv_(pass, x, ldx, qkv, ldqkv, prepare);

  // Which span a token is in: spans are few and in token order.
  auto* span_of = reinterpret_cast<std::int32_t*>(rt.workspace.bytes(static_cast<std::size_t>(pass.tokens) * sizeof(std::int32_t)));
  for (std::size_t s = 0; s < step.spans.size(); ++s)
    std::fill_n(span_of + step.spans[s].first, step.spans[s].count, static_cast<std::int32_t>(s));

  // Norm and rotate K, and put it and V into the cache. All tokens must be there before any attends: later tokens of a chunk see earlier ones.
  const auto rotate = rope_pairs ? vector.rope_pairs : vector.rope_half;
  const bool fp8 = shape.dtype == DType::kF8E4M3;
  const kernels::Fp8AttentionKernels& fp8_kernels = *rt.kernels->fp8_attention;
  const AttentionScales scales = fp8 && !rt.attention_scales.empty() ? rt.attention_scales[static_cast<std::size_t>(layer_)] : AttentionScales{};
  const auto store = [&, store_kv = shape.dtype == DType::kF32 ? vector.store_kv_f32 : vector.store_kv_bf16](const float* k, const float* v, std::int64_t slot, std::byte* keys, std::byte* values) {
    if (fp8) fp8_kernels.store_kv_e4m3(k, v, head_dim, slot, keys, values, 1.0f / scales.k, 1.0f / scales.v, rt.fp8_bound);
    else store_kv(k, v, head_dim, slot, keys, values);
  };
  const auto store_heads = [&](std::int64_t t, std::int64_t first, std::int64_t count) {
    float* k = qkv + t * ldqkv + (heads + first) * head_dim;
    const float* v = k + kv_heads * head_dim;
    if (qk_norm)
      for (std::int64_t h = 0; h < count; ++h) (*k_norm_)(*rt.kernels, k + h * head_dim, k + h * head_dim);
    rotate(k, count, head_dim, rope.rotary_dim, rope.cos + t * half, rope.sin + t * half);
    const Span& span = step.spans[static_cast<std::size_t>(span_of[t])];
    const std::int64_t position = step.positions[static_cast<std::size_t>(t)];
    const std::int64_t block = span.block_table[position / shape.block_size], slot = position % shape.block_size;
    for (std::int64_t h = 0; h < count; ++h)
      store(k + h * head_dim, v + h * head_dim, slot, cache.keys(layer_, first + h) + block * stride, cache.values(layer_, first + h) + block * stride);
  };
  // A step of generated tokens has one of each sequence: the task that attends stores what it alone needs.
  const bool alone = pass.decode == pass.tokens && static_cast<std::int64_t>(step.spans.size()) == pass.tokens;
  if (!alone)
    rt.pool->parallel_for(pass.tokens, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) store_heads(t, 0, kv_heads);
    });

  const std::int64_t lead = o_.lead(), ldattended = lead + heads * head_dim;
  float* attended = rt.workspace.floats(pass.tokens * ldattended) + lead;
  for (std::int64_t t = 0; lead > 0 && t < pass.tokens; ++t) std::fill_n(attended + t * ldattended - lead, lead, 0.0f);
  const bool dots = prefill_arithmetic(rt, shape.dtype) == quant::Arithmetic::kBf16;
  const auto attend = shape.dtype == DType::kF32 ? vector.attend_f32 : vector.attend_bf16;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));

  // A task is one KV head of a block of tokens. Blocks end at multiples of their size, so that their tokens need the same tiles of keys.
  const std::int64_t block_tokens = std::max<std::int64_t>(kBlockRows / group, 1);
  auto* blocks = reinterpret_cast<Block*>(rt.workspace.bytes(static_cast<std::size_t>(pass.tokens) * sizeof(Block)));
  std::int64_t block_count = 0;
  for (const Span& span : step.spans)
    for (std::int64_t t = span.first; t < span.first + span.count;) {
      const std::int64_t whole = block_tokens - step.positions[static_cast<std::size_t>(t)] % block_tokens;
      const std::int64_t end = std::min(t + whole, span.first + span.count);
      blocks[block_count++] = {t, end - t, span.block_table};
      t = end;
    }
  const std::int64_t scratch_floats = padded(fp8 ? fp8_kernels.scratch(block_tokens * group, head_dim) : vector.attend_scratch(block_tokens * group, head_dim));
  float* scratch = rt.workspace.floats(scratch_floats * rt.pool->threads());

  // A task norms and rotates its own queries: they are in its first caches when it attends. Head by head, so that a head's keys stay in cache;
  // late tokens, which see most keys, first, so that the tasks at the end are small.
  std::atomic<std::int64_t> next{0};
  rt.pool->run([&](int worker) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < kv_heads * block_count;) {
      const std::int64_t h = i / block_count;
      const Block& block = blocks[block_count - 1 - i % block_count];
      for (std::int64_t t = block.first; t < block.first + block.count; ++t) {
        if (alone) store_heads(t, h, 1);
        float* q = qkv + t * ldqkv + h * group * head_dim;
        if (qk_norm)
          for (std::int64_t g = 0; g < group; ++g) (*q_norm_)(*rt.kernels, q + g * head_dim, q + g * head_dim);
        rotate(q, group, head_dim, rope.rotary_dim, rope.cos + t * half, rope.sin + t * half);
      }
      const kernels::AttendArgs args{.q = qkv + block.first * ldqkv + h * group * head_dim, .heads = group, .head_dim = head_dim,
                                     .keys = cache.keys(layer_, h), .values = cache.values(layer_, h), .block_stride = stride,
                                     .block_table = block.block_table, .block_size = shape.block_size,
                                     .begin = 0, .end = step.positions[static_cast<std::size_t>(block.first)] + 1, .tokens = block.count, .window = window_,
                                     .q_stride = ldqkv, .out_stride = ldattended, .scale = scale, .cold = block.first < pass.decode,
                                     .out = attended + block.first * ldattended + h * group * head_dim, .scratch = scratch + worker * scratch_floats};
      if (fp8) {
        const kernels::Fp8AttendArgs fp8_args{.attend = args, .scale_k = scales.k, .scale_v = scales.v, .inverse_q = 1.0f / scales.q, .scale_q = scales.q, .bound = rt.fp8_bound};
        if (rt.fp8_attention) fp8_kernels.attend_e4m3_full(fp8_args);
        else if (dots && block.first >= pass.decode) fp8_kernels.attend_e4m3_dot(fp8_args);
        else fp8_kernels.attend_e4m3(fp8_args);
      } else if (dots && block.first >= pass.decode) vector.attend_bf16_dot(args);
      else attend(args);
    }
  });
  if (rt.observer) {
    using enum Observer::Place;
    show_parts(rt, qkv_.row(), kQuery, qkv, ldqkv, pass.tokens, heads * head_dim);
    show_parts(rt, qkv_.row(), kKey, qkv + heads * head_dim, ldqkv, pass.tokens, kv_heads * head_dim, kv_copies_);
    show_parts(rt, qkv_.row(), kValue, qkv + (heads + kv_heads) * head_dim, ldqkv, pass.tokens, kv_heads * head_dim, kv_copies_);
  }
  o_(pass, attended - lead, ldattended, y, ldy);
}

}  // namespace inflight::nn
