// Files: reading whole, positioned reads with clear errors, and writing that is all or nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace inflight {

// The whole file. Refuses directories and files over `max_bytes`.
Result<std::string> read_file(const std::string& path, std::int64_t max_bytes = std::int64_t{1} << 30);

bool is_directory(const std::string& path);
bool is_regular_file(const std::string& path);

// An open file for positioned reads. Move-only; closes itself. Safe to read from several threads.
class InputFile {
 public:
  // direct: past the page cache (O_DIRECT), where the file system takes 4096-byte aligned reads of this file; else as usual. See direct().
  static Result<InputFile> open(const std::string& path, bool direct = false);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  // Reads exactly `bytes` at `offset`. A short read is an error that says how much of how much came: the file shrank.
  Result<void> read_at(void* into, std::size_t bytes, std::int64_t offset) const { return read_at(into, bytes, offset, bytes); }
  // The same, content with `required` bytes: direct reads are whole blocks and reach past the end of the file.
  Result<void> read_at(void* into, std::size_t bytes, std::int64_t offset, std::size_t required) const;
  std::int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  int descriptor() const { return descriptor_; }

 private:
  InputFile(int descriptor, std::int64_t size, std::string path, bool direct) : descriptor_(descriptor), size_(size), path_(std::move(path)), direct_(direct) {}
  int descriptor_ = -1;
  std::int64_t size_ = 0;
  std::string path_;
  bool direct_ = false;
};

// Writes to "<path>.part" and renames to `path` in commit(); without commit() the temporary file is removed.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Result<void> write(const void* data, std::size_t bytes);
  Result<void> commit();  // flush to disk, close, rename

 private:
  OutputFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_ = -1;
  std::string path_;
};

}  // namespace inflight
