// model.safetensors.index.json: which tensor lies in which file of a sharded checkpoint.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace inflight::checkpoint {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleName = "model.safetensors";
inline constexpr std::int64_t kMaxIndexBytes = 100'000'000;

struct WeightIndex {
  std::vector<std::string> files;                    // distinct, sorted: the shards
  std::vector<std::pair<std::string, int>> tensors;  // name -> position in `files`, sorted by name

  // Position in `files` of the shard that holds `name`; -1 when the index does not list it.
  int shard_of(std::string_view name) const;
};

// Other keys than "weight_map" are ignored ("metadata" with its "total_size" is often wrong in the wild). kCorrupt: not JSON, no or an empty weight_map,
// a tensor listed twice, a file name that is not a plain name inside the folder. kUnsupported: a file that is no .safetensors. `where`: its name in messages.
Result<WeightIndex> parse_index(std::string_view text, std::string_view where);

// Empty when `name` is a plain file name (no separator, not "." or "..", no control characters), else what is wrong with it.
std::string_view file_name_problem(std::string_view name);

}  // namespace inflight::checkpoint
