// One rank on its way from a placement of experts to another: it loads the experts that come to it while it computes on with those it has. Then, at a step's border,
// all ranks switch, or none does. Experts are loaded into places of their own (quant::Slot::reserved): only those that move are in memory twice.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/open_model.h"
#include "params/expert_placement.h"

namespace inflight::engine {

class ExpertMove {
 public:
  // Begins to load. The model must not go before this does.
  ExpertMove(OpenedModel& opened, std::shared_ptr<const params::ExpertPlacement> placement);
  // What was loaded is dropped, unless apply() was called.
  ~ExpertMove();
  ExpertMove(const ExpertMove&) = delete;
  ExpertMove& operator=(const ExpertMove&) = delete;

  bool done() const { return done_.load(std::memory_order_acquire); }
  void wait();
  // Once it is done: why it failed.
  const std::optional<Error>& error() const { return error_; }
  // The model computes with the new placement from now on; experts that left are dropped. Once it is done, without error, between steps.
  void apply();

 private:
  Result<void> load();

  OpenedModel& opened_;
  params::Topology topology_;           // with the new placement
  std::vector<std::size_t> arriving_;   // rows of the table
  std::vector<std::size_t> leaving_;
  std::optional<Error> error_;
  bool applied_ = false;
  std::atomic<bool> done_{false};
  std::thread loader_;
};

}  // namespace inflight::engine
