// Ranks that are threads of this process.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "comm/comm.h"

namespace inflight::comm {

// One end for each of n threads, which may go to their threads in any way and outlive each other.
std::vector<std::unique_ptr<Comm>> thread_ranks(int n);

// The same as if the ranks were on several hosts: hosts[r] is that of rank r. Ranks of different hosts share no memory, only messages.
std::vector<std::unique_ptr<Comm>> thread_ranks(std::span<const int> hosts);

}  // namespace inflight::comm
