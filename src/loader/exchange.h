// Matrices whose scales follow from numbers on several ranks: a channel's scale under split inputs, a group, block or tensor across a border.
// They are loaded after all others, in batches that are the same on every rank: each reads its part of a batch into memory and looks for the largest magnitudes,
// the ranks exchange those, and each quantizes what it holds, while the disk reads the next batch. Every byte is read once, but for parts larger than kMatrixStagingBytes that share one scale.
//
// Formats whose groups choose their codes by more than a magnitude (Format::whole_groups) have the numbers of a group that crosses a border read by both sides,
// who find the same codes; each keeps its own columns.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "loader/load.h"
#include "loader/sink.h"
#include "loader/tensor_bytes.h"

namespace inflight::loader {

struct ExchangeLimits {
  std::int64_t batch_bytes = 32 << 20;               // of one rank: large enough that ranks seldom wait for each other
  std::int64_t staging_bytes = kMatrixStagingBytes;  // what shares one scale and is larger is read twice
};

// After plan.params and plan.routes: sets plan.batches, marks routes that are in one, and adds what is read of neighbours' columns to plan.source_bytes.
// stored_format: as plan_params() takes it; such rows bring their scales with them.
Result<void> plan_exchange(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology,
                           const std::vector<const quant::Format*>& stored_format, LoadPlan& plan, const ExchangeLimits& limits = {});

// Temporary memory at most.
std::int64_t exchange_bytes(const LoadPlan& plan, int threads);

// An error where there are no other ranks, with which the caller's part of the plan must be loaded.
Result<void> check_together(const LoadContext& context);

// Loads plan.batches with the ranks of `context`. An error of this rank is returned and not told to the others.
Result<void> load_exchanged(const LoadContext& context, Sink& sink, const TensorBytes& bytes, const Advance& advance);

// Both roads with several ranks: load(), then what a rank cannot know alone (whether group scales of a matrix all fit FP16: where they do not on one rank, all
// load that matrix again), and all end with the error of the first that failed.
using Road = std::function<Result<LoadReport>(const LoadContext& context, const Progress& progress)>;
Result<LoadReport> load_together(const LoadContext& context, const Progress& progress, const Road& load);

}  // namespace inflight::loader
