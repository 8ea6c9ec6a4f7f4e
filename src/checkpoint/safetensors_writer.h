// Writing a .safetensors file in one pass with bounded memory, and a folder of files that appears complete or not at all.
//
//     OutputFolder folder = TRY(OutputFolder::create("out"));
//     SafetensorsWriter writer = TRY(SafetensorsWriter::create(folder.path() + "/model.safetensors", {{"a", DType::kF32, {2, 3}}}, {{"format", "pt"}}));
//     TRY(writer.write("a", rows, bytes));  // as many pieces as wanted, tensors in declared order
//     TRY(writer.commit());
//     TRY(folder.commit());
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace inflight::checkpoint {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;

  // Bytes of the tensor; kInternal for a negative dimension, an overflow, or 4-bit elements that do not fill the last byte.
  Result<std::int64_t> bytes() const;
};

class SafetensorsWriter {
 public:
  // Writes the header (padded with spaces, so that the data begins at a multiple of 8) to "<path>.part". Data lies in the order of `tensors`.
  // The format has no padding between tensors: declare wide element types first where a reader wants aligned tensors.
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorSpec> tensors, const std::map<std::string, std::string>& metadata = {});

  // The next `bytes` of tensor `name`, row-major, little-endian. Another tensor than the next unfinished one, or too many bytes: kInternal.
  // A full disk is kExhausted. After any error the file can no longer be committed and is removed with the writer.
  Result<void> write(std::string_view name, const void* data, std::size_t bytes);

  // Renames to `path`; kInternal when a tensor is not complete.
  Result<void> commit();

 private:
  SafetensorsWriter(OutputFile file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  void skip_complete();

  OutputFile file_;
  std::string path_;
  std::vector<std::pair<std::string, std::int64_t>> tensors_;  // name, bytes
  std::size_t next_ = 0;                                       // the tensor being written
  std::int64_t written_ = 0;                                   // bytes of it so far
  bool failed_ = false;
};

// Builds "<target>.part" and renames it to `target` in commit(); without commit() it is removed with all it holds.
class OutputFolder {
 public:
  // kInvalidArgument: `target` exists and is not an empty folder, or "<target>.part" is left from an earlier run.
  static Result<OutputFolder> create(const std::string& target);
  // The folder that another process has created for `target` and will commit. Until release(), it is removed from here too.
  static OutputFolder join(const std::string& target);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

  void release() { part_.clear(); }  // what is there is no longer this object's
  const std::string& path() const { return part_; }  // write files here; all must be committed before the folder is
  Result<void> commit();

 private:
  OutputFolder(std::string target, std::string part) : target_(std::move(target)), part_(std::move(part)) {}
  std::string target_, part_;  // part_ is empty once committed or moved from
};

}  // namespace inflight::checkpoint
