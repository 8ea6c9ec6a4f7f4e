// As isa/avx512, with byte shuffles to decode and BF16 dot products in the attention of prompts and in attend_e4m3_full.
#include "kernels/attention_fp8.h"

#include <cstring>

#include "kernels/fp8.h"
#include "kernels/isa/avx512/attention_fp8.h"

namespace inflight::kernels {

extern const Fp8Kernels fp8_avx512_bf16;

namespace {

const Fp8Kernels& kEncoder = fp8_avx512_bf16;

#include "kernels/exp.inl"

#include "kernels/attention.inl"

#include "kernels/attention_fp8.inl"

#include "kernels/isa/avx512_bf16/attention.inl"

#include "kernels/isa/avx512_bf16/attention_fp8.inl"

}  // namespace

extern const Fp8AttentionKernels fp8_attention_avx512_bf16;
const Fp8AttentionKernels fp8_attention_avx512_bf16{.store_kv_e4m3 = store_kv_e4m3, .scratch = attend_fp8_dot_scratch, .attend_e4m3 = attend_e4m3, .attend_e4m3_dot = attend_e4m3_dot, .attend_e4m3_full = attend_e4m3_full_dot};

}  // namespace inflight::kernels
