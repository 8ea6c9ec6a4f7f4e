// A checkpoint: config.json and the named tensors of a folder's .safetensors files, or the same of a GGUF file. Knows bytes and names, no model.
//
//     const Checkpoint checkpoint = TRY(Checkpoint::open(folder));
//     for (const Tensor& tensor : checkpoint.tensors())
//       TRY(checkpoint.shards()[tensor.shard].read_at(into, tensor.info.bytes(), tensor.info.begin));
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace inflight::checkpoint {

struct Tensor {
  TensorInfo info;
  int shard = 0;  // position in Checkpoint::shards()
};

class Checkpoint {
 public:
  // Reads config.json, model.safetensors.index.json (or, without one, the single model.safetensors) and every header; no tensor data.
  // Other .safetensors files beside them are not looked at. On success every shard exists, has the size its header says, and every tensor
  // exists exactly once, in the shard that the index names.
  // A path that ends in .gguf is a GGUF file (gguf_model.h): config.json is made from its metadata, tensors have Hugging Face's names, block types among them.
  // kNotFound: folder, config.json, weights or shards missing. kUnsupported: only weights in other forms (.bin, ...). kCorrupt: files contradict each
  // other.
  static Result<Checkpoint> open(const std::string& folder);

  const std::string& folder() const { return folder_; }  // or the GGUF file
  const Json& config() const { return config_; }  // always an object
  const std::string& config_path() const { return config_path_; }  // or the GGUF file
  const std::vector<InputFile>& shards() const { return shards_; }  // by file name; opened without O_DIRECT
  const std::vector<Tensor>& tensors() const { return tensors_; }   // shard order, then offset order
  const Tensor* find(std::string_view name) const;                  // nullptr when there is none
  std::int64_t data_bytes() const { return data_bytes_; }           // of all tensors

  // generation_config.json, or what a GGUF file says of sampling: an object, or nullopt when there is none.
  Result<std::optional<Json>> generation_config() const;

  // kCorrupt when the shard's file no longer has the size it had at open: its header no longer speaks for it. To be asked while reading.
  Result<void> verify_unchanged(int shard) const;

 private:
  Checkpoint() = default;
  Result<void> open_folder();
  Result<void> open_gguf_file();
  std::string folder_, config_path_;
  Json config_;
  std::optional<Json> generation_config_;  // of a GGUF file
  std::vector<InputFile> shards_;
  std::vector<Tensor> tensors_;
  std::vector<int> by_name_;  // positions in tensors_, sorted by name
  std::int64_t data_bytes_ = 0;
};

}  // namespace inflight::checkpoint
