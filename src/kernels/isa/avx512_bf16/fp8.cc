// FP8 weights decoded by byte shuffles, with BF16 dot products in gemm_e4m3_bf16.
#include "kernels/isa/avx512/fp8.h"

namespace inflight::kernels {
namespace {

#include "kernels/fp8.inl"
#include "kernels/fp8_load.inl"

struct CodePairs {
  static constexpr int kBytes = 64, kParts = 2;
  LANES_INLINE static E4m3Pairs fetch(const char* block) { return e4m3_pairs(block); }
  LANES_INLINE static Ints part(const E4m3Pairs& raw, int j) { return j == 0 ? raw.first : raw.second; }
};
struct DecodedPairs {  // bf16 [K/2][16][2]
  static constexpr int kBytes = 128, kParts = 2;
  static const char* fetch(const char* block) { return block; }
  LANES_INLINE static Ints part(const char* block, int j) { return _mm512_loadu_si512(block + j * 64); }
};
template <class Weights>
struct DotRoad : Weights {
  using Input = std::uint16_t;
  static constexpr float kUnit = 1;
  LANES_INLINE static Ints splat(const std::uint16_t* x) {
    int pair;
    std::memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  LANES_INLINE static Lanes step(Lanes sum, Ints w, Ints x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
};

}  // namespace

extern const Fp8Kernels fp8_avx512_bf16;
const Fp8Kernels fp8_avx512_bf16{.pack = pack_e4m3, .quantize = quantize_e4m3, .absmax = absmax_e4m3, .encode = encode_e4m3, .encode_bf16 = encode_e4m3_bf16,
                                 .gemm_e4m3 = gemm_fp8<FloatRoad<CodeFloats, float>, FloatRoad<DecodedFloats, float>>, .gemm_e4m3_bf16 = gemm_fp8<DotRoad<CodePairs>, DotRoad<DecodedPairs>>};

}  // namespace inflight::kernels
