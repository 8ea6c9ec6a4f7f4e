#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_avx512;
extern const LinearKernels linear_avx512_bf16;
extern const VectorKernels vector_avx512_bf16;
extern const RooflineKernels roofline_avx512_bf16;
extern const Lut4Kernels lut4_avx512;
extern const LatentKernels latent_avx512_bf16;
extern const OffsetKernels offsets_avx512;
extern const Fp8Kernels fp8_avx512_bf16;
extern const Fp8AttentionKernels fp8_attention_avx512_bf16;
extern const Kernels table_avx512_bf16;

const Kernels table_avx512_bf16{"avx512_bf16", &load_avx512, &linear_avx512_bf16, &vector_avx512_bf16, &roofline_avx512_bf16, &lut4_avx512, &latent_avx512_bf16, &offsets_avx512, &fp8_avx512_bf16, &fp8_attention_avx512_bf16};

}  // namespace inflight::kernels
