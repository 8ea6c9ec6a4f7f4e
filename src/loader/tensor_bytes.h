// How the parts of loading that need several ranks reach a checkpoint's bytes, whether those are read from files or lie in memory.
#pragma once
#include <cstdint>
#include <functional>

#include "base/result.h"
#include "loader/page_cache.h"

namespace inflight::loader {

// Bytes of a checkpoint's tensors, wherever they are; called from all threads of the pool.
class TensorBytes {
 public:
  virtual ~TensorBytes() = default;
  // The range, counted from the tensor's first byte, will be read, perhaps in small runs and not all of it.
  virtual void expect(int tensor, FileRange range) const = 0;
  virtual Result<void> read(int tensor, std::int64_t offset, std::int64_t bytes, std::byte* into) const = 0;
};

// So many more bytes were read; false: nobody wants the rest. Called from all threads of the pool.
using Advance = std::function<bool(std::int64_t bytes, int worker)>;

}  // namespace inflight::loader
