// Whether all ranks have the same (version, options, instruction set, checkpoint), and whether all have succeeded.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "comm/comm.h"

namespace inflight::comm {

using Fact = std::pair<std::string, std::string>;  // name and value

// A collective. Every rank gets the same error, which names the first rank that differs from rank 0, the fact and both values.
Result<void> agree(Comm& comm, std::span<const Fact> facts);

struct RankError {
  int rank = 0;
  Error error;
};
// A collective: the error of the first rank that has one, the same on every rank (1023 bytes of its message). nullopt: none has, or the group failed. The group goes on.
std::optional<RankError> first_error(Comm& comm, const std::optional<Error>& mine);

}  // namespace inflight::comm
