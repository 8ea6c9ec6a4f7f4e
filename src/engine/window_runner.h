// A model over windows of tokens, each by itself, as prompts: for conversions that look at what a model does.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/open_model.h"
#include "nn/kv_cache.h"

namespace inflight::engine {

using Windows = std::vector<std::vector<std::int32_t>>;

class WindowRunner {
 public:
  // kInvalidArgument: windows with ids that the model does not have, or longer than its context.
  static Result<WindowRunner> create(OpenedModel& opened, const EngineOptions& options, const Windows& windows);
  // logits: nullptr, or [window.size(), Model::logits_stride()].
  void run(std::span<const std::int32_t> window, float* logits = nullptr);

 private:
  WindowRunner() = default;
  OpenedModel* opened_ = nullptr;
  std::shared_ptr<nn::KvCache> cache_;
  std::int64_t step_ = 0;            // tokens of one step
  std::vector<std::int32_t> table_;  // blocks of the cache
};

}  // namespace inflight::engine
