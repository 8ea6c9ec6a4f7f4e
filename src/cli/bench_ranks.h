// The part of `bench` about ranks: what a rank sends, counted by the collectives themselves, beside what the formulas of docs/scaling.md say.
#pragma once
#include <cstdint>
#include <optional>

#include "base/json.h"
#include "comm/comm.h"
#include "engine/open_model.h"

namespace inflight::cli {

// All that this rank has sent so far in the groups that it is in.
comm::Traffic traffic_so_far(const engine::OpenedModel& opened);

// Some steps.
struct SentInSteps {
  std::int64_t steps = 0, tokens = 0, logit_rows = 0;
  comm::Traffic traffic;
};

// Collects the traffic of steps from its construction to end().
class TrafficWatch {
 public:
  explicit TrafficWatch(const engine::OpenedModel& opened) : opened_(opened), before_(traffic_so_far(opened)) {}
  SentInSteps end(std::int64_t steps, std::int64_t tokens, std::int64_t logit_rows) const;

 private:
  const engine::OpenedModel& opened_;
  comm::Traffic before_;
};

// What rank 0 sends for such steps by the formulas, where all ranks have the same tokens; nullopt with groups of their own.
std::optional<comm::Traffic> formula_traffic(const engine::OpenedModel& opened, const SentInSteps& steps);

// {"size", "prefill": {...}, "decode": {...}}; steps of no tokens are left out.
OrderedJson ranks_json(const engine::OpenedModel& opened, const SentInSteps& prefill, const SentInSteps& decode);
// The same as lines of text.
std::string ranks_text(const OrderedJson& json);

}  // namespace inflight::cli
