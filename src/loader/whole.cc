// The plain road: every tensor in memory first, then quantized parameter by parameter.
#include <algorithm>
#include <chrono>

#include "loader/load.h"
#include "loader/sink.h"
#include "tensor/buffer.h"

namespace inflight::loader {

Result<LoadReport> load_whole(const LoadContext& context, const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const checkpoint::Checkpoint& checkpoint = context.checkpoint;

  std::vector<Buffer> tensors;  // whole, one per route
  std::int64_t read = 0;
  for (const Route& route : context.plan.routes) {
    const checkpoint::Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)];
    tensors.push_back(TRY(Buffer::map(static_cast<std::size_t>(tensor.info.bytes()))));
    TRY(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].read_at(tensors.back().data(), tensors.back().bytes(), tensor.info.begin));
    read += tensor.info.bytes();
    if (progress && !progress(std::min(read, context.plan.source_bytes), context.plan.source_bytes)) return fail(Code::kCancelled, "loading was stopped");
  }

  Sink sink(checkpoint, context.plan, context.table, context.kernels, context.store);
  for (std::size_t r = 0; r < context.plan.routes.size(); ++r) {
    const Route& route = context.plan.routes[r];
    const checkpoint::TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
    const bool matrix = tensor.shape.size() >= 2;
    const std::int64_t stride = file_row_bytes(tensor);
    const std::int64_t width = matrix ? stride / tensor.shape[1] : 0;
    const std::byte* first = tensors[r].data() + (matrix ? route.slice.row_begin * stride + route.slice.col_begin * width : 0);
    TRY(sink.accept({r, route.slice.row_begin, matrix ? route.slice.row_end - route.slice.row_begin : 1}, first, stride));
  }
  for (std::size_t shard = 0; shard < checkpoint.shards().size(); ++shard) TRY(checkpoint.verify_unchanged(static_cast<int>(shard)));
  TRY(sink.check_complete());

  LoadReport report;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.source_bytes = context.plan.source_bytes;
  report.weight_bytes = context.store.weight_bytes();
  report.tensors_loaded = static_cast<std::int64_t>(context.plan.routes.size());
  report.ignored = context.plan.ignored;
  return report;
}

}  // namespace inflight::loader
