#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_scalar;
extern const LinearKernels linear_scalar;
extern const VectorKernels vector_scalar;
extern const RooflineKernels roofline_scalar;
extern const Lut4Kernels lut4_scalar;
extern const LatentKernels latent_scalar;
extern const OffsetKernels offsets_scalar;
extern const Fp8Kernels fp8_scalar;
extern const Fp8AttentionKernels fp8_attention_scalar;
extern const Kernels table_scalar;

const Kernels table_scalar{"scalar", &load_scalar, &linear_scalar, &vector_scalar, &roofline_scalar, &lut4_scalar, &latent_scalar, &offsets_scalar, &fp8_scalar, &fp8_attention_scalar};

}  // namespace inflight::kernels
