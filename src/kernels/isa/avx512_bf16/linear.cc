// AVX-512 with BF16 dot products in gemm_bf16_bf16; all else as in isa/avx512.
#include "kernels/isa/avx512/dot.h"

namespace inflight::kernels {
namespace {

#include "kernels/linear_float.inl"
#include "kernels/linear_int8.inl"
#include "kernels/linear_grouped.inl"

struct Bf16Pairs {
  static constexpr int kDepth = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kPairs = true;
  using Pairs = __m512i;
  LANES_INLINE static Pairs load(const char* block) { return _mm512_loadu_si512(block); }
  LANES_INLINE static Pairs splat(const std::uint16_t* x) {
    int pair;
    std::memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  LANES_INLINE static Lanes dot(Lanes sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
};

}  // namespace

extern const LinearKernels linear_avx512_bf16;
const LinearKernels linear_avx512_bf16{
    .gemm_f32 = gemm_float<F32Block, float>,
    .gemm_bf16 = gemm_float<Bf16Block, float>,
    .gemm_bf16_bf16 = gemm_float<Bf16Pairs, std::uint16_t>,
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
