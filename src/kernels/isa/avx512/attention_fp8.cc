#include "kernels/attention_fp8.h"

#include <cstring>

#include "kernels/fp8.h"
#include "kernels/isa/avx512/attention_fp8.h"

namespace inflight::kernels {

extern const Fp8Kernels fp8_avx512;

namespace {

const Fp8Kernels& kEncoder = fp8_avx512;

#include "kernels/exp.inl"

#include "kernels/attention.inl"

#include "kernels/attention_fp8.inl"

}  // namespace

extern const Fp8AttentionKernels fp8_attention_avx512;
const Fp8AttentionKernels fp8_attention_avx512{.store_kv_e4m3 = store_kv_e4m3, .scratch = fp8_attend_scratch, .attend_e4m3 = attend_e4m3, .attend_e4m3_dot = nullptr, .attend_e4m3_full = attend_e4m3_full};

}  // namespace inflight::kernels
