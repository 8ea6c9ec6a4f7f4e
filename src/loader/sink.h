// Where chunks end up: rows are quantized or copied into their parameter, and a parameter whose last row arrived is completed, and with it
// those that derive from it.
// Used by both roads (stream.cc, whole.cc), from several threads.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "loader/chunk.h"
#include "loader/plan.h"
#include "quant/store.h"

namespace inflight::loader {

class Sink {
 public:
  // tensors: what Route::tensor counts. derives: parameters that follow from others are completed with these.
  Sink(const std::vector<checkpoint::Tensor>& tensors, const LoadPlan& plan, const params::ParamTable& table, const quant::Kernels& kernels, quant::ParamStore& store, bool derives = true);

  // `data`: the chunk's rows, `stride_bytes` apart, beginning at the first column of the route's slice. Each chunk must be given exactly once.
  // kCorrupt: NaN or infinity (names tensor and element), or stored codes out of range.
  Result<void> accept(const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes);

  // For formats with shared scales (quant::SharedScales), whose chunks hold whole runs of such rows. accept() sees a chunk's rows twice by itself; a caller that
  // reads a chunk in parts lets each part be scanned, then sets the scales, then gives the parts to accept_scanned().
  struct Scan {
    std::vector<float> absmax;  // [runs][groups]
  };
  Scan begin_scan(const Chunk& chunk) const;
  Result<void> scan(const Chunk& whole, const Chunk& part, const std::byte* data, std::int64_t stride_bytes, Scan& scan) const;
  Result<void> set_scales(const Chunk& whole, const Scan& scan);
  Result<void> accept_scanned(const Chunk& part, const std::byte* data, std::int64_t stride_bytes);

  // The same for a transposed route: `data` [inputs of the slice][chunk.rows], inputs stride_bytes apart. panel: scratch for 16 rows of the slice's inputs.
  Result<void> accept_transposed(const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes, std::byte* panel);

  // All of a route that is not in a stored form; `tensor`: the whole tensor in memory. pool: nullptr, or threads to share the rows.
  Result<void> accept_whole(std::size_t route, const std::byte* tensor, ThreadPool* pool);

  // A chunk of a matrix of plain numbers, out of rows that hold all of its inputs, also those of other ranks (Route::read says so), and begin with row `first` of the
  // tensor: scales are those of the whole rows. Rows that share scales with the chunk's are there too; where all do, `absmax` is the largest magnitude of all.
  struct WholeRows {
    std::int64_t first = 0;
    const std::byte* data = nullptr;  // [rows][inputs], of any alignment
    std::span<const float> absmax;    // [1], or empty
  };
  Result<void> accept_rows(const Chunk& chunk, const WholeRows& rows);

  // The same for a route in a stored form: `bytes` of its tensors, which hold the chunk's outputs.
  Result<void> accept_form(const Chunk& chunk, std::span<const quant::FormBytes> bytes);

  // For exchange.cc, which looks at rows and quantizes them by itself: the route's matrix, ready to be filled; and that rows of it are.
  Result<quant::Matrix*> open(std::size_t route);
  Result<void> count(std::size_t route, std::int64_t rows) { return count(plan_.routes[route], rows); }
  // Element `bad` of rows that begin with the chunk, and with `lead` columns before those of its slice, is not finite.
  Error not_finite(const Chunk& chunk, const quant::SourceRows& rows, std::int64_t bad, std::int64_t lead) const;
  // Rows of a chunk in runs that end with the destination's panels: at, counted from the chunk's first; how many; the output of the matrix that the first becomes.
  Result<void> for_each_panel(const Chunk& chunk, const std::function<Result<void>(std::int64_t at, int n, std::int64_t local)>& visit) const;

  // After all chunks: an error names parameters that never completed.
  Result<void> check_complete() const;

 private:
  struct Progress {
    std::atomic<std::int64_t> rows_left{0};  // over all tensors of the parameter
    std::once_flag begun;
    bool half_scales = true;                 // whatever group scales arrive are stored in FP16
  };
  Result<void> begin(const Route& route);
  Result<void> count(const Route& route, std::int64_t rows);
  Result<void> accept_vector(const Route& route, const checkpoint::TensorInfo& tensor, const std::byte* data);
  // Rows [at, at + n) of a chunk as numbers: at most to the end of a panel of the destination.
  using Rows = std::function<Result<quant::SourceRows>(std::int64_t at, int n)>;
  // What to say of a number that is not finite in row `row` of the chunk and column `column` of its slice.
  using NotFinite = std::function<Error(std::int64_t row, std::int64_t column, float value)>;
  Result<void> scan_rows(const Chunk& whole, const Chunk& part, const Rows& rows, const NotFinite& not_finite, Scan& scan) const;
  Result<void> store_rows(const Chunk& chunk, const Rows& rows, const NotFinite& not_finite);
  Result<void> quantize_rows(const Chunk& chunk, const Rows& rows, const NotFinite& not_finite);
  // Rows of which more inputs are known than this rank holds. `numbers_of` gives n rows of all inputs that are read; `skip` lie before the matrix's. absmax: as WholeRows has it.
  Result<void> quantize_part(const Chunk& chunk, std::int64_t skip, const std::function<Result<float*>(std::int64_t row, int n)>& numbers_of, std::span<const float> absmax = {});
  Rows plain_rows(const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes) const;
  NotFinite plain_error(const Chunk& chunk) const;
  Result<void> derive_from(std::size_t source);
  Result<void> accept_stored(const Route& route, const checkpoint::TensorInfo& tensor, const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes);

  const std::vector<checkpoint::Tensor>& tensors_;
  const LoadPlan& plan_;
  const params::ParamTable& table_;
  const quant::Kernels& kernels_;
  quant::ParamStore& store_;
  std::unique_ptr<Progress[]> progress_;
  std::vector<std::size_t> derived_;  // rows that follow from others
};

}  // namespace inflight::loader
