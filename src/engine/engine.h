// The engine: submit requests, step, collect tokens. One thread drives it; the work inside a step runs on the pool.
//
//     auto engine = TRY(Engine::create(std::move(opened), options));
//     RequestId id = TRY(engine->submit(request));
//     while (engine->has_work())
//       for (const Event& event : engine->step()) ...
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/expert_balancer.h"
#include "engine/open_model.h"
#include "engine/options.h"
#include "engine/request.h"
#include "loader/update.h"

namespace inflight::engine {

struct EngineLimits {
  std::int64_t max_model_len = 0;   // longest prompt + answer that is accepted
  std::int64_t kv_blocks = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t block_size = 0;
};

class Engine {
 public:
  // Sizes the KV cache from free memory and the cgroup limit (never the config's maximum) and allocates it lazily. Of several ranks rank 0 alone has an engine; when
  // one of them fails, all requests end with an error event that says which and why, and submit() refuses more.
  static Result<std::unique_ptr<Engine>> create(std::unique_ptr<OpenedModel> model, const EngineOptions& options);
  ~Engine();

  // Refuses (with both numbers) a prompt that cannot fit, an empty prompt, ids outside the vocabulary, bad sampling values.
  Result<RequestId> submit(Request request);
  // Frees the request's blocks at once; a kCancelled event comes with the next step. Unknown or finished ids are ignored.
  void cancel(RequestId id);
  bool has_work() const;
  // One forward pass over a mix of prefill chunks and decode tokens (decode first), then sampling.
  std::vector<Event> step();
  const RequestStats* stats(RequestId id) const;  // of running or finished requests; nullptr once forgotten
  void forget(RequestId id);                      // drops the stats of a finished request

  // While paused, step() computes nothing; requests are taken and wait.
  void pause();
  void resume();
  bool paused() const;

  // New weights from a trainer, under the checkpoint's names and as plain numbers, quantized in flight as at loading (loader/update.h). `next` gives tensors in
  // any order, nullopt at the end; a part of them will do where each parameter that is touched has all of its own. All or nothing: after an error the old weights
  // serve on. Returns the version: 0 is what was loaded, each update adds one. Requests in progress go on from the tokens they have, recomputed.
  // Needs memory for the touched parameters again. Of several ranks each takes its slices, and all switch or none. kInvalidArgument: the engine is not paused, or as
  // Update says. kUnsupported: with enable_eplb.
  using TensorStream = std::function<Result<std::optional<loader::NamedTensor>>()>;
  Result<std::int64_t> update_weights(const TensorStream& next);
  std::int64_t weights_version() const;

  // With enable_eplb on several ranks: experts and their replicas are placed by the loads that came since the last time (expert_balancer.h). Ranks load what comes to them
  // from the checkpoint; all switch or none does: after an error the engine serves on with the placement it had. With eplb_interval step() does so by itself
  // every so many steps, loading beside them, and last_rebalance() says what came of it.
  Result<Rebalanced> rebalance_experts();
  const std::optional<Result<Rebalanced>>& last_rebalance() const;

  const EngineLimits& limits() const;
  const OpenedModel& model() const;

 private:
  Engine();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace inflight::engine
