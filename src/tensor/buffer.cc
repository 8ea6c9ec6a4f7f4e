#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace inflight {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

Result<Buffer> Buffer::map(std::size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > SIZE_MAX / 2) return fail(Code::kExhausted, "cannot reserve {} bytes of memory", bytes);
  // Small buffers would waste most of a huge page and need no alignment to one.
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 4096;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  const std::size_t mapped = rounded + (alignment > 4096 ? alignment : 0);
  void* base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return fail(Code::kExhausted, "cannot reserve {} bytes of memory: {}", bytes, std::strerror(errno));
  const auto address = (reinterpret_cast<std::uintptr_t>(base) + alignment - 1) / alignment * alignment;
  buffer.data_ = reinterpret_cast<std::byte*>(address);
  buffer.bytes_ = bytes;
  buffer.base_ = base;
  buffer.mapped_ = mapped;
  if (alignment == kHugePage) (void)::madvise(buffer.data_, rounded, MADV_HUGEPAGE);  // advice only
  return buffer;
}

Result<Buffer> Buffer::heap(std::size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  constexpr std::size_t kAlignment = 64;
  if (bytes > SIZE_MAX / 2) return fail(Code::kExhausted, "cannot reserve {} bytes of memory", bytes);
  buffer.base_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!buffer.base_) return fail(Code::kExhausted, "cannot reserve {} bytes of memory", bytes);
  buffer.data_ = static_cast<std::byte*>(std::memset(buffer.base_, 0, bytes));
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(base_, other.base_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Buffer::~Buffer() {
  if (mapped_) ::munmap(base_, mapped_);
  else std::free(base_);
}

}  // namespace inflight
