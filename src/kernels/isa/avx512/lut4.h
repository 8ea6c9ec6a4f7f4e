// What lut4.inl needs of AVX-512 beyond dot.h.
#pragma once
#include "kernels/isa/avx512/dot.h"
#include "kernels/lut4.h"

namespace inflight::kernels {
namespace {

LANES_INLINE Ints table16(const std::uint8_t (&bytes)[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))); }
LANES_INLINE Ints look_up(Ints table, Ints index) { return _mm512_shuffle_epi8(table, index); }
LANES_INLINE Ints nibbles_low(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
LANES_INLINE Ints nibbles_high(Ints v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
LANES_INLINE Ints bits_of(Lanes x) { return _mm512_castps_si512(x); }
LANES_INLINE Lanes floats_of(Ints x) { return _mm512_castsi512_ps(x); }
LANES_INLINE Ints flip_bits(Ints x, Ints mask) { return _mm512_xor_si512(x, mask); }
LANES_INLINE Ints shift_up_19(Ints x) { return _mm512_slli_epi32(x, 19); }
LANES_INLINE Ints smaller(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
LANES_INLINE Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
LANES_INLINE Ints both_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
LANES_INLINE Ints either_bits(Ints a, Ints b) { return _mm512_or_si512(a, b); }

// 16 bytes as signed dwords.
LANES_INLINE Ints widen_signed(const std::uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

// A block's values (16 rows x 8 inputs) as 16-bit pairs of inputs (0, 2), (4, 6), (1, 3), (5, 7). An index of five bits, the top one of the next nibble: the table is there twice.
constexpr int kLut4Tokens = 8;  // tile of the products with 15-bit activations
using PairTable = __m512i;
LANES_INLINE PairTable pair_table(const std::uint8_t (&values)[16]) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  return _mm512_broadcast_i64x4(words);
}
LANES_INLINE void load_pairs(const std::uint8_t* block, PairTable table, Ints (&pairs)[4]) {
  const Ints v = _mm512_loadu_si512(block);
  pairs[0] = _mm512_permutexvar_epi16(v, table);
  pairs[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table);
  pairs[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table);
  pairs[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table);
}
// sum += both inputs of a pair, for all rows; x: two int16.
LANES_INLINE Ints dot_pairs(Ints sum, Ints pair, const char* x) {
  int both;
  std::memcpy(&both, x, sizeof both);
  return _mm512_dpwssd_epi32(sum, pair, _mm512_set1_epi32(both));
}
// 16 integers as int16, eight to a place, in the order of pairs.
LANES_INLINE void store_pairs(char* first, char* second, Ints q) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i words = _mm256_shuffle_epi8(_mm512_cvtepi32_epi16(q), order);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm256_castsi256_si128(words));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(second), _mm256_extracti128_si256(words, 1));
}

}  // namespace
}  // namespace inflight::kernels
