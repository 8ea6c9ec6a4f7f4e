// Row x topology -> local shapes and the source range of every checkpoint tensor. The only rank arithmetic in the product.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

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

inline constexpr int kMostRanks = 1024;  // counts that messages propose

// Whether every row of the table can be cut over so many tensor-parallel ranks, and its experts dealt to so many expert-parallel ones.
bool works_on(const ParamTable& table, int tensor_ranks, int expert_ranks);
// The counts of ranks up to `most` for which that is so. expert_parallel: experts are dealt to as many.
std::vector<int> rank_counts(const ParamTable& table, bool expert_parallel, int most);
// An error names the rows that do not divide, with their sizes, and the nearest rank counts below and above that work.
Result<void> check_ranks(const ParamTable& table, const Topology& topology);

// Whether this rank holds any of the row: false for experts of other expert-parallel ranks, whose slices and sizes are empty.
Result<bool> is_local(const ParamSpec& row, const Topology& topology);

// Whether tensor-parallel ranks each hold a part of the row.
bool is_cut(const ParamSpec& row, const Topology& topology);

// An error names the row, the sizes, the rank count and the nearest that work when they do not divide.
Result<Slice> slice_of(const ParamSpec& row, std::size_t piece, const Topology& topology);
Result<std::int64_t> local_outputs(const ParamSpec& row, const Topology& topology);
Result<std::int64_t> local_inputs(const ParamSpec& row, const Topology& topology);
Result<std::int64_t> first_input(const ParamSpec& row, const Topology& topology);  // of those

}  // namespace inflight::params
