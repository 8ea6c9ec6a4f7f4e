#include "kernels/isa/avx512/dot.h"

namespace inflight::kernels {
namespace {

#include "kernels/load.inl"

}  // namespace

extern const LoadKernels load_avx512;
const LoadKernels load_avx512{.pack_f32 = pack_f32, .pack_bf16 = pack_bf16, .quantize_u8 = quantize_u8, .quantize_u4 = quantize_u4, .unpack_u8 = unpack_u8, .unpack_u4 = unpack_u4};

}  // namespace inflight::kernels
