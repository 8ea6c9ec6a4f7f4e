// Elements of source rows, one at a time.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/bf16.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {

float element(const SourceRows& source, int row, std::int64_t k) {
  const std::int64_t at = row * source.stride + k;
  if (source.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(source.data) + at * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(source.data) + at * 2, 2);
  return source.dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// row * K + k of the first NaN or infinity, or -1.
[[maybe_unused]] std::int64_t first_non_finite(const SourceRows& source) {
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs; ++k)
      if (!std::isfinite(element(source, row, k))) return row * source.inputs + k;
  return -1;
}

}  // namespace
}  // namespace inflight::kernels
