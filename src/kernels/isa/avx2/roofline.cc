#include "kernels/isa/avx2/dot.h"

namespace inflight::kernels {
namespace {

#include "kernels/roofline.inl"

std::uint64_t read(const void* data, std::size_t bytes) {
  const auto* p = static_cast<const __m256i*>(data);
  __m256i seen[8] = {};
  for (std::size_t at = 0; at < bytes / 32; at += 8)
    for (int i = 0; i < 8; ++i) seen[i] = _mm256_or_si256(seen[i], _mm256_load_si256(p + at + i));
  for (int i = 1; i < 8; ++i) seen[0] = _mm256_or_si256(seen[0], seen[i]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(seen[0], 0) | _mm256_extract_epi64(seen[0], 1) | _mm256_extract_epi64(seen[0], 2) | _mm256_extract_epi64(seen[0], 3));
}

// Without VNNI: 8-bit multiply-adds whose results pass through 16-bit sums, as codes of 4 bits allow; codes of 8 bits take twice as many.
double int8(std::int64_t iterations) {
  const __m256i by = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
  __m256i x = by, sums[4] = {};
  for (std::int64_t i = 0; i < iterations; ++i) {
    __m256i shorts[8] = {};
    for (int step = 0; step < 8; ++step) {
      for (int c = 0; c < 8; ++c) {
        asm volatile("" : "+x"(x));  // other values, for all the compiler knows
        shorts[c] = _mm256_add_epi16(shorts[c], _mm256_maddubs_epi16(by, x));
      }
    }
    for (int c = 0; c < 8; ++c) sums[c % 4] = _mm256_add_epi32(sums[c % 4], _mm256_madd_epi16(shorts[c], ones));
  }
  for (int c = 0; c < 4; ++c) asm volatile("" : : "x"(sums[c]));
  return static_cast<double>(iterations) * 64 * 64;
}

double fp32(std::int64_t iterations) {
  const __m256 by = _mm256_set1_ps(0.999f);
  return chains<__m256>(iterations, by, [](__m256 sum, __m256 x) __attribute__((always_inline)) { return _mm256_fmadd_ps(sum, x, x); }) * 16;
}

}  // namespace

extern const RooflineKernels roofline_avx2;
const RooflineKernels roofline_avx2{.read = read, .int8 = int8, .bf16 = fp32, .fp32 = fp32};

}  // namespace inflight::kernels
