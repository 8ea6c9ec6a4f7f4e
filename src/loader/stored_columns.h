// Which bytes of a converted folder's rows a rank needs, and how those become rows of its own, smaller matrix.
#pragma once
#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "loader/plan.h"

namespace inflight::loader {

struct StoredColumns {
  std::int64_t begin = 0, end = 0;  // bytes of a row of the file
  int code_bits = 0;                // the tensor holds codes that must be changed at the edges; 0: bytes are taken as they are
  std::int64_t lead = 0;            // of the codes, the first ones that become zeros: they belong to other ranks
  std::int64_t inputs = 0;          // codes behind these become zeros, to the end of the last byte
  std::int64_t bytes() const { return end - begin; }
};

// Of a route with `stored` >= 0 whose tensor is a matrix.
StoredColumns stored_columns(const quant::Slot& slot, const Route& route, DType dtype);

// Copies one row of the slice to `out` [bytes()], edges set to the code of zero.
void set_edges(const StoredColumns& columns, const std::byte* row, std::byte* out);

}  // namespace inflight::loader
