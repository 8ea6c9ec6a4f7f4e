#include "kernels/kernels.h"

namespace inflight::kernels {

extern const LoadKernels load_scalar;
extern const LinearKernels linear_scalar;
extern const VectorKernels vector_scalar;
extern const RooflineKernels roofline_scalar;
extern const Kernels table_avx2;

const Kernels table_avx2{"avx2", &load_scalar, &linear_scalar, &vector_scalar, &roofline_scalar};

}  // namespace inflight::kernels
