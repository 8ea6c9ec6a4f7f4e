// Row x topology -> local shapes and the source range of every checkpoint tensor. The only rank arithmetic in the product.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "params/param_spec.h"

namespace inflight::params {

// The part of one piece that this rank holds: rows [row_begin, row_end) and columns [col_begin, col_end) of the checkpoint
// tensor [rows, inputs] go to local rows [local_row, ...) of the parameter, from local column 0.
struct Slice {
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t col_begin = 0, col_end = 0;
  std::int64_t local_row = 0;
};

// Whether this rank holds any of the row: false for experts of other expert-parallel ranks, whose slices and sizes are empty.
Result<bool> is_local(const ParamSpec& row, const Topology& topology);

// An error names the row, the sizes and the rank count when they do not divide.
Result<Slice> slice_of(const ParamSpec& row, std::size_t piece, const Topology& topology);
Result<std::int64_t> local_outputs(const ParamSpec& row, const Topology& topology);
Result<std::int64_t> local_inputs(const ParamSpec& row, const Topology& topology);

}  // namespace inflight::params
