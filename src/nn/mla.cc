#include "nn/mla.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/latent.h"

namespace inflight::nn {
namespace {

using params::Role;
using params::Split;

constexpr float kNormEps = 1e-6f;  // of the latents' norms: the reference takes its default here, whatever rms_norm_eps says
// A generated token's rows are attended in runs of fixed length, so that threads share a long context; runs are merged in order.
constexpr std::int64_t kRun = 512;
// Query rows (heads times tokens) of one task: their weighted sums stay in the second-level cache.
constexpr std::int64_t kTaskRows = 128;
// Prompt tokens that share one making of keys and values: their state stays in the second-level cache.
constexpr std::int64_t kPlainTokens = 512;
// Tokens in latent space at a time: heads * (R + P) floats each are much more than a token's other activations.
constexpr std::int64_t kTokensAtOnce = 64;
constexpr std::int64_t kPartFloats = std::int64_t{8} << 20;  // of runs waiting to be merged, at most (or one token's)

}  // namespace

// k_b and v_b follow from kv_b_proj, or are there themselves (GGUF files), FP32 then.
LatentAttention::Halves LatentAttention::declare_halves(const Scope& scope, const AttentionSizes& common, const LatentAttentionSizes& c) {
  const std::int64_t unit = c.nope_dim + c.value_dim, value_step = padded(c.value_dim);
  params::ParamSpec k_b{.name = "k_b_proj", .role = Role::kRouter, .split = Split::kOutputs, .pieces = {{"k_b_proj", common.heads * c.rank}}, .inputs = c.nope_dim, .unit = c.rank};
  params::ParamSpec v_b{.name = "v_b_proj", .role = Role::kRouter, .split = Split::kOutputs, .pieces = {{"v_b_proj", common.heads * value_step}}, .inputs = c.rank, .unit = value_step};
  std::int64_t source = -1;
  if (!has_halves(scope)) {
    const std::size_t kv_b = scope.declare({.name = "kv_b_proj", .split = Split::kOutputs, .pieces = {{"kv_b_proj", common.heads * unit}}, .inputs = c.rank, .unit = unit});
    source = static_cast<std::int64_t>(kv_b);
    k_b.role = v_b.role = Role::kDerived;
    k_b.derivation = params::Derivation{.source = kv_b, .unit = unit, .first = 0, .rows = c.nope_dim, .transposed = true};
    v_b.derivation = params::Derivation{.source = kv_b, .unit = unit, .first = c.nope_dim, .rows = c.value_dim};
  }
  const std::size_t k = scope.declare(std::move(k_b));
  return {k, scope.declare(std::move(v_b)), source};
}

bool LatentAttention::has_halves(const Scope& scope) { return scope.has_tensor("k_b_proj.weight"); }

quant::Arithmetic LatentAttention::arithmetic(const Runtime& runtime, DType cache) {
  const bool dots = cache == DType::kBF16 && runtime.kernels->latent->attend_bf16_dot && runtime.compute.plain_prefill == quant::Arithmetic::kBf16;
  return dots ? quant::Arithmetic::kBf16 : quant::Arithmetic::kFp32;
}

std::int64_t LatentAttention::workspace_floats(std::int64_t heads, std::int64_t row_dim, std::int64_t rank) {
  return kTokensAtOnce * heads * (row_dim + 2 * rank) + kPartFloats;
}

LatentAttention::LatentAttention(const Scope& scope, const AttentionSizes& common, const LatentAttentionSizes& c, std::int64_t layer)
    : common_(common),
      sizes_(c),
      layer_(layer),
      down_(scope, c.q_rank > 0 ? params::ParamSpec{.name = "qkv_a_proj", .pieces = {{"q_a_proj", c.q_rank}, {"kv_a_proj_with_mqa", c.row_dim()}}, .inputs = common.hidden}
                                : params::ParamSpec{.name = "kv_a_proj_with_mqa", .pieces = {{"kv_a_proj_with_mqa", c.row_dim()}}, .inputs = common.hidden}),
      kv_norm_(scope, "kv_a_layernorm", c.rank, kNormEps),
      q_(scope, {.name = c.q_rank > 0 ? "q_b_proj" : "q_proj", .split = Split::kOutputs, .pieces = {{c.q_rank > 0 ? "q_b_proj" : "q_proj", common.heads * c.query_dim()}},
                 .inputs = c.q_rank > 0 ? c.q_rank : common.hidden, .unit = c.query_dim()}),
      store_(scope.store()),
      halves_(declare_halves(scope, common, c)),
      o_(scope, {.name = "o_proj", .split = Split::kInputs, .pieces = {{"o_proj", common.hidden}}, .inputs = common.heads * c.value_dim, .unit = c.value_dim}) {
  common_.heads = scope.topology().share(common.heads);
  if (c.q_rank > 0) q_norm_.emplace(scope, "q_a_layernorm", c.q_rank, kNormEps);
}

void LatentAttention::operator()(const Pass& pass, const Step& step, const RopeTable& rope, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const {
  Runtime& rt = pass.runtime;
  const kernels::VectorKernels& vector = *rt.kernels->vector;
  const std::int64_t heads = common_.heads, rank = sizes_.rank, half = rope.rotary_dim / 2;
  const KvCache& cache = *step.cache;
  const KvShape& shape = cache.shape();

  const std::int64_t lda = padded(down_.outputs()), ldq = padded(q_.outputs());
  float* a = rt.workspace.floats(pass.tokens * lda);  // [q's low-rank form | latent | rotary part]
  float* q = rt.workspace.floats(pass.tokens * ldq);
  down_(pass, x, ldx, a, lda);
  if (q_norm_) {
    (*q_norm_)(pass, a, lda, a, lda);
    q_(pass, a, lda, q, ldq);
  } else {
    q_(pass, x, ldx, q, ldq);
  }

  auto* span_of = reinterpret_cast<std::int32_t*>(rt.workspace.bytes(static_cast<std::size_t>(pass.tokens) * sizeof(std::int32_t)));
  for (std::size_t s = 0; s < step.spans.size(); ++s)
    std::fill_n(span_of + step.spans[s].first, step.spans[s].count, static_cast<std::int32_t>(s));

  // All rows must be in the cache before any token attends.
  const auto rotate = common_.rope_pairs ? vector.rope_pairs : vector.rope_half;
  rt.pool->parallel_for(pass.tokens, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float *cos = rope.cos + t * half, *sin = rope.sin + t * half;
      float* row = a + t * lda + sizes_.q_rank;
      kv_norm_(*rt.kernels, row, row);
      rotate(row + rank, 1, sizes_.rope_dim, rope.rotary_dim, cos, sin);
      rotate(q + t * ldq + sizes_.nope_dim, heads, sizes_.query_dim(), rope.rotary_dim, cos, sin);
      const std::int64_t position = step.positions[static_cast<std::size_t>(t)];
      const std::int64_t block = step.spans[static_cast<std::size_t>(span_of[t])].block_table[position / shape.block_size], slot = position % shape.block_size;
      std::byte* slots = cache.latents(layer_) + block * cache.block_stride();
      if (shape.dtype == DType::kF32) std::copy_n(row, sizes_.row_dim(), reinterpret_cast<float*>(slots) + slot * sizes_.row_dim());
      else vector.to_bf16(row, sizes_.row_dim(), reinterpret_cast<std::uint16_t*>(slots) + slot * sizes_.row_dim());
    }
  });

  if (rt.observer && halves_.kv_b >= 0)
    rt.observer->see(static_cast<std::size_t>(halves_.kv_b), Observer::Place::kInput, a + sizes_.q_rank, lda, pass.tokens, rank);

  const std::int64_t lead = o_.lead(), ldh = lead + heads * sizes_.value_dim;
  float* out = rt.workspace.floats(pass.tokens * ldh) + lead;
  for (std::int64_t t = 0; lead > 0 && t < pass.tokens; ++t) std::fill_n(out + t * ldh - lead, lead, 0.0f);
  const std::size_t mark = rt.workspace.mark();
  const bool expanding = expands(sizes_.nope_dim, sizes_.value_dim);
  if (expanding) plain(pass, step, q, ldq, out, ldh);
  for (std::int64_t t = 0; t < (expanding ? pass.decode : pass.tokens);) {  // no group has tokens of both arithmetics
    const std::int64_t end = std::min(t + kTokensAtOnce, t < pass.decode ? pass.decode : pass.tokens);
    rt.workspace.rewind(mark);
    absorbed(pass, step, t, end - t, span_of, q, ldq, out, ldh);
    t = end;
  }
  o_(pass, out - lead, ldh, y, ldy);
}

// Prompt tokens. A task is one head of up to kPlainTokens tokens of a span.
void LatentAttention::plain(const Pass& pass, const Step& step, const float* q, std::int64_t ldq, float* heads_out, std::int64_t ldh) const {
  Runtime& rt = pass.runtime;
  if (pass.decode == pass.tokens) return;
  const std::int64_t heads = common_.heads, rank = sizes_.rank;
  const KvCache& cache = *step.cache;
  const KvShape& shape = cache.shape();
  const kernels::LatentKernels& latent = *rt.kernels->latent;
  const auto run = arithmetic(rt, shape.dtype) == quant::Arithmetic::kBf16 ? latent.expand_bf16_dot : shape.dtype == DType::kF32 ? latent.expand_f32 : latent.expand_bf16;
  const quant::Matrix &k_b = store_->matrix(halves_.k_b), &v_b = store_->matrix(halves_.v_b);
  const bool wide = k_b.format->codes == quant::Codes::kF32;
  const std::int64_t number = wide ? 4 : 2;

  struct Block {
    std::int64_t first, count;
    const std::int32_t* block_table;
  };
  auto* blocks = reinterpret_cast<Block*>(rt.workspace.bytes(static_cast<std::size_t>(pass.tokens) * sizeof(Block)));
  std::int64_t block_count = 0, largest = 0;
  for (const Span& span : step.spans)
    for (std::int64_t t = std::max(span.first, pass.decode); t < span.first + span.count;) {
      const std::int64_t count = std::min(kPlainTokens, span.first + span.count - t);
      blocks[block_count++] = {t, count, span.block_table};
      largest = std::max(largest, count);
      t += count;
    }
  const std::int64_t scratch_floats = padded(latent.expand_scratch(largest, sizes_.nope_dim, sizes_.rope_dim, rank, sizes_.value_dim));
  float* scratch = rt.workspace.floats(scratch_floats * rt.pool->threads());
  std::atomic<std::int64_t> next{0};
  rt.pool->run([&](int worker) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < heads * block_count;) {
      const Block& block = blocks[block_count - 1 - i / heads];
      const std::int64_t h = i % heads;
      run({.q = q + block.first * ldq + h * sizes_.query_dim(), .nope_dim = sizes_.nope_dim, .rope_dim = sizes_.rope_dim, .rank = rank, .value_dim = sizes_.value_dim,
           .k_b = k_b.codes + h * rank * sizes_.nope_dim * number, .v_b = v_b.codes + h * sizes_.value_dim * rank * number, .wide = wide, .latents = cache.latents(layer_), .block_stride = cache.block_stride(),
           .block_table = block.block_table, .block_size = shape.block_size, .end = step.positions[static_cast<std::size_t>(block.first)] + 1, .tokens = block.count, .q_stride = ldq, .out_stride = ldh,
           .scale = sizes_.score_scale, .out = heads_out + block.first * ldh + h * sizes_.value_dim, .scratch = scratch + worker * scratch_floats});
    }
  });
}

// Tokens [first, first + count): q -> latent space, attention there, and back to values. All of one arithmetic.
void LatentAttention::absorbed(const Pass& pass, const Step& step, std::int64_t first, std::int64_t count, const std::int32_t* span_of, const float* q, std::int64_t ldq, float* heads_out,
                               std::int64_t ldh) const {
  Runtime& rt = pass.runtime;
  const bool decode = first < pass.decode;
  const std::int64_t heads = common_.heads, rank = sizes_.rank, row_dim = sizes_.row_dim(), ldv = padded(sizes_.value_dim);
  const quant::Matrix &k_b = store_->matrix(halves_.k_b), &v_b = store_->matrix(halves_.v_b);
  // One head's panels of a derived matrix; its activations are converted by the task itself.
  const auto multiply_head = [&](const quant::Matrix& w, std::byte* scratch, const float* x, std::int64_t ldx, std::int64_t panel, std::int64_t panels, float* y, std::int64_t ld) {
    const auto arithmetic = decode ? rt.compute.decode(w) : rt.compute.prefill(w);
    quant::convert_activations(w, arithmetic, *rt.kernels, x, ldx, count, 0, count, scratch);
    quant::multiply_panels(w, arithmetic, *rt.kernels, x, ldx, count, panel, panel + panels, y - panel * kernels::kPanelRows, ld, scratch);
  };
  const auto over_heads = [&](const quant::Matrix& w, auto&& body) {
    const auto arithmetic = decode ? rt.compute.decode(w) : rt.compute.prefill(w);
    const std::size_t bytes = (quant::apply_scratch(w, arithmetic, *rt.kernels, count) + 63) / 64 * 64;
    std::byte* scratch = rt.workspace.bytes(bytes * static_cast<std::size_t>(rt.pool->threads()));
    std::atomic<std::int64_t> next{0};
    rt.pool->run([&](int worker) {
      for (std::int64_t h; (h = next.fetch_add(1, std::memory_order_relaxed)) < heads;) body(h, scratch + bytes * static_cast<std::size_t>(worker));
    });
  };

  float* absorbed_q = rt.workspace.floats(count * heads * row_dim);
  over_heads(k_b, [&](std::int64_t h, std::byte* scratch) {
    const float* from = q + first * ldq + h * sizes_.query_dim();
    float* to = absorbed_q + h * row_dim;
    multiply_head(k_b, scratch, from, ldq, h * rank / kernels::kPanelRows, rank / kernels::kPanelRows, to, heads * row_dim);
    for (std::int64_t t = 0; t < count; ++t) std::copy_n(from + t * ldq + sizes_.nope_dim, sizes_.rope_dim, to + t * heads * row_dim + rank);
  });
  float* latent_out = rt.workspace.floats(count * heads * rank);
  attend(rt, step, first, count, decode, span_of, absorbed_q, latent_out);
  float* values = rt.workspace.floats(count * heads * ldv);
  over_heads(v_b, [&](std::int64_t h, std::byte* scratch) {
    float* to = values + h * ldv;
    multiply_head(v_b, scratch, latent_out + h * rank, heads * rank, h * ldv / kernels::kPanelRows, ldv / kernels::kPanelRows, to, heads * ldv);
    for (std::int64_t t = 0; t < count; ++t) std::copy_n(to + t * heads * ldv, sizes_.value_dim, heads_out + (first + t) * ldh + h * sizes_.value_dim);
  });
}

// q [count, heads, R + P] -> out [count, heads, R].
void LatentAttention::attend(Runtime& rt, const Step& step, std::int64_t first, std::int64_t count, bool decode, const std::int32_t* span_of, const float* q, float* out) const {
  const std::int64_t heads = common_.heads, rank = sizes_.rank, row_dim = sizes_.row_dim();
  const KvCache& cache = *step.cache;
  const KvShape& shape = cache.shape();
  const kernels::LatentKernels& latent = *rt.kernels->latent;
  const auto run = arithmetic(rt, shape.dtype) == quant::Arithmetic::kBf16 ? latent.attend_bf16_dot : shape.dtype == DType::kF32 ? latent.attend_f32 : latent.attend_bf16;
  const std::int64_t task_heads = std::min(heads, kTaskRows), head_blocks = (heads + task_heads - 1) / task_heads;

  // A task: some heads of some consecutive tokens of a span, over all rows that they see (prompts) or over one run of them (generated tokens).
  struct Task {
    std::int64_t token, tokens, begin, end;
    float* out;  // [tokens, heads, R]
    float *maxima, *sums;
  };
  const auto position_of = [&](std::int64_t t) { return std::int64_t{step.positions[static_cast<std::size_t>(first + t)]}; };
  const auto runs_of = [&](std::int64_t t) { return decode ? position_of(t) / kRun + 1 : 1; };
  const std::int64_t task_tokens = decode ? 1 : std::max<std::int64_t>(kTaskRows / padded(heads), 1);
  const std::size_t mark = rt.workspace.mark();
  for (std::int64_t group = 0; group < count;) {
    rt.workspace.rewind(mark);
    std::int64_t group_end = group, tasks_at_most = 0, parts = 0;
    while (group_end < count && (group_end == group || (parts + runs_of(group_end)) * heads * rank <= kPartFloats)) {
      tasks_at_most += runs_of(group_end);
      parts += runs_of(group_end) > 1 ? runs_of(group_end) : 0;
      ++group_end;
    }
    auto* tasks = reinterpret_cast<Task*>(rt.workspace.bytes(static_cast<std::size_t>(tasks_at_most) * sizeof(Task)));
    float* part_out = rt.workspace.floats(parts * heads * rank);
    float* part_maxima = rt.workspace.floats(parts * heads);
    float* part_sums = rt.workspace.floats(parts * heads);
    std::int64_t task_count = 0;
    for (std::int64_t t = group, part = 0; t < group_end;) {
      const Span& span = step.spans[static_cast<std::size_t>(span_of[first + t])];
      const std::int64_t end = position_of(t) + 1, runs = runs_of(t);
      if (runs > 1) {
        for (std::int64_t r = 0; r < runs; ++r, ++part)
          tasks[task_count++] = {t, 1, r * kRun, std::min(end, (r + 1) * kRun), part_out + part * heads * rank, part_maxima + part * heads, part_sums + part * heads};
        ++t;
        continue;
      }
      const std::int64_t tokens = std::min({task_tokens - position_of(t) % task_tokens, span.first + span.count - first - t, group_end - t});
      tasks[task_count++] = {t, tokens, 0, end, out + t * heads * rank, nullptr, nullptr};
      t += tokens;
    }

    const std::int64_t scratch_floats = padded(latent.scratch(task_tokens, task_heads, row_dim, rank));
    float* scratch = rt.workspace.floats(scratch_floats * rt.pool->threads());
    std::atomic<std::int64_t> next{0};
    rt.pool->run([&](int worker) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < task_count * head_blocks;) {
        const Task& task = tasks[task_count - 1 - i / head_blocks];  // late tokens, which see most rows, first
        const std::int64_t h = i % head_blocks * task_heads;
        run({.q = q + (task.token * heads + h) * row_dim, .heads = std::min(task_heads, heads - h), .dim = row_dim, .value_dim = rank, .latents = cache.latents(layer_),
             .block_stride = cache.block_stride(), .block_table = step.spans[static_cast<std::size_t>(span_of[first + task.token])].block_table, .block_size = shape.block_size, .begin = task.begin, .end = task.end,
             .tokens = task.tokens, .q_stride = heads * row_dim, .out_stride = heads * rank, .scale = sizes_.score_scale, .out = task.out + h * rank,
             .maxima = task.maxima ? task.maxima + h : nullptr, .sums = task.sums ? task.sums + h : nullptr, .scratch = scratch + worker * scratch_floats});
      }
    });

    // A head's runs, in order: weights follow from the runs' maxima and sums.
    std::int64_t part = 0;
    for (std::int64_t t = group; t < group_end; ++t) {
      const std::int64_t runs = runs_of(t);
      if (runs == 1) continue;
      rt.pool->parallel_for(heads, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t h = begin; h < end; ++h) {
          float most = part_maxima[part * heads + h], total = 0;
          for (std::int64_t r = 1; r < runs; ++r) most = std::max(most, part_maxima[(part + r) * heads + h]);
          const auto weight = [&](std::int64_t r) { return part_sums[(part + r) * heads + h] * std::exp(part_maxima[(part + r) * heads + h] - most); };
          for (std::int64_t r = 0; r < runs; ++r) total += weight(r);
          float* merged = out + (t * heads + h) * rank;
          std::fill_n(merged, rank, 0.0f);
          for (std::int64_t r = 0; r < runs; ++r) rt.kernels->vector->add_scaled(merged, part_out + ((part + r) * heads + h) * rank, weight(r) / total, rank);
        }
      });
      part += runs;
    }
    group = group_end;
  }
}

}  // namespace inflight::nn
