#include "quant/experts.h"

#include <algorithm>
#include <atomic>

namespace inflight::quant {
namespace {

// Tokens converted at a time, a multiple of 16 (int8 activation tiles); panels multiplied at a time, even (products work on pairs).
constexpr std::int64_t kTokenGrain = 16;

// body(group, begin, end) for pieces of `grain` of every group's n(group), taken dynamically in order.
template <class Count, class Body>
void over_groups(std::span<const ExpertRows> groups, std::int64_t grain, ThreadPool& pool, Count&& n, Body&& body) {
  std::int64_t tasks = 0;
  for (const ExpertRows& group : groups) tasks += (n(group) + grain - 1) / grain;
  if (tasks == 0) return;
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int) {
    std::size_t g = 0;
    std::int64_t passed = 0;  // tasks of the groups before g
    for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      for (std::int64_t own; task >= passed + (own = (n(groups[g]) + grain - 1) / grain); ++g) passed += own;
      const std::int64_t begin = (task - passed) * grain;
      body(g, begin, std::min(begin + grain, n(groups[g])));
    }
  };
  if (tasks == 1) work(0);
  else pool.run(work);
}

}  // namespace

std::size_t apply_experts_scratch(std::span<const ExpertRows> groups, Arithmetic arithmetic, const kernels::Kernels& kernels) {
  std::size_t bytes = 0;
  for (const ExpertRows& group : groups) bytes += apply_scratch(*group.w, arithmetic, kernels, group.count);
  return bytes;
}

void apply_experts(std::span<const ExpertRows> groups, Arithmetic arithmetic, const kernels::Kernels& kernels, ThreadPool& pool, const float* x, std::int64_t ldx, float* y,
                   std::int64_t ldy, std::byte* scratch) {
  if (groups.empty()) return;
  const Matrix& w = *groups[0].w;
  // Where each group's converted activations are. Groups are few (experts), so the sum is taken anew for each task.
  const auto scratch_of = [&](std::size_t g) {
    std::byte* at = scratch;
    for (std::size_t i = 0; i < g; ++i) at += apply_scratch(*groups[i].w, arithmetic, kernels, groups[i].count);
    return at;
  };
  const auto convert = [&](std::size_t g, std::int64_t begin, std::int64_t end) {
    const ExpertRows& group = groups[g];
    convert_activations(*group.w, arithmetic, kernels, x + group.first * ldx, ldx, group.count, begin, end, scratch_of(g));
  };
  if (apply_scratch(w, arithmetic, kernels, 1) != 0) {
    std::int64_t rows = 0;
    for (const ExpertRows& group : groups) rows += group.count;
    if (rows <= kTokenGrain) {  // a region costs more than converting a few rows
      for (std::size_t g = 0; g < groups.size(); ++g) convert(g, 0, groups[g].count);
    } else {
      over_groups(groups, kTokenGrain, pool, [](const ExpertRows& group) { return group.count; }, convert);
    }
  }
  const std::int64_t total = w.panels() * static_cast<std::int64_t>(groups.size());
  const std::int64_t grain = std::clamp<std::int64_t>(total / (pool.threads() * 8), 2, 16) / 2 * 2;
  over_groups(groups, grain, pool, [](const ExpertRows& group) { return group.w->panels(); }, [&](std::size_t g, std::int64_t begin, std::int64_t end) {
    const ExpertRows& group = groups[g];
    multiply_panels(*group.w, arithmetic, kernels, x + group.first * ldx, ldx, group.count, begin, end, y + group.first * ldy, ldy, scratch_of(g));
  });
}

}  // namespace inflight::quant
