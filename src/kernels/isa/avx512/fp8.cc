#include "kernels/isa/avx512/fp8.h"

namespace inflight::kernels {
namespace {

#include "kernels/fp8.inl"
#include "kernels/fp8_load.inl"

template <class X>
constexpr auto kGemm = gemm_fp8<FloatRoad<CodeFloats, X>, FloatRoad<DecodedFloats, X>>;

}  // namespace

extern const Fp8Kernels fp8_avx512;
const Fp8Kernels fp8_avx512{.pack = pack_e4m3, .quantize = quantize_e4m3, .absmax = absmax_e4m3, .encode = encode_e4m3, .encode_bf16 = encode_e4m3_bf16, .gemm_e4m3 = kGemm<float>, .gemm_e4m3_bf16 = kGemm<std::uint16_t>};

}  // namespace inflight::kernels
