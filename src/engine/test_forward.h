// For tests: one sequence through a model as a single step, on a cache of its own.
#pragma once
#include <numeric>
#include <vector>

#include "engine/open_model.h"
#include "engine/ranks.h"

namespace inflight::engine {

struct ForwardOptions {
  bool hidden = false;     // also the residual stream
  bool decode = false;     // decode arithmetic for every token (else prefill arithmetic)
  DType kv_dtype = DType::kF32;
  bool last_only = false;  // logits of the last token alone
};

struct ForwardResult {
  std::vector<float> logits;  // [T or 1, logits_stride()]
  std::vector<float> hidden;  // [layers + 1, T, H]; the last after the final norm
};

inline ForwardResult forward_once(OpenedModel& opened, const std::vector<std::int32_t>& ids, const ForwardOptions& options = {}) {
  const models::ModelInfo& info = opened.model->info();
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const nn::KvShape shape = info.kv_shape(16, options.kv_dtype);
  const auto cache = create_cache(opened, shape, (tokens + 15) / 16).value();
  std::vector<std::int32_t> positions(ids.size()), blocks(static_cast<std::size_t>(cache->blocks())), rows;
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(blocks.rbegin(), blocks.rend(), 0);  // backwards: a block table that is not the identity
  for (std::int64_t t = options.last_only ? tokens - 1 : 0; t < tokens; ++t) rows.push_back(static_cast<std::int32_t>(t));
  const nn::Span span{.first = 0, .count = tokens, .block_table = blocks.data(), .rope_length = options.decode ? 0 : tokens};
  ForwardResult result;
  result.logits.resize(rows.size() * static_cast<std::size_t>(opened.model->logits_stride()));
  if (options.hidden) result.hidden.resize(static_cast<std::size_t>((info.layers + 1) * tokens * info.hidden));
  opened.model->forward({.ids = ids, .positions = positions, .spans = {&span, 1}, .decode_tokens = options.decode ? tokens : 0, .logit_rows = rows,
                         .cache = cache.get(), .logits = result.logits.data(), .hidden = options.hidden ? result.hidden.data() : nullptr},
                        *opened.runtime);
  return result;
}

}  // namespace inflight::engine
