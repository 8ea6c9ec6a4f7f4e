#include "kernels/latent.h"

#include "kernels/isa/avx512/vec.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {
#include "kernels/exp.inl"

#include "kernels/latent.inl"
}  // namespace

extern const LatentKernels latent_avx512;
const LatentKernels latent_avx512 = {
    .scratch = latent_scratch, .attend_f32 = attend_latent<F32Math<float>>, .attend_bf16 = attend_latent<F32Math<std::uint16_t>>, .attend_bf16_dot = nullptr,
    .expand_scratch = expand_scratch, .expand_f32 = expand<F32Math<float>>, .expand_bf16 = expand<F32Math<std::uint16_t>>, .expand_bf16_dot = nullptr};

}  // namespace inflight::kernels
