// What attention_fp8.inl needs of AVX2 beyond vec.h: codes as numbers.
#pragma once
#include "kernels/isa/avx2/vec.h"

namespace inflight::kernels {
namespace {

// Sign, exponent and mantissa of a code are those of an FP16 number 2^8 times smaller, subnormals included: numbers in registers are in that unit.
constexpr float kKeyUnit = 256, kValueUnit = 256;

struct Quad {
  V part[4];
};
// Elements 0 to 3 of kLanes keys.
inline Quad key_numbers(const std::uint8_t* p) {
  const __m256i v = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 0xd8), mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
  const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 1), mask), odd = _mm256_and_si256(_mm256_srai_epi16(v, 1), mask);
  return {{_mm256_cvtph_ps(_mm256_castsi256_si128(even)), _mm256_cvtph_ps(_mm256_castsi256_si128(odd)), _mm256_cvtph_ps(_mm256_extracti128_si256(even, 1)),
           _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1))}};
}
// 2 * kLanes elements of a value.
inline Pair value_numbers(__m128i codes) {
  const __m128i mask = _mm_set1_epi16(static_cast<short>(0xbf80));
  return {_mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(codes, 8), 1), mask)), _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(codes, 1), mask))};
}
inline Pair value_numbers(const std::uint8_t* p) { return value_numbers(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Pair value_numbers_first(const std::uint8_t* p, std::int64_t n) {
  alignas(16) std::uint8_t all[16] = {};
  std::memcpy(all, p, static_cast<std::size_t>(n));
  return value_numbers(_mm_load_si128(reinterpret_cast<const __m128i*>(all)));
}

// To BF16: 64 codes of keys, which become two rows of pairs [16][2], and 64 codes of values in order.
inline void store_bf16_pairs(std::uint16_t* p, V even, V odd, float unit) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(mul(even, set1(unit))), 16), high = _mm256_castps_si256(mul(odd, set1(unit)));  // whose low halves are 0
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(low, high));
}
inline void decode_keys(const std::uint8_t* codes, std::uint16_t* out) {
  for (int half = 0; half < 2; ++half) {
    const Quad key = key_numbers(codes + 32 * half);
    for (int i = 0; i < 4; i += 2) store_bf16_pairs(out + 16 * i + 16 * half, key.part[i], key.part[i + 1], kKeyUnit);
  }
}
inline void decode_values(const std::uint8_t* codes, std::uint16_t* out) {
  for (int i = 0; i < 64; i += 16) {
    const Pair v = value_numbers(codes + i);
    store_bf16_pairs(out + i, v.even, v.odd, kValueUnit);
  }
}

// The number of e4m3(x) for 0 <= x <= 448.
inline V e4m3_positive(V x) {
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const __m256i normal = _mm256_and_si256(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))), _mm256_set1_epi32(static_cast<int>(0xfff00000u)));
  const V place = set1(0x1p14f), subnormal = sub(add(x, place), place);  // its last place is worth 2^-9
  return _mm256_blendv_ps(_mm256_castsi256_ps(normal), subnormal, _mm256_cmp_ps(x, set1(0x1p-6f), _CMP_LT_OQ));
}

}  // namespace
}  // namespace inflight::kernels
