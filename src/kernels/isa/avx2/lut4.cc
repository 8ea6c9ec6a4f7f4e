#include "kernels/isa/avx2/lut4_search.h"

#include <iterator>
#include <utility>

namespace inflight::kernels {
namespace {

#include "kernels/lut4.inl"
#include "kernels/lut4_prompt.inl"
#include "kernels/lut4_bytes.inl"
#include "kernels/lut4_search.inl"

}  // namespace

extern const Lut4Kernels lut4_avx2;
const Lut4Kernels lut4_avx2{.quantize = quantize_lut4, .gemm = gemm_lut4, .int8_bytes = lut4_int8_bytes, .quantize_int8 = lut4_quantize_int8, .gemm_int8 = gemm_lut4_int8, .gemm_prompt = gemm_lut4_prompt};

}  // namespace inflight::kernels
