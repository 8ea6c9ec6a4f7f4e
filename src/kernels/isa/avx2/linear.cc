#include "kernels/isa/avx2/dot.h"

namespace inflight::kernels {
namespace {

#include "kernels/linear_float.inl"
#include "kernels/linear_int8.inl"
#include "kernels/linear_grouped.inl"

}  // namespace

extern const LinearKernels linear_avx2;
const LinearKernels linear_avx2{
    .gemm_f32 = gemm_float<F32Block, float>,
    .gemm_bf16 = gemm_float<Bf16Block, float>,
    .gemm_bf16_bf16 = gemm_float<Bf16Block, std::uint16_t>,
    .gemm_u8 = gemm_float<U8Block, float>,
    .gemm_u4 = gemm_float<U4Block, float>,
    .int8_bytes = int8_bytes,
    .quantize_int8 = quantize_int8,
    .gemm_u8_int8 = gemm_int8<8>,
    .gemm_u4_int8 = gemm_int8<4>,
    .grouped_bytes = grouped_bytes,
    .quantize_grouped = quantize_grouped,
    .gemm_u8_grouped = gemm_grouped<8>,
    .gemm_u4_grouped = gemm_grouped<4>,
    .token_bytes = prompt_token_bytes,
    .quantize_token = quantize_token,
    .gather_grouped = gather_grouped,
};

}  // namespace inflight::kernels
