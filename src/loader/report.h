// What loading did: every checkpoint tensor is in exactly one bin.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace inflight::loader {

struct LoadReport {
  double seconds = 0;                    // from the first read to the last parameter complete
  std::int64_t source_bytes = 0;         // checkpoint bytes read
  std::int64_t weight_bytes = 0;         // parameter memory
  std::int64_t tensors_loaded = 0;
  std::int64_t tensors_elsewhere = 0;    // belong to another rank
  std::vector<std::string> ignored;      // "name (rule)"
  bool direct_io = false;                // some shard was read past the page cache
};

}  // namespace inflight::loader
