// Writing a loaded model as a folder that loads again to identical codes: safetensors (compressed-tensors' names and packing) and a
// config.json whose quantization_config says everything. Bytes: docs/formats/.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "comm/comm.h"
#include "loader/load.h"
#include "params/param_spec.h"
#include "quant/store.h"

namespace inflight::loader {

struct ExportReport {
  std::int64_t bytes = 0;  // tensor data written
  int files = 0;
};

// Ranks that write one folder together: each writes the parameters that are its own into files of its own. The store of each holds its own, and knows of the others what engine::open_share() says.
struct ExportRanks {
  comm::Comm* ranks = nullptr;  // nullptr: this process alone writes all
  std::vector<int> owners = {}; // of each row of the table
};

// source_folder: where config.json, tokenizer and the like are copied from. The output folder appears complete or not at all
// (see checkpoint::OutputFolder). A GGUF file in its place gives config.json and sampling defaults; the rest is `companions` (name, content). kCancelled: `progress` said false. Weights are cut into files of at most max_shard_bytes.
Result<ExportReport> export_model(const std::string& source_folder, const params::ParamTable& table, const quant::ParamStore& store,
                                  const std::string& output_folder, const Progress& progress = {},
                                  std::int64_t max_shard_bytes = std::int64_t{5} << 30, const std::vector<std::pair<std::string, std::string>>& companions = {}, const ExportRanks& on = {});

}  // namespace inflight::loader
