// Weights with an offset a group, w = scale * q + offset: what the offsets add to a product of the codes. The laws of kernels.h hold; every ISA gives the same bits.
#pragma once
#include <cstdint>

namespace inflight::kernels {

struct OffsetKernels {
  // sums[g] = the sum of x over group g of `group` inputs (0: all of them), the last one ragged: s[i] = 0, s[i] = fl(s[i] + x[k]) for k ascending with
  // i = k modulo 16 (groups are multiples of 16), then s[0] + ... + s[15] in this order.
  void (*group_sums)(const float* x, std::int64_t inputs, std::int64_t group, float* sums);
  // y [tokens, ldy], columns [16 * panel_begin, 16 * panel_end): acc = y, acc = fma(offset[g], sums[t][g], acc) for g ascending, y = acc.
  // offsets: f32 [panels][groups][16], 64-byte aligned; sums: [tokens][groups].
  void (*add_offsets)(const float* offsets, std::int64_t groups, const float* sums, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
};

}  // namespace inflight::kernels
