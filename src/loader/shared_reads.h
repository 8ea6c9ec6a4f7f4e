// Matrices in stored forms of other tools of which every rank needs all, though it keeps a part: their scales are found anew over whole rows or the whole matrix, or
// their inputs are sorted by group across ranks. Each rank reads an equal share of their bytes, the ranks gather the shares, and each takes its part of all.
#pragma once
#include "loader/load.h"
#include "loader/sink.h"
#include "loader/tensor_bytes.h"

namespace inflight::loader {

// After the routes of forms know what they read: sets plan.shared_reads, marks their routes. The same on every rank.
void plan_shared_reads(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology, LoadPlan& plan);

// Bytes that this rank reads of a marked route.
std::int64_t shared_source_bytes(const checkpoint::Checkpoint& checkpoint, const LoadPlan& plan, std::size_t route, const params::Topology& topology);

// Temporary memory at most.
std::int64_t shared_read_bytes(const LoadPlan& plan);

// Loads plan.shared_reads with the ranks of `context`. An error of this rank is returned and not told to the others.
Result<void> load_shared_reads(const LoadContext& context, Sink& sink, const TensorBytes& bytes, const Advance& advance);

}  // namespace inflight::loader
