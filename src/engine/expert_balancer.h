// Placement of experts by their loads while a model runs (EPLB): when it is asked for, or every so many steps. On rank 0.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "engine/open_model.h"
#include "params/expert_placement.h"

namespace inflight::engine {

// The heaviest rank over the mean, over all layers: what the loads since the last placement weigh as they lie, and as they are placed now.
struct Rebalanced {
  double before = 1;
  double after = 1;
  std::int64_t layers = 0;  // whose experts moved
};

class ExpertBalancer {
 public:
  explicit ExpertBalancer(OpenedModel& opened) : opened_(&opened), interval_(opened.options.eplb_interval) {}

  // Places by the loads that came since the last time, and waits until all ranks have switched. kInvalidArgument: no placement can change here, or no token came.
  // Any other error: the placement is as it was.
  Result<Rebalanced> rebalance();
  // Between steps. Every `interval` steps a new placement begins; the ranks switch once all have loaded.
  void step();
  // What became of the last placement that step() began: an error leaves everything as it was.
  const std::optional<Result<Rebalanced>>& last() const { return last_; }

 private:
  // The next placement and what it promises; no placement: it would not help.
  struct Next {
    std::shared_ptr<const params::ExpertPlacement> placement;
    Rebalanced promised;
  };
  Result<Next> next();

  OpenedModel* opened_;
  std::int64_t interval_, steps_ = 0;
  params::ExpertLoads counted_;  // up to the last placement
  std::optional<Rebalanced> promised_;  // by the move under way
  std::optional<Result<Rebalanced>> last_;
};

}  // namespace inflight::engine
