// For tests: a checkpoint folder held in memory, to be changed in one place and written out.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"

namespace inflight::engine {

struct TestFolder {
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::string data;
  };
  Json config;
  std::map<std::string, Tensor> tensors;

  static TestFolder read(const std::string& folder) {
    TestFolder result;
    const auto checkpoint = checkpoint::Checkpoint::open(folder).value();
    result.config = checkpoint.config();
    for (const auto& tensor : checkpoint.tensors()) {
      Tensor copy{tensor.info.dtype, tensor.info.shape, std::string(static_cast<std::size_t>(tensor.info.bytes()), '\0')};
      checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].read_at(copy.data.data(), copy.data.size(), tensor.info.begin).value();
      result.tensors.emplace(tensor.info.name, std::move(copy));
    }
    return result;
  }

  void write(const std::string& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config.dump(1);
    std::vector<checkpoint::TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
    auto writer = checkpoint::SafetensorsWriter::create(folder + "/model.safetensors", specs).value();
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.data.data(), tensor.data.size()).value();
    writer.commit().value();
  }
};

// A temporary folder that goes away with the test.
class ScratchFolder {
 public:
  ScratchFolder() : path_(std::filesystem::temp_directory_path() / fmt::format("inflight_test_{}_{}", ::getpid(), counter_++)) { std::filesystem::create_directories(path_); }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  std::string at(const std::string& name) const { return path_ / name; }

 private:
  static inline int counter_ = 0;
  std::filesystem::path path_;
};

}  // namespace inflight::engine
