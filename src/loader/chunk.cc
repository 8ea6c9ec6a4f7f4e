#include "loader/chunk.h"

#include <algorithm>

#include "loader/exchange.h"
#include "loader/shared_reads.h"

namespace inflight::loader {

using checkpoint::TensorInfo;

namespace {

// The codes of a route whose matrix is in a stored form.
const quant::FormTensor& codes_of(const LoadPlan& plan, const Route& route) { return plan.forms[static_cast<std::size_t>(route.form)].tensors[0]; }

// Bytes of one output as it is read: the slice's inputs of a row or column of plain numbers, else a row of the file.
std::int64_t output_bytes(const LoadPlan& plan, const TensorInfo& tensor, const Route& route) {
  if (route.form >= 0) {
    const FormSource& source = plan.forms[static_cast<std::size_t>(route.form)];
    return std::max<std::int64_t>(form_lines(source, 0, tensor, {0, source.outputs, route.read}).total() / std::max<std::int64_t>(source.outputs, 1), 1);
  }
  return route.matrix && route.stored < 0 ? (route.slice.col_end - route.slice.col_begin) * dtype_bits(tensor.dtype) / 8 : file_row_bytes(tensor);
}

}  // namespace

std::int64_t file_columns(const TensorInfo& tensor) {
  if (tensor.shape.size() >= 2) return tensor.shape.back();
  return tensor.shape.empty() ? 1 : tensor.shape[0];
}

std::int64_t file_row_bytes(const TensorInfo& tensor) { return row_bytes(tensor.dtype, file_columns(tensor)); }

FormArea form_area(const LoadPlan& plan, const Chunk& chunk) {
  const Route& route = plan.routes[chunk.route];
  const quant::SharedScales* shared = shared_scales(plan, route);
  if (!shared) return {chunk.row, chunk.rows, route.read};
  const std::int64_t run = shared->rows == 0 ? std::max<std::int64_t>(route.rows, 1) : shared->rows, first = chunk.row - route.first_row;
  const std::int64_t begin = first / run * run, end = std::min((first + chunk.rows + run - 1) / run * run, route.rows);
  return {route.first_row + begin, end - begin, route.read};
}

const quant::SharedScales* shared_scales(const LoadPlan& plan, const Route& route) {
  const quant::Format* format = plan.params.slots[route.param].format;
  if (!format || route.stored >= 0 || (route.form >= 0 && keeps(plan.forms[static_cast<std::size_t>(route.form)], *format))) return nullptr;
  return format->shared;
}

bool in_two_looks(const LoadPlan& plan, const Route& route) {
  const quant::SharedScales* shared = shared_scales(plan, route);
  return shared && shared->rows == 0 && !route.transposed && route.form < 0;
}

bool in_tiles(const LoadPlan& plan, const Route& route) { return route.transposed || (route.form >= 0 && codes_of(plan, route).reach == quant::Reach::kColumns); }

std::int64_t chunk_buffer_bytes(const LoadPlan& plan, const TensorInfo& tensor, const Route& route, const Chunk& chunk) {
  if (route.form >= 0) return form_lines(plan.forms[static_cast<std::size_t>(route.form)], 0, tensor, form_area(plan, chunk)).total();
  if (!route.transposed) return (route.matrix ? chunk.rows : 1) * output_bytes(plan, tensor, route);
  // The tile as it lies in the file, and one panel of it with inputs along the rows.
  const std::int64_t inputs = route.slice.col_end - route.slice.col_begin;
  return (chunk.rows + quant::kPanelRows) * inputs * dtype_bits(tensor.dtype) / 8;
}

std::vector<Chunk> cut_chunks(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, const std::vector<std::int64_t>& chunk_bytes) {
  std::vector<Chunk> chunks;
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    const Route& route = plan.routes[r];
    const checkpoint::Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)];
    if (route.exchange || route.shared_read) continue;
    if (!route.matrix) {
      chunks.push_back({r, 0, 1});
      continue;
    }
    const quant::SharedScales* shared = shared_scales(plan, route);
    if (shared && shared->rows == 0) {
      chunks.push_back({r, route.slice.row_begin, route.slice.row_end - route.slice.row_begin});
      continue;
    }
    const std::int64_t panel = shared ? shared->rows : quant::kPanelRows;
    const std::int64_t bytes = in_tiles(plan, route) ? kTransposedTileBytes : chunk_bytes[static_cast<std::size_t>(tensor.shard)];
    const std::int64_t row = output_bytes(plan, tensor.info, route);
    const std::int64_t step = std::max<std::int64_t>(bytes / std::max<std::int64_t>(row, 1) / panel * panel, panel);
    for (std::int64_t at = route.slice.row_begin; at < route.slice.row_end;) {
      // Later chunks start on a panel; those of stored forms on the tensor's own multiples of 16, since some forms interleave neighbours.
      // Where rows share scales, chunks hold whole runs of them, counted from the matrix's first row.
      const std::int64_t place = shared ? at - (route.form >= 0 ? route.first_row : route.slice.row_begin) : route.form >= 0 ? at : route.slice.local_row + at - route.slice.row_begin;
      const std::int64_t rows = std::min(step - place % panel, route.slice.row_end - at);
      chunks.push_back({r, at, rows});
      at += rows;
    }
  }
  return chunks;
}

std::int64_t staging_bytes(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, int threads) {
  std::int64_t largest = kDirectChunkBytes;
  std::int64_t scales = 0, derived = 0, forms = 0, matrix = 0;
  for (const Route& route : plan.routes) {
    const TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
    const std::int64_t row = output_bytes(plan, tensor, route);
    const std::int64_t panel = row * quant::kPanelRows;
    if (route.form >= 0) forms = std::max(forms, form_scratch_bytes(plan.forms[static_cast<std::size_t>(route.form)]));
    const std::int64_t whole = row * (route.form >= 0 && shared_scales(plan, route) ? route.rows : route.slice.row_end - route.slice.row_begin);
    if (const quant::Slot& slot = plan.params.slots[route.param]; slot.format && slot.format->group != 0) scales = std::max(scales, slot.bytes.scales * 2);
    if (route.exchange || route.shared_read) continue;
    if (in_two_looks(plan, route)) matrix = std::max(matrix, std::min(whole, kMatrixStagingBytes / threads));
    const quant::SharedScales* shared = shared_scales(plan, route);
    largest = std::max(largest, shared && !in_two_looks(plan, route) ? shared->rows == 0 ? whole + panel : std::min(whole, row * shared->rows) + panel : in_tiles(plan, route) ? std::min(std::max(kTransposedTileBytes, panel), row * (route.slice.row_end - route.slice.row_begin)) + panel : std::min(tensor.bytes(), panel));
  }
  for (const std::int64_t bytes : plan.derive_bytes) derived = std::max(derived, bytes);
  const std::int64_t chunks = (threads + kReadAheadBuffers) * (largest + 8192) + threads * (forms + matrix);
  return std::max({chunks, exchange_bytes(plan, threads), shared_read_bytes(plan) + threads * forms}) + threads * derived + (threads + 1) * scales;  // threads may each be in another parameter, and one is just finished
}

}  // namespace inflight::loader
