#include <cstring>

#include "kernels/isa/avx512/vec.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {
#include "kernels/vector.inl"

#include "kernels/attention.inl"
}  // namespace

extern const VectorKernels vector_avx512;
const VectorKernels vector_avx512 = {
    .rms_norm = rms_norm,
    .add = add,
    .add_scaled = add_scaled,
    .silu_mul = silu_mul,
    .rope_half = rope_half,
    .rope_pairs = rope_pairs,
    .to_bf16 = to_bf16,
    .round_bf16 = round_bf16,
    .store_kv_f32 = store_kv_f32,
    .store_kv_bf16 = store_kv_bf16,
    .attend_scratch = attend_scratch,
    .attend_f32 = attend<F32Cache>,
    .attend_bf16 = attend<Bf16Cache>,
    .attend_bf16_dot = nullptr,
    .argmax = argmax,
    .log_sum_exp = log_sum_exp,
};

}  // namespace inflight::kernels
