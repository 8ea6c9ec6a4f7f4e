// Memory from the kernel: zeroed, aligned to 2 MiB, huge pages where the system grants them, given back whole. Pages become resident when written.
// heap() is the exception.
#pragma once
#include <cstddef>
#include <utility>

#include "base/result.h"

namespace inflight {

class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> map(std::size_t bytes);  // 0 bytes: an empty buffer
  // From the heap instead, zeroed, 64-byte aligned: for buffers that come and go by the hundred, whose pages the heap keeps.
  static Result<Buffer> heap(std::size_t bytes);
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), base_(std::exchange(other.base_, nullptr)), mapped_(std::exchange(other.mapped_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* base_ = nullptr;
  std::size_t mapped_ = 0;  // 0: from the heap
};

}  // namespace inflight
