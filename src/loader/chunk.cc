#include "loader/chunk.h"

#include <algorithm>

namespace inflight::loader {

using checkpoint::TensorInfo;

std::int64_t file_row_bytes(const TensorInfo& tensor) {
  if (tensor.shape.size() < 2 || tensor.shape[0] == 0) return tensor.bytes();  // vectors and scalars are one row
  return tensor.bytes() / tensor.shape[0];
}

std::vector<Chunk> cut_chunks(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, const std::vector<std::int64_t>& chunk_bytes) {
  std::vector<Chunk> chunks;
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    const Route& route = plan.routes[r];
    const checkpoint::Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)];
    if (tensor.info.shape.size() < 2) {
      chunks.push_back({r, 0, 1});
      continue;
    }
    const std::int64_t panel = quant::kPanelRows;
    const std::int64_t fitting = chunk_bytes[static_cast<std::size_t>(tensor.shard)] / std::max<std::int64_t>(file_row_bytes(tensor.info), 1);
    const std::int64_t step = std::max<std::int64_t>(fitting / panel * panel, panel);
    for (std::int64_t row = route.slice.row_begin; row < route.slice.row_end;) {
      const std::int64_t local = route.slice.local_row + row - route.slice.row_begin;
      const std::int64_t rows = std::min(step - local % panel, route.slice.row_end - row);  // later chunks start on a panel
      chunks.push_back({r, row, rows});
      row += rows;
    }
  }
  return chunks;
}

std::int64_t staging_bytes(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, int threads) {
  std::int64_t largest = kDirectChunkBytes;
  std::int64_t scales = 0;
  for (const Route& route : plan.routes) {
    const TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
    largest = std::max(largest, std::min(tensor.bytes(), file_row_bytes(tensor) * quant::kPanelRows));
    const quant::Slot& slot = plan.params.slots[route.param];
    if (slot.format && slot.format->group != 0) scales = std::max(scales, slot.bytes.scales * 2);
  }
  return threads * (largest + 8192) + (threads + 1) * scales;  // threads may each be in another parameter, and one is just finished
}

}  // namespace inflight::loader
