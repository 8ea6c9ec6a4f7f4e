// Rows of a matrix as FP8 codes and scales, as a checkpoint holds them. The rule is that of the FP8 formats (kernels/fp8.h).
#pragma once
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "quant/compensated_rounding.h"
#include "quant/matrix.h"

namespace inflight::quant {

struct Fp8Rule {
  enum class Scales { kMatrix, kOutput, kBlocks } scales = Scales::kMatrix;
  float bound = 448;
  bool bf16_scales = false;  // scales are rounded to BF16, and weights divided by what is stored; a matrix of zeros has the scale 1e-8 / bound
  bool transposed = false;   // codes [inputs, outputs]
  const RoundingFactor* factor = nullptr;  // errors of a row's codes make up for one another (kMatrix, kOutput); nullptr: each is the nearest
};

struct Fp8Rows {
  std::vector<std::uint8_t> codes;  // [rows, inputs], or [inputs, rows]
  std::vector<float> scales;        // kMatrix: 1; kOutput: [rows]; kBlocks: [ceil(rows / 128), ceil(inputs / 128)]
};

// Rows [first, first + rows) of a matrix of any format. Scales are of these rows alone.
Fp8Rows quantize_rows(const Matrix& matrix, std::int64_t first, std::int64_t rows, const Fp8Rule& rule, const Kernels& kernels, ThreadPool& pool);

}  // namespace inflight::quant
