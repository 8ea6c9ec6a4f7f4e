#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_avx512;
extern const LinearKernels linear_avx512;
extern const VectorKernels vector_avx512;
extern const RooflineKernels roofline_avx512;
extern const Lut4Kernels lut4_avx512;
extern const LatentKernels latent_avx512;
extern const OffsetKernels offsets_avx512;
extern const Fp8Kernels fp8_avx512;
extern const Fp8AttentionKernels fp8_attention_avx512;
extern const Kernels table_avx512;

const Kernels table_avx512{"avx512", &load_avx512, &linear_avx512, &vector_avx512, &roofline_avx512, &lut4_avx512, &latent_avx512, &offsets_avx512, &fp8_avx512, &fp8_attention_avx512};

}  // namespace inflight::kernels
