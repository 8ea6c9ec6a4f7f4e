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
inline constexpr int kReadAheadBuffers = 4;  // past the page cache: chunks read ahead, beside one in work a thread
// Transposed tensors are read in tiles of whole inputs by as many outputs as fit: wide enough that a row of the tile is a long read.
inline constexpr std::int64_t kTransposedTileBytes = 16 << 20;

// Matrices whose scales follow from all of their numbers wait in memory between the two looks at them, all threads together up to this; larger ones are read twice.
inline constexpr std::int64_t kMatrixStagingBytes = 128 << 20;

struct Chunk {
  std::size_t route = 0;           // index into LoadPlan::routes
  std::int64_t row = 0;            // first output (a row of the tensor; a column where the route is transposed)
  std::int64_t rows = 0;           // for vectors and whole tensors: all elements in one chunk
};

// Cuts routes into chunks in file order. Rows are never split; chunk borders fall on panel borders of the destination where rows are many.
// chunk_bytes[shard]: how large a chunk of that shard should be.
std::vector<Chunk> cut_chunks(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, const std::vector<std::int64_t>& chunk_bytes);

// A tensor seen as a matrix: the last dimension is a row of the file, the others are folded.
std::int64_t file_columns(const checkpoint::TensorInfo& tensor);   // elements of a row; of all, for vectors and scalars
std::int64_t file_row_bytes(const checkpoint::TensorInfo& tensor);

// Bytes of the buffer that one chunk is read into, without alignment.
std::int64_t chunk_buffer_bytes(const LoadPlan& plan, const checkpoint::TensorInfo& tensor, const Route& route, const Chunk& chunk);

// What is read of a matrix in a stored form to fill the chunk's rows: where rows of the piece share scales, all of those.
FormArea form_area(const LoadPlan& plan, const Chunk& chunk);

// The scales that rows of the route share while they are quantized; nullptr: none, or the numbers arrive quantized.
const quant::SharedScales* shared_scales(const LoadPlan& plan, const Route& route);
// Whether all of a route's rows share scales and lie in rows of the file: read by read_matrix() of stream.cc.
bool in_two_looks(const LoadPlan& plan, const Route& route);

// Whether the route's tensor has outputs along its rows and so is read in tiles.
bool in_tiles(const LoadPlan& plan, const Route& route);

// Temporary memory at most: one buffer a thread, those that are read ahead, and the FP32 group scales of the parameters that are open at once.
std::int64_t staging_bytes(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, int threads);

}  // namespace inflight::loader
