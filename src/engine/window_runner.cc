#include "engine/window_runner.h"

#include <algorithm>
#include <numeric>

#include "engine/kv_plan.h"
#include "engine/ranks.h"

namespace inflight::engine {

Result<WindowRunner> WindowRunner::create(OpenedModel& opened, const EngineOptions& options, const Windows& windows) {
  const models::ModelInfo& info = opened.model->info();
  std::size_t longest = 1;
  for (const std::vector<std::int32_t>& window : windows) {
    longest = std::max(longest, window.size());
    if (info.max_positions > 0 && static_cast<std::int64_t>(window.size()) > info.max_positions)
      return fail(Code::kInvalidArgument, "the calibration has a window of {} tokens, the model a context of {}; is it another model's?", window.size(), info.max_positions);
    for (const std::int32_t id : window)
      if (id < 0 || id >= info.vocabulary) return fail(Code::kInvalidArgument, "the calibration has the token {}, the model's vocabulary {} rows; is it another model's?", id, info.vocabulary);
  }
  WindowRunner runner;
  runner.opened_ = &opened;
  runner.step_ = options.max_num_batched_tokens;
  const std::int64_t blocks = (static_cast<std::int64_t>(longest) + options.block_size - 1) / options.block_size;
  runner.cache_ = TRY(create_cache(opened, TRY(kv_shape(info, options)), blocks));
  runner.table_.resize(static_cast<std::size_t>(blocks));
  std::iota(runner.table_.begin(), runner.table_.end(), 0);
  return runner;
}

void WindowRunner::run(std::span<const std::int32_t> window, float* logits) {
  const auto tokens = static_cast<std::int64_t>(window.size());
  for (std::int64_t first = 0; first < tokens; first += step_) {
    const std::int64_t count = std::min(step_, tokens - first);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(count)), rows(logits ? static_cast<std::size_t>(count) : 0);
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
    std::iota(rows.begin(), rows.end(), 0);
    const nn::Span span{.first = 0, .count = count, .block_table = table_.data(), .rope_length = tokens};
    opened_->model->forward({.ids = window.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), .positions = positions, .spans = {&span, 1}, .logit_rows = rows,
                             .cache = cache_.get(), .logits = logits ? logits + first * opened_->model->logits_stride() : nullptr},
                            *opened_->runtime);
  }
}

}  // namespace inflight::engine
