#include "kernels/offsets.h"

#include "kernels/isa/avx512/dot.h"

namespace inflight::kernels {
namespace {

#include "kernels/offsets.inl"

}  // namespace

extern const OffsetKernels offsets_avx512;
const OffsetKernels offsets_avx512{.group_sums = group_sums, .add_offsets = add_offsets};

}  // namespace inflight::kernels
