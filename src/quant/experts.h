// Products of many small matrices at once: the experts of a layer, each with the tokens that were routed to it.
#pragma once
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "quant/apply.h"

namespace inflight::quant {

// Rows [first, first + count) of x go through w.
struct ExpertRows {
  const Matrix* w = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Scratch bytes for these groups.
std::size_t apply_experts_scratch(std::span<const ExpertRows> groups, Arithmetic arithmetic, const kernels::Kernels& kernels);

// apply() for every group, in two parallel regions over all of them: converting activations, then (group x panels). All matrices have the same
// format and sizes. x [rows, ldx], y [rows, ldy] f32 as in apply(), whose bits these are.
void apply_experts(std::span<const ExpertRows> groups, Arithmetic arithmetic, const kernels::Kernels& kernels, ThreadPool& pool, const float* x, std::int64_t ldx,
                   float* y, std::int64_t ldy, std::byte* scratch);

}  // namespace inflight::quant
