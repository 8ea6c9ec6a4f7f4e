// The unit of loading: some rows of one tensor, small enough to be read, quantized and packed while they are in cache.
#pragma once
#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "loader/plan.h"

namespace inflight::loader {

// Bytes of a chunk: from the page cache small, so that rows are still in L2 when they are quantized; from the disk large, so that the
// device sees long requests.
inline constexpr std::int64_t kCachedChunkBytes = 512 << 10;
inline constexpr std::int64_t kDirectChunkBytes = 4 << 20;

struct Chunk {
  std::size_t route = 0;           // index into LoadPlan::routes
  std::int64_t row = 0;            // first row of the tensor
  std::int64_t rows = 0;           // for vectors and whole tensors: all elements in one chunk
};

// Cuts routes into chunks in file order. Rows are never split; chunk borders fall on panel borders of the destination where rows are many.
// chunk_bytes[shard]: how large a chunk of that shard should be.
std::vector<Chunk> cut_chunks(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, const std::vector<std::int64_t>& chunk_bytes);

// Bytes of one row of a route's tensor as it lies in the file, and of the part that is read.
std::int64_t file_row_bytes(const checkpoint::TensorInfo& tensor);

// Temporary memory at most: one buffer a thread, and the FP32 group scales of the parameters that are open at once.
std::int64_t staging_bytes(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, int threads);

}  // namespace inflight::loader
