// What ranks must have the same to run one model together: comm::agree's facts.
#pragma once
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/agree.h"
#include "engine/options.h"

namespace inflight::cli {

using Facts = std::vector<comm::Fact>;

// All options but those that each host may have its own of (threads).
Facts facts_of(const engine::EngineOptions& options);
// config.json, and of each file the tensors' names, types, shapes and places.
Facts facts_of(const checkpoint::Checkpoint& checkpoint);

}  // namespace inflight::cli
