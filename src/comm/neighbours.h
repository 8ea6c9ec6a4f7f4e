// Ranks of one host, what they share there, and numbers that they share out.
#pragma once
#include <cstdint>
#include <string>

#include "comm/comm.h"

namespace inflight::comm {

// What tells hosts apart, another after each boot; processes in containers of one host read the same. "": unknown.
std::string boot_id();
// A hash of it, for messages.
std::uint64_t host_id();

// Collectives; after a failure the results mean nothing.
struct Neighbours {
  int ranks = 1;      // on this host
  int same_cpus = 1;  // of them, those that may use the same CPUs as this one
  int before = 0;     // of those, the ones of lower rank
};
Neighbours neighbours(Comm& ranks);
// The sum of `bytes` over the ranks of this host.
std::int64_t sum_on_host(Comm& ranks, std::int64_t bytes);

}  // namespace inflight::comm
