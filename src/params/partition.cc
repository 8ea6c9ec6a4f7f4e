#include "params/partition.h"

#include <algorithm>

namespace inflight::params {
namespace {

struct Range {
  std::int64_t begin, end;
};

// Tensor-parallel ranks that share the row, and this one's place among them.
Topology shared_by(const ParamSpec& row, const Topology& topology) {
  return row.expert >= 0 && topology.ep_size > 1 ? Topology{.ep_rank = topology.ep_rank, .ep_size = topology.ep_size} : topology;
}

// The rows of one piece that belong to this rank.
Result<Range> piece_rows(const ParamSpec& row, const Piece& piece, const Topology& whole) {
  if (!TRY(is_local(row, whole))) return Range{0, 0};
  const Topology topology = shared_by(row, whole);
  if (row.split != Split::kOutputs || topology.tp_size == 1) return Range{0, piece.rows};
  const std::int64_t units = piece.rows / row.unit;
  if (piece.kv && units < topology.tp_size) {  // fewer heads than ranks: neighbours share one
    if (topology.tp_size % units != 0)
      return fail(Code::kUnsupported, "{}: {} heads cannot be shared by {} ranks; use a rank count that {} divides or that divides it",
                  row.full_name(), units, topology.tp_size, units);
    const std::int64_t head = topology.tp_rank / (topology.tp_size / units);
    return Range{head * row.unit, (head + 1) * row.unit};
  }
  if (units % topology.tp_size != 0)
    return fail(Code::kUnsupported, "{}: {} outputs in units of {} do not divide over {} ranks", row.full_name(), piece.rows, row.unit, topology.tp_size);
  const std::int64_t rows = units / topology.tp_size * row.unit;
  return Range{topology.tp_rank * rows, (topology.tp_rank + 1) * rows};
}

Result<Range> columns(const ParamSpec& row, const Topology& whole) {
  const Topology topology = shared_by(row, whole);
  if (row.split != Split::kInputs || topology.tp_size == 1) return Range{0, row.inputs};
  const std::int64_t units = row.inputs / row.unit;
  if (units % topology.tp_size != 0)
    return fail(Code::kUnsupported, "{}: {} inputs in units of {} do not divide over {} ranks", row.full_name(), row.inputs, row.unit, topology.tp_size);
  const std::int64_t width = units / topology.tp_size * row.unit;
  return Range{topology.tp_rank * width, (topology.tp_rank + 1) * width};
}

}  // namespace

Result<bool> is_local(const ParamSpec& row, const Topology& topology) {
  if (row.expert < 0 || topology.ep_size == 1) return true;
  if (row.experts % topology.ep_size != 0)
    return fail(Code::kUnsupported, "{}: {} experts do not divide over {} expert-parallel ranks", row.full_name(), row.experts, topology.ep_size);
  return row.expert / (row.experts / topology.ep_size) == topology.ep_rank;
}

Result<Slice> slice_of(const ParamSpec& row, std::size_t piece, const Topology& topology) {
  Slice slice;
  for (std::size_t before = 0; before < piece; ++before) {
    const Range range = TRY(piece_rows(row, row.pieces[before], topology));
    slice.local_row += range.end - range.begin;
  }
  const Range rows = TRY(piece_rows(row, row.pieces[piece], topology));
  const Range cols = TRY(columns(row, topology));
  slice.row_begin = rows.begin;
  slice.row_end = rows.end;
  slice.col_begin = cols.begin;
  slice.col_end = cols.end;
  return slice;
}

Result<std::int64_t> local_outputs(const ParamSpec& row, const Topology& topology) {
  std::int64_t sum = 0;
  for (const Piece& piece : row.pieces) {
    const Range range = TRY(piece_rows(row, piece, topology));
    sum += range.end - range.begin;
  }
  return sum;
}

Result<std::int64_t> local_inputs(const ParamSpec& row, const Topology& topology) {
  const Range range = TRY(columns(row, topology));
  return range.end - range.begin;
}

}  // namespace inflight::params
