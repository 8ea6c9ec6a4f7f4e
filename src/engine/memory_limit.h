// How much memory this process may still take: the machine's free memory, the cgroup's limit, the process's own limits.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"

namespace inflight::engine {

// Where the kernel's files are; tests put fake ones there.
struct SystemRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct MemoryLimit {
  std::int64_t bytes = 0;  // >= 0
  std::string source;      // what binds: "MemAvailable", "cgroup /sys/fs/cgroup/a/memory.max", "RLIMIT_AS", "RLIMIT_DATA"
};

// The smallest of
//   MemAvailable of <proc>/meminfo,
//   memory.max and memory.high (cgroup v2) or memory.limit_in_bytes (v1) of the process's cgroup and of each of its ancestors, less what is in
//     use there; file pages on the LRU lists (inactive_file + active_file of memory.stat) do not count as used, the kernel takes them back,
//   RLIMIT_AS less VmSize and RLIMIT_DATA less VmData, where such limits are set.
// A file that is missing or unreadable sets no limit; without MemAvailable (not Linux) it is an error.
Result<MemoryLimit> available_memory(const SystemRoots& roots = {});

// "3.50 GiB", "12.0 MiB", "512 B": for messages.
std::string format_bytes(std::int64_t bytes);

}  // namespace inflight::engine
