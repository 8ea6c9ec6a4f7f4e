// The specification of what offsets of weights add.
#include "kernels/offsets.h"

namespace inflight::kernels {
namespace {

void group_sums(const float* x, std::int64_t inputs, std::int64_t group, float* sums) {
  const std::int64_t width = group == 0 ? inputs : group;
  for (std::int64_t at = 0; at < inputs; at += width) {
    float lanes[16] = {}, sum = 0;
    for (std::int64_t k = at; k < at + width && k < inputs; ++k) lanes[(k - at) % 16] += x[k];
    for (const float lane : lanes) sum += lane;
    *sums++ = sum;
  }
}

void add_offsets(const float* offsets, std::int64_t groups, const float* sums, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float& acc = y[t * ldy + panel * 16 + lane];
        for (std::int64_t g = 0; g < groups; ++g) acc = __builtin_fmaf(offsets[(panel * groups + g) * 16 + lane], sums[t * groups + g], acc);
      }
}

}  // namespace

extern const OffsetKernels offsets_scalar;
const OffsetKernels offsets_scalar{.group_sums = group_sums, .add_offsets = add_offsets};

}  // namespace inflight::kernels
