#include <cstring>

#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {

std::uint64_t read(const void* data, std::size_t bytes) {
  std::uint64_t seen[4] = {};
  for (std::size_t at = 0; at < bytes; at += sizeof seen) {
    std::uint64_t words[4];
    std::memcpy(words, static_cast<const char*>(data) + at, sizeof words);
    for (int i = 0; i < 4; ++i) seen[i] |= words[i];
  }
  return seen[0] | seen[1] | seen[2] | seen[3];
}

// Keeps a value's computation alive, and the compiler from seeing through it.
template <class T>
void keep(T& value) {
  asm volatile("" : "+m"(value));
}

constexpr int kChains = 8;

double int8(std::int64_t iterations) {
  std::int32_t sums[kChains] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::int32_t code = 3;
  keep(code);
  for (std::int64_t i = 0; i < iterations; ++i)
    for (int c = 0; c < kChains; ++c) {
      sums[c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[c]) * static_cast<std::uint32_t>(code) + 1u);
    }
  keep(sums);
  return 2.0 * kChains * static_cast<double>(iterations);
}

double fp32(std::int64_t iterations) {
  float sums[kChains] = {1, 2, 3, 4, 5, 6, 7, 8};
  float by = 0.999f, plus = 1e-9f;
  keep(by);
  keep(plus);
  for (std::int64_t i = 0; i < iterations; ++i)
    for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * by + plus;
  keep(sums);
  return 2.0 * kChains * static_cast<double>(iterations);
}

}  // namespace

extern const RooflineKernels roofline_scalar;
const RooflineKernels roofline_scalar{.read = read, .int8 = int8, .bf16 = fp32, .fp32 = fp32};

}  // namespace inflight::kernels
