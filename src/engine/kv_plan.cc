#include "engine/kv_plan.h"

#include <algorithm>
#include <limits>

#include "engine/open_model.h"
#include "nn/mla.h"

namespace inflight::engine {
namespace {

constexpr std::int64_t kUnboundedLength = std::numeric_limits<std::int32_t>::max();  // positions are int32

Result<void> at_least(std::string_view flag, std::int64_t value, std::int64_t least) {
  if (value >= least) return {};
  return fail(Code::kInvalidArgument, "{} {}: must be at least {}", flag, value, least);
}

}  // namespace

Result<nn::KvShape> kv_shape(const models::ModelInfo& info, const EngineOptions& options) {
  TRY(at_least("--max-num-seqs", options.max_num_seqs, 1));
  TRY(at_least("--max-num-batched-tokens", options.max_num_batched_tokens, 1));
  TRY(at_least("--max-model-len", options.max_model_len, 0));
  TRY(at_least("kv_cache_bytes", options.kv_cache_bytes, 0));
  if (options.block_size <= 0 || options.block_size % 16 != 0)
    return fail(Code::kInvalidArgument, "--block-size {}: must be a positive multiple of 16 (for example 64)", options.block_size);
  return info.kv_shape(options.block_size, TRY(kv_cache_dtype(options)));
}

std::int64_t workspace_estimate(const models::ModelInfo& info, const EngineOptions& options) {
  // Floats a token: the residual and its norm, both twice (4 H); q, its attention output, k and v; gate, up and their product with an
  // intermediate size of up to 6 H (18 H); the same again for a quantized copy of the widest input (6 H).
  // Latent attention: q and the heads' values, twice each.
  const std::int64_t token = 28 * info.hidden + (info.value_dim > 0 ? 4 * info.heads * info.query_dim : (2 * info.heads + 2 * info.kv_heads) * info.head_dim);
  // Ranks gather their parts of the logits in two more buffers.
  const std::int64_t logits = (info.topology.tp_size > 1 ? 3 : 1) * options.max_num_seqs * (info.vocabulary + 15) / 16 * 16;
  const std::int64_t latent_space = info.value_dim > 0 ? nn::LatentAttention::workspace_floats(info.heads, info.head_dim, info.value_dim) : 0;
  return 4 * (options.max_num_batched_tokens * token + logits + latent_space) + (std::int64_t{64} << 20);
}

Result<KvPlan> plan_kv(const models::ModelInfo& info, const EngineOptions& options, const MemoryLimit& available) {
  KvPlan plan;
  plan.shape = TRY(kv_shape(info, options));
  const std::int64_t block = plan.shape.block_bytes(), block_size = plan.shape.block_size;
  const std::int64_t promise = info.max_positions > 0 ? std::min(info.max_positions, kUnboundedLength) : kUnboundedLength;
  if (options.max_model_len > promise)
    return fail(Code::kInvalidArgument, "--max-model-len {} is more than the {} positions that the model's config.json promises; lower it", options.max_model_len, promise);

  const bool given = options.kv_cache_bytes > 0;
  const std::int64_t reserve = workspace_estimate(info, options) + available.bytes / 10;
  const std::int64_t bytes = given ? options.kv_cache_bytes : std::max<std::int64_t>(available.bytes - reserve, 0);
  const std::string budget = given ? fmt::format("kv_cache_bytes is {}", format_bytes(bytes))
                                   : fmt::format("{} left for the KV cache: {} available ({}) less a reserve of {}", format_bytes(bytes),
                                                 format_bytes(available.bytes), available.source, format_bytes(reserve));
  const std::int64_t held = bytes / block;  // blocks
  if (held == 0)
    return fail(Code::kExhausted, "no memory for the KV cache: one block of {} tokens needs {}, but {}; free memory, lower --max-num-batched-tokens, or quantize the model further",
                block_size, format_bytes(block), budget);

  const std::int64_t wanted = options.max_model_len > 0 ? options.max_model_len : promise;
  const std::int64_t needed = (wanted + block_size - 1) / block_size;  // blocks of one sequence of the wanted length
  if (held < needed && options.max_model_len > 0)
    return fail(Code::kExhausted, "--max-model-len {} needs {} of KV cache ({} a token), but memory holds {} tokens: {}; lower --max-model-len to {} or free memory",
                wanted, format_bytes(needed * block), format_bytes(plan.shape.token_bytes()), held * block_size, budget, held * block_size);
  plan.max_model_len = std::min(wanted, held * block_size);
  if (plan.max_model_len < wanted) plan.bound = fmt::format("memory: {}, {} a token", budget, format_bytes(plan.shape.token_bytes()));
  else if (options.max_model_len > 0) plan.bound = fmt::format("--max-model-len {}", options.max_model_len);
  else plan.bound = fmt::format("the model's {} positions", promise);
  const std::int64_t one = (plan.max_model_len + block_size - 1) / block_size;
  plan.blocks = held / options.max_num_seqs >= one ? one * options.max_num_seqs : held;
  return plan;
}

}  // namespace inflight::engine
