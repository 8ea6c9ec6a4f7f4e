#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_avx2;
extern const LinearKernels linear_avx2;
extern const VectorKernels vector_avx2;
extern const RooflineKernels roofline_avx2;
extern const Lut4Kernels lut4_avx2;
extern const LatentKernels latent_avx2;
extern const OffsetKernels offsets_avx2;
extern const Fp8Kernels fp8_avx2;
extern const Fp8AttentionKernels fp8_attention_avx2;
extern const Kernels table_avx2;

const Kernels table_avx2{"avx2", &load_avx2, &linear_avx2, &vector_avx2, &roofline_avx2, &lut4_avx2, &latent_avx2, &offsets_avx2, &fp8_avx2, &fp8_attention_avx2};

}  // namespace inflight::kernels
