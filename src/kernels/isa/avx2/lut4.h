// What lut4.inl needs of AVX2 beyond dot.h.
#pragma once
#include "kernels/isa/avx2/dot.h"
#include "kernels/lut4.h"

namespace inflight::kernels {
namespace {

LANES_INLINE Ints table16(const std::uint8_t (&bytes)[16]) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return {t, t};
}
LANES_INLINE Ints look_up(Ints table, Ints index) { return {_mm256_shuffle_epi8(table.a, index.a), _mm256_shuffle_epi8(table.b, index.b)}; }
LANES_INLINE Ints nibbles_low(Ints v) { return {_mm256_and_si256(v.a, _mm256_set1_epi8(15)), _mm256_and_si256(v.b, _mm256_set1_epi8(15))}; }
LANES_INLINE Ints nibbles_high(Ints v) { return nibbles_low({_mm256_srli_epi16(v.a, 4), _mm256_srli_epi16(v.b, 4)}); }
LANES_INLINE Ints bits_of(Lanes x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LANES_INLINE Lanes floats_of(Ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LANES_INLINE Ints flip_bits(Ints x, Ints mask) { return {_mm256_xor_si256(x.a, mask.a), _mm256_xor_si256(x.b, mask.b)}; }
LANES_INLINE Ints shift_up_19(Ints x) { return {_mm256_slli_epi32(x.a, 19), _mm256_slli_epi32(x.b, 19)}; }
LANES_INLINE Ints smaller(Ints x, Ints y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
LANES_INLINE Ints larger(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
LANES_INLINE Ints both_bits(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LANES_INLINE Ints either_bits(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }

// 16 bytes as signed dwords.
LANES_INLINE Ints widen_signed(const std::uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}

}  // namespace
}  // namespace inflight::kernels
