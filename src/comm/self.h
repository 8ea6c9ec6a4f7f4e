// A group of one rank.
#pragma once
#include <memory>

#include "comm/comm.h"

namespace inflight::comm {

std::unique_ptr<Comm> self();

}  // namespace inflight::comm
