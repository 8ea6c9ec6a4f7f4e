// What lut4_search.inl needs of AVX-512 beyond lut4.h of this folder. Words: one register of 32 int16, the 16 rows of two groups.
#pragma once
#include "kernels/isa/avx512/lut4.h"

namespace inflight::kernels {
namespace {

using WordMask = __mmask32;

LANES_INLINE Ints splat_word(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
LANES_INLINE Ints pack_words(Ints a, Ints b) { return _mm512_packs_epi32(a, b); }
// Dwords of two words each, low and high, for the rows of the first and the second group.
LANES_INLINE Ints first_dwords(Ints low, Ints high) { return _mm512_unpacklo_epi16(low, high); }
LANES_INLINE Ints second_dwords(Ints low, Ints high) { return _mm512_unpackhi_epi16(low, high); }
LANES_INLINE Ints multiply_rounded(Ints x, Ints y) { return _mm512_mulhrs_epi16(x, y); }  // (x * y + 2^14) >> 15
LANES_INLINE Ints multiply_low(Ints x, Ints y) { return _mm512_mullo_epi16(x, y); }
LANES_INLINE Ints multiply_high(Ints x, Ints y) { return _mm512_mulhi_epu16(x, y); }
LANES_INLINE Ints add_words(Ints x, Ints y) { return _mm512_add_epi16(x, y); }
LANES_INLINE Ints subtract_words(Ints x, Ints y) { return _mm512_sub_epi16(x, y); }
LANES_INLINE Ints smaller_words(Ints x, Ints y) { return _mm512_min_epi16(x, y); }
LANES_INLINE Ints larger_words(Ints x, Ints y) { return _mm512_max_epi16(x, y); }
template <int kBits>
LANES_INLINE Ints shift_words_left(Ints x) { return _mm512_slli_epi16(x, kBits); }
LANES_INLINE Ints negate_where(Ints x, Ints mask) { return _mm512_sub_epi16(_mm512_xor_si512(x, mask), mask); }
LANES_INLINE WordMask less_words(Ints x, Ints y) { return _mm512_cmplt_epi16_mask(x, y); }
LANES_INLINE Ints choose_words(WordMask m, Ints yes, Ints no) { return _mm512_mask_blend_epi16(m, no, yes); }
LANES_INLINE Ints pair_bytes(Ints even, Ints odd) { return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, even, _mm512_slli_epi16(odd, 8)); }
LANES_INLINE Ints eighths(Ints y) { return _mm512_and_si512(_mm512_srli_epi16(y, 3), _mm512_set1_epi8(15)); }  // bits 3..6 of each byte
LANES_INLINE Ints count_above(Ints count, Ints y, Ints bound) { return _mm512_mask_sub_epi8(count, _mm512_cmpgt_epi8_mask(y, bound), count, _mm512_set1_epi8(-1)); }
LANES_INLINE Ints subtract_bytes(Ints a, Ints b) { return _mm512_subs_epi8(a, b); }
LANES_INLINE Ints larger_bytes(Ints x, Ints y) { return _mm512_max_epi8(x, y); }
LANES_INLINE Ints add_saturated(Ints x, char by) { return _mm512_adds_epi8(x, _mm512_set1_epi8(by)); }
LANES_INLINE Ints choose_above(Ints y, Ints bound, Ints yes, Ints no) { return _mm512_mask_blend_epi8(_mm512_cmpgt_epi8_mask(y, bound), no, yes); }
// Signed bytes squared, summed by twos; |byte| <= 127.
LANES_INLINE Ints square_pairs(Ints e) {
  const Ints size = _mm512_abs_epi8(e);
  return _mm512_maddubs_epi16(size, size);
}
// table[i + 1] for -1 <= i <= 30.
struct WordTable {
  Ints words;
};
LANES_INLINE WordTable word_table(const std::int16_t (&table)[32]) { return {_mm512_loadu_si512(table)}; }
template <int kOffset>
LANES_INLINE Ints word_of(const WordTable& table, Ints i) { return _mm512_permutexvar_epi16(_mm512_add_epi16(i, _mm512_set1_epi16(kOffset + 1)), table.words); }

LANES_INLINE Ints larger_bits(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
LANES_INLINE Ints rotate_left_one(Ints x) { return _mm512_rol_epi32(x, 1); }
template <int kBits>
LANES_INLINE Ints shift_bits_right(Ints x) { return _mm512_srli_epi32(x, kBits); }
LANES_INLINE void store_low_bytes(void* p, Ints x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }

}  // namespace
}  // namespace inflight::kernels
