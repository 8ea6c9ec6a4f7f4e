// The experts of a layer at once, each with the tokens that were routed to it: y += weight * down(silu(gate(x)) * up(x)).
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "base/thread_pool.h"
#include "quant/apply.h"

namespace inflight::quant {

// At most so many rows a group: what a worker keeps of them stays in its second-level cache. An expert with more rows has several groups.
inline constexpr std::int64_t kMostGroupRows = 256;

// Routed rows [first, first + count) go through one expert.
struct ExpertRows {
  const Matrix* up_gate = nullptr;  // [2 * intermediate, hidden]: gate, then up
  const Matrix* down = nullptr;     // [hidden, intermediate]
  std::int64_t first = 0;
  std::int64_t count = 0;           // 1 to kMostGroupRows
};

// Tokens and where they were routed to.
struct Routed {
  const float* x = nullptr;                // [tokens, ldx]
  std::int64_t ldx = 0;
  std::int64_t tokens = 0;
  const std::int32_t* token_of = nullptr;  // [rows]: the token of a routed row
  const float* weight_of = nullptr;        // [rows]
  float* y = nullptr;                      // [tokens, ldy], added to
  std::int64_t ldy = 0;
};

// How a layer's experts compute, and the tokens' activations, converted once for all experts that take them alike.
struct ExpertArithmetic {
  const kernels::Kernels* kernels = nullptr;
  ComputePolicy compute;
  bool decode = false;  // the tokens use the decode arithmetic
  Arithmetic of(const Matrix& w) const { return decode ? compute.decode(w) : compute.prefill(w); }

  const Matrix* like = nullptr;  // an up_gate of the layer; experts that are stored as this one is share its conversions
  std::size_t converted_bytes(std::int64_t tokens) const;
  // Tokens [begin, end) of x, where converted_bytes() is not 0. Ranges may run on different threads.
  void convert(const float* x, std::int64_t ldx, std::int64_t begin, std::int64_t end, std::byte* converted) const;
};

// Shown what a group's down multiplies, once the region is over: [count, ld] of its rows, intermediate columns used.
using SeeActivated = std::function<void(std::size_t group, const float* activated, std::int64_t ld)>;

// Where a group's down has inputs of all ranks (Matrix::gathers_inputs): given this rank's activated rows [rows, ld], of which `columns` are used, returns those of
// all ranks side by side. They last until the end of the call.
struct WholeRows {
  const float* x;   // [rows, ld]
  std::int64_t ld;
};
using GatherActivated = std::function<WholeRows(const float* activated, std::int64_t ld, std::int64_t rows, std::int64_t columns)>;

// One parallel region over all groups, whose tasks wait for those before them that they need and for nothing else. Groups in the order in which a
// token's experts are to be added up; all matrices have the same sizes. What is added to a row of y depends on its token, experts and weights alone: bits do
// not change with the other tokens or with threads. take(bytes) returns 64-byte aligned scratch that lasts until the end of the call.
// gather: where there is one, and any down takes inputs of all ranks, it is called once, between a region of what comes before down and one of down.
void apply_experts(std::span<const ExpertRows> groups, const ExpertArithmetic& arithmetic, const Routed& routed, const std::byte* converted, ThreadPool& pool,
                   const std::function<std::byte*(std::size_t)>& take, const SeeActivated& see = {}, const GatherActivated& gather = {});

}  // namespace inflight::quant
