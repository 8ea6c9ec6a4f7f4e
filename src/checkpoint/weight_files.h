// Which files of a folder hold the weights, and whether they are all there. Shared by opening a checkpoint and by judging a cached snapshot.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/index_json.h"

namespace inflight::checkpoint {

struct WeightFiles {
  std::vector<std::string> paths;    // sorted; all exist and are regular files
  std::optional<WeightIndex> index;  // its files are `paths`, in the same order; nullopt for a single model.safetensors
};

// The index wins over a model.safetensors beside it. kNotFound lists every missing file; kUnsupported names what was found instead.
Result<WeightFiles> find_weight_files(const std::string& folder);

// A JSON file that must be an object, at most `max_bytes` long. Does not wait on pipes and other special files.
Result<Json> read_json_object(const std::string& path, std::int64_t max_bytes = std::int64_t{16} << 20);

// "a, b, c", or the first `most` of them "and N more".
std::string name_list(const std::vector<std::string>& names, std::size_t most = 200);

}  // namespace inflight::checkpoint
