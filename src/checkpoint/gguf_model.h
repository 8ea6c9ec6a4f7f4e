// A model in one GGUF file, or in the files that it was split into ("name-00001-of-00003.gguf").
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"

namespace inflight::checkpoint {

bool is_gguf_path(std::string_view path);  // by its name

struct GgufTensor {
  TensorInfo info;  // under Hugging Face's name
  int shard = 0;
};

struct GgufModel {
  Json config;                            // as config.json
  std::optional<Json> generation_config;
  std::vector<InputFile> shards;
  std::vector<GgufTensor> tensors;        // shard order, then offset order; names are different
};

// `path`: the file, or any file of a split model, whose others lie beside it.
// kNotFound: it or a file of the split is missing. kCorrupt: files contradict themselves or each other. kUnsupported: an architecture or type that is not read.
Result<GgufModel> open_gguf(const std::string& path);

// The file of a model that holds the metadata: `path`, or the first of the split that it belongs to.
std::string first_gguf_file(const std::string& path);

}  // namespace inflight::checkpoint
