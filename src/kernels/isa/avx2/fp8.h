// What fp8.inl and fp8_load.inl need of AVX2 beyond dot.h.
#pragma once
#include "kernels/isa/avx2/dot.h"
#include "kernels/fp8.h"

namespace inflight::kernels {
namespace {

LANES_INLINE void store_part(void* p, Lanes x) { store_lanes(static_cast<float*>(p), x); }
LANES_INLINE Lanes divide(Lanes x, Lanes y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }

// Sign, exponent and mantissa of a code are those of an FP16 number 2^8 times smaller, subnormals included: sums are in that unit.
constexpr float kE4m3Unit = 256;
struct CodeFloats {
  static constexpr int kBytes = 64, kParts = 4;
  struct Raw {
    Ints even, odd;  // FP16 of inputs 0 and 1 (low halves), 2 and 3 (high halves); a: rows 0 to 7, b: 8 to 15
  };
  LANES_INLINE static __m256i even(__m256i v) { return _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 1), _mm256_set1_epi16(static_cast<short>(0xbf80))); }
  LANES_INLINE static __m256i odd(__m256i v) { return _mm256_and_si256(_mm256_srai_epi16(v, 1), _mm256_set1_epi16(static_cast<short>(0xbf80))); }
  LANES_INLINE static Raw fetch(const char* block) {
    const Ints v = load_ints(block);
    const __m256i a = _mm256_permute4x64_epi64(v.a, 0xd8), b = _mm256_permute4x64_epi64(v.b, 0xd8);
    return {{even(a), even(b)}, {odd(a), odd(b)}};
  }
  LANES_INLINE static __m256 half(__m256i words, int j) { return _mm256_cvtph_ps(j < 2 ? _mm256_castsi256_si128(words) : _mm256_extracti128_si256(words, 1)); }
  LANES_INLINE static Lanes part(const Raw& raw, int j) {
    const Ints words = j % 2 == 0 ? raw.even : raw.odd;
    return {half(words.a, j), half(words.b, j)};
  }
};

// ---------------------------------------------------------------- packing and encoding
// Four codes a row become two of four rows, twice (e4m3_place).
LANES_INLINE Ints pairs_together(Ints block) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  return {_mm256_shuffle_epi8(block.a, order), _mm256_shuffle_epi8(block.b, order)};
}
LANES_INLINE Ints all_bits(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LANES_INLINE void store_codes(std::uint32_t* chunk, const Ints (&q)[4]) {
  for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(chunk) + i, narrow(q[i * 2], q[i * 2 + 1], 0));
}

// |x| cut at bound, rounded as float_to_e4m3() does: beside the sign, a NaN, or a number.
struct E4m3Rounded {
  __m256i bits, size;   // of x, and of |x| cut
  __m256i nan, small;
};
LANES_INLINE E4m3Rounded e4m3_rounded(__m256 x, __m256 bound) {
  const __m256i bits = _mm256_castps_si256(x), whole = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i size = _mm256_min_epu32(whole, _mm256_castps_si256(bound));
  return {bits, size, _mm256_cmpgt_epi32(whole, _mm256_set1_epi32(0x7f800000)), _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), size)};
}
LANES_INLINE __m256i e4m3_half_even(__m256i size) {  // half of the last bit kept, less one where that is even
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(size, 20), _mm256_set1_epi32(1));
  return _mm256_add_epi32(size, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
}
LANES_INLINE __m256i e4m3_code_half(__m256 x, __m256 bound) {
  const E4m3Rounded r = e4m3_rounded(x, bound);
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(e4m3_half_even(r.size), 20), _mm256_set1_epi32(120 << 3));
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(r.size), _mm256_set1_ps(0x1p14f))), _mm256_set1_epi32(0x46800000));
  const __m256i code = _mm256_blendv_epi8(_mm256_blendv_epi8(normal, subnormal, r.small), _mm256_set1_epi32(0x7f), r.nan);
  return _mm256_or_si256(code, _mm256_and_si256(_mm256_srai_epi32(r.bits, 24), _mm256_set1_epi32(~0x7f)));
}
LANES_INLINE __m256 e4m3_number_half(__m256 x, __m256 bound) {
  const E4m3Rounded r = e4m3_rounded(x, bound);
  const __m256i normal = _mm256_and_si256(e4m3_half_even(r.size), _mm256_set1_epi32(static_cast<int>(0xfff00000u)));
  const __m256 ulp = _mm256_set1_ps(0x1p14f), subnormal = _mm256_sub_ps(_mm256_add_ps(_mm256_castsi256_ps(r.size), ulp), ulp);
  const __m256i number = _mm256_blendv_epi8(_mm256_blendv_epi8(normal, _mm256_castps_si256(subnormal), r.small), _mm256_set1_epi32(0x7fc00000), r.nan);
  return _mm256_castsi256_ps(_mm256_or_si256(number, _mm256_and_si256(r.bits, _mm256_set1_epi32(static_cast<int>(0x80000000u)))));
}
// Codes as int8 in dwords.
LANES_INLINE Ints e4m3_codes(Lanes x, Lanes bound) { return {e4m3_code_half(x.a, bound.a), e4m3_code_half(x.b, bound.b)}; }
// The numbers that the codes mean.
LANES_INLINE Lanes e4m3_numbers(Lanes x, Lanes bound) { return {e4m3_number_half(x.a, bound.a), e4m3_number_half(x.b, bound.b)}; }
LANES_INLINE void store_high_halves(std::uint16_t* p, Lanes x) {
  const __m256i a = _mm256_srli_epi32(_mm256_castps_si256(x.a), 16), b = _mm256_srli_epi32(_mm256_castps_si256(x.b), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}

}  // namespace
}  // namespace inflight::kernels
