#include "cli/forward_runner.h"

#include <algorithm>
#include <numeric>

#include "engine/kv_plan.h"
#include "engine/ranks.h"

namespace inflight::cli {
Result<ForwardRunner> ForwardRunner::create(engine::OpenedModel& opened, const engine::EngineOptions& options, std::int64_t sequences, std::int64_t tokens) {
  ForwardRunner runner;
  runner.opened_ = &opened;
  runner.blocks_per_sequence_ = std::max<std::int64_t>(1, (tokens + options.block_size - 1) / options.block_size);
  const std::int64_t blocks = runner.blocks_per_sequence_ * sequences;
  runner.cache_ = TRY(engine::create_cache(opened, TRY(engine::kv_shape(opened.model->info(), options)), blocks));
  runner.table_.resize(static_cast<std::size_t>(blocks));
  std::iota(runner.table_.begin(), runner.table_.end(), 0);
  return runner;
}

Result<void> ForwardRunner::run(const nn::Step& step) {
  opened_->model->forward(step, *opened_->runtime);
  if (auto error = engine::failure(*opened_)) return std::unexpected(*std::move(error));
  return {};
}

Result<void> ForwardRunner::forward(const Chunk& chunk) {
  const auto count = static_cast<std::int64_t>(chunk.ids.size());
  positions_.resize(chunk.ids.size());
  std::iota(positions_.begin(), positions_.end(), static_cast<std::int32_t>(chunk.position));
  rows_.clear();
  if (chunk.logits)
    for (std::int64_t row = chunk.logits_from; row < count; ++row) rows_.push_back(static_cast<std::int32_t>(row));
  const nn::Span span{.first = 0, .count = count, .block_table = table_.data() + chunk.sequence * blocks_per_sequence_, .rope_length = chunk.rope_length};
  const nn::Step step{.ids = chunk.ids,
                      .positions = positions_,
                      .spans = std::span(&span, 1),
                      .decode_tokens = chunk.phase == Phase::kDecode ? count : 0,
                      .logit_rows = rows_,
                      .cache = cache_.get(),
                      .logits = chunk.logits,
                      .hidden = chunk.hidden};
  return run(step);
}

Result<void> ForwardRunner::decode(std::span<const std::int32_t> ids, std::int64_t position, float* logits) {
  const auto count = static_cast<std::int64_t>(ids.size());
  positions_.assign(ids.size(), static_cast<std::int32_t>(position));
  rows_.resize(ids.size());
  std::iota(rows_.begin(), rows_.end(), 0);
  std::vector<nn::Span> spans;
  for (std::int64_t i = 0; i < count; ++i) spans.push_back({.first = i, .count = 1, .block_table = table_.data() + i * blocks_per_sequence_});
  const nn::Step step{.ids = ids, .positions = positions_, .spans = spans, .decode_tokens = count, .logit_rows = rows_, .cache = cache_.get(), .logits = logits};
  return run(step);
}

void ForwardRunner::repeat_cache(std::int64_t filled, std::int64_t upto) {
  engine::repeat_cache(*opened_, *cache_, static_cast<std::int64_t>(table_.size()) / blocks_per_sequence_, blocks_per_sequence_, filled, upto);
}

Result<void> check_ids(std::span<const std::int32_t> ids, const models::ModelInfo& info) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= info.vocabulary)
      return fail(Code::kInvalidArgument, "token {} has id {}, but the model's vocabulary has {} rows (0 to {})", i, ids[i], info.vocabulary, info.vocabulary - 1);
  if (info.max_positions > 0 && static_cast<std::int64_t>(ids.size()) > info.max_positions)
    return fail(Code::kInvalidArgument, "{} tokens are more than the model's context of {}", ids.size(), info.max_positions);
  return {};
}

std::vector<std::int32_t> synthetic_ids(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::int32_t& id : ids) {  // splitmix64
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    id = static_cast<std::int32_t>((z ^ (z >> 31)) % static_cast<std::uint64_t>(vocabulary));
  }
  return ids;
}

}  // namespace inflight::cli
