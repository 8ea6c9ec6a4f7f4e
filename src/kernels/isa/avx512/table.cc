#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_scalar;
extern const LinearKernels linear_scalar;
extern const VectorKernels vector_scalar;
extern const RooflineKernels roofline_scalar;
extern const Kernels table_avx512;

const Kernels table_avx512{"avx512", &load_scalar, &linear_scalar, &vector_scalar, &roofline_scalar};

}  // namespace inflight::kernels
