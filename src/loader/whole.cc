// The plain road: every tensor in memory first, then quantized parameter by parameter.
#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "loader/load.h"
#include "loader/sink.h"
#include "tensor/buffer.h"

namespace inflight::loader {

Result<LoadReport> load_whole(const LoadContext& context, const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const checkpoint::Checkpoint& checkpoint = context.checkpoint;

  std::map<int, Buffer> tensors;  // whole, by index into Checkpoint::tensors()
  std::int64_t read = 0;
  for (const Route& route : context.plan.routes) {
    if (tensors.contains(route.tensor)) continue;
    const checkpoint::Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)];
    Buffer& buffer = tensors[route.tensor] = TRY(Buffer::map(static_cast<std::size_t>(tensor.info.bytes())));
    TRY(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].read_at(buffer.data(), buffer.bytes(), tensor.info.begin));
    read += tensor.info.bytes();
    if (progress && !progress(std::min(read, context.plan.source_bytes), context.plan.source_bytes)) return fail(Code::kCancelled, "loading was stopped");
  }

  Sink sink(checkpoint, context.plan, context.table, context.kernels, context.store);
  for (std::size_t r = 0; r < context.plan.routes.size(); ++r) {
    const Route& route = context.plan.routes[r];
    const checkpoint::TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
    const std::byte* data = tensors[route.tensor].data();
    const std::int64_t stride = file_row_bytes(tensor), width = dtype_bits(tensor.dtype) / 8;
    if (!route.matrix) {
      TRY(sink.accept({r, 0, 1}, data, stride));
    } else if (!route.transposed) {
      const std::int64_t first_byte = route.slice.row_begin * stride + (route.stored < 0 ? route.slice.col_begin * width : 0);
      TRY(sink.accept({r, route.slice.row_begin, route.slice.row_end - route.slice.row_begin}, data + first_byte, stride));
    } else {
      const Chunk all{r, route.slice.row_begin, route.slice.row_end - route.slice.row_begin};
      const std::int64_t inputs = route.slice.col_end - route.slice.col_begin;
      std::vector<std::byte> panel(static_cast<std::size_t>(quant::kPanelRows * inputs * width));
      TRY(sink.accept_transposed(all, data + (route.first_input + route.slice.col_begin) * stride + route.slice.row_begin * width, stride, panel.data()));
    }
  }
  for (std::size_t shard = 0; shard < checkpoint.shards().size(); ++shard) TRY(checkpoint.verify_unchanged(static_cast<int>(shard)));
  TRY(sink.check_complete());

  LoadReport report;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.source_bytes = context.plan.source_bytes;
  report.weight_bytes = context.store.weight_bytes();
  report.tensors_loaded = context.plan.tensors_loaded;
  report.tensors_elsewhere = context.plan.tensors_elsewhere;
  report.ignored = context.plan.ignored;
  return report;
}

}  // namespace inflight::loader
