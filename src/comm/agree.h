// Whether all ranks have the same: version, options, instruction set, checkpoint.
#pragma once
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "comm/comm.h"

namespace inflight::comm {

using Fact = std::pair<std::string, std::string>;  // name and value

// A collective. Every rank gets the same error, which names the first rank that differs from rank 0, the fact and both values.
Result<void> agree(Comm& comm, std::span<const Fact> facts);

}  // namespace inflight::comm
