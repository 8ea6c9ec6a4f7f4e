#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_avx2;
extern const LinearKernels linear_avx2_vnni;
extern const VectorKernels vector_avx2;
extern const RooflineKernels roofline_avx2_vnni;
extern const Lut4Kernels lut4_avx2_vnni;
extern const LatentKernels latent_avx2;
extern const OffsetKernels offsets_avx2;
extern const Fp8Kernels fp8_avx2;
extern const Fp8AttentionKernels fp8_attention_avx2;
extern const Kernels table_avx2_vnni;

const Kernels table_avx2_vnni{"avx2_vnni", &load_avx2, &linear_avx2_vnni, &vector_avx2, &roofline_avx2_vnni, &lut4_avx2_vnni, &latent_avx2, &offsets_avx2, &fp8_avx2, &fp8_attention_avx2};

}  // namespace inflight::kernels
