// Building derived parameters (params::Derivation) from a complete matrix of any format.
#pragma once
#include <cstdint>

#include "params/param_spec.h"
#include "quant/matrix.h"

namespace inflight::quant {

// Fills `out`, which is all zero before, from the dequantized source; both are of one rank. false: a number overflows BF16.
bool derive(const Kernels& kernels, const Matrix& source, const params::Derivation& how, Matrix& out);

// Temporary memory of derive().
std::int64_t derive_bytes(std::int64_t source_inputs, const params::Derivation& how);

}  // namespace inflight::quant
