// What lut4_search.inl needs of AVX2 beyond lut4.h of this folder. Words: two registers of 16 int16, the 16 rows of two groups.
#pragma once
#include "kernels/isa/avx2/lut4.h"

namespace inflight::kernels {
namespace {

using WordMask = Ints;

LANES_INLINE Ints splat_word(int x) { return {_mm256_set1_epi16(static_cast<short>(x)), _mm256_set1_epi16(static_cast<short>(x))}; }
LANES_INLINE Ints pack_words(Ints x, Ints y) { return {_mm256_packs_epi32(x.a, y.a), _mm256_packs_epi32(x.b, y.b)}; }
// Dwords of two words each, low and high, for the rows of the first and the second group.
LANES_INLINE Ints first_dwords(Ints low, Ints high) { return {_mm256_unpacklo_epi16(low.a, high.a), _mm256_unpacklo_epi16(low.b, high.b)}; }
LANES_INLINE Ints second_dwords(Ints low, Ints high) { return {_mm256_unpackhi_epi16(low.a, high.a), _mm256_unpackhi_epi16(low.b, high.b)}; }
LANES_INLINE Ints multiply_rounded(Ints x, Ints y) { return {_mm256_mulhrs_epi16(x.a, y.a), _mm256_mulhrs_epi16(x.b, y.b)}; }  // (x * y + 2^14) >> 15
LANES_INLINE Ints multiply_low(Ints x, Ints y) { return {_mm256_mullo_epi16(x.a, y.a), _mm256_mullo_epi16(x.b, y.b)}; }
LANES_INLINE Ints multiply_high(Ints x, Ints y) { return {_mm256_mulhi_epu16(x.a, y.a), _mm256_mulhi_epu16(x.b, y.b)}; }
LANES_INLINE Ints add_words(Ints x, Ints y) { return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)}; }
LANES_INLINE Ints subtract_words(Ints x, Ints y) { return {_mm256_sub_epi16(x.a, y.a), _mm256_sub_epi16(x.b, y.b)}; }
LANES_INLINE Ints smaller_words(Ints x, Ints y) { return {_mm256_min_epi16(x.a, y.a), _mm256_min_epi16(x.b, y.b)}; }
LANES_INLINE Ints larger_words(Ints x, Ints y) { return {_mm256_max_epi16(x.a, y.a), _mm256_max_epi16(x.b, y.b)}; }
template <int kBits>
LANES_INLINE Ints shift_words_left(Ints x) { return {_mm256_slli_epi16(x.a, kBits), _mm256_slli_epi16(x.b, kBits)}; }
LANES_INLINE Ints negate_where(Ints x, Ints mask) { return subtract_words(flip_bits(x, mask), mask); }
LANES_INLINE WordMask less_words(Ints x, Ints y) { return {_mm256_cmpgt_epi16(y.a, x.a), _mm256_cmpgt_epi16(y.b, x.b)}; }
LANES_INLINE Ints choose_words(WordMask m, Ints yes, Ints no) { return {_mm256_blendv_epi8(no.a, yes.a, m.a), _mm256_blendv_epi8(no.b, yes.b, m.b)}; }
LANES_INLINE __m256i pair_bytes_half(__m256i even, __m256i odd) { return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(odd, 8)); }
LANES_INLINE Ints pair_bytes(Ints even, Ints odd) { return {pair_bytes_half(even.a, odd.a), pair_bytes_half(even.b, odd.b)}; }
LANES_INLINE Ints eighths(Ints y) { return nibbles_low({_mm256_srli_epi16(y.a, 3), _mm256_srli_epi16(y.b, 3)}); }  // bits 3..6 of each byte
LANES_INLINE Ints count_above(Ints count, Ints y, Ints bound) {
  return {_mm256_sub_epi8(count.a, _mm256_cmpgt_epi8(y.a, bound.a)), _mm256_sub_epi8(count.b, _mm256_cmpgt_epi8(y.b, bound.b))};
}
LANES_INLINE Ints subtract_bytes(Ints x, Ints y) { return {_mm256_subs_epi8(x.a, y.a), _mm256_subs_epi8(x.b, y.b)}; }
LANES_INLINE Ints larger_bytes(Ints x, Ints y) { return {_mm256_max_epi8(x.a, y.a), _mm256_max_epi8(x.b, y.b)}; }
LANES_INLINE Ints add_saturated(Ints x, char by) { return {_mm256_adds_epi8(x.a, _mm256_set1_epi8(by)), _mm256_adds_epi8(x.b, _mm256_set1_epi8(by))}; }
LANES_INLINE Ints choose_above(Ints y, Ints bound, Ints yes, Ints no) {
  return {_mm256_blendv_epi8(no.a, yes.a, _mm256_cmpgt_epi8(y.a, bound.a)), _mm256_blendv_epi8(no.b, yes.b, _mm256_cmpgt_epi8(y.b, bound.b))};
}
// Signed bytes squared, summed by twos; |byte| <= 127.
LANES_INLINE __m256i square_pairs_half(__m256i e) {
  const __m256i size = _mm256_abs_epi8(e);
  return _mm256_maddubs_epi16(size, size);
}
LANES_INLINE Ints square_pairs(Ints e) { return {square_pairs_half(e.a), square_pairs_half(e.b)}; }
// table[i + 1] for -1 <= i <= 30: the low and the high bytes of the first and of the last 16 words.
struct WordTable {
  __m256i low[2], high[2];
};
LANES_INLINE WordTable word_table(const std::int16_t (&table)[32]) {
  WordTable t;
  const __m256i low = _mm256_set1_epi16(0xff);
  const __m256i* p = reinterpret_cast<const __m256i*>(table);
  for (int i = 0; i < 2; ++i) {
    const __m256i words = _mm256_loadu_si256(p + i);
    const __m256i lows = _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_and_si256(words, low), _mm256_and_si256(words, low)), 0x88);
    const __m256i highs = _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_srli_epi16(words, 8), _mm256_srli_epi16(words, 8)), 0x88);
    t.low[i] = _mm256_permute2x128_si256(lows, lows, 0);
    t.high[i] = _mm256_permute2x128_si256(highs, highs, 0);
  }
  return t;
}
LANES_INLINE __m256i word_of_half(const WordTable& t, __m256i index) {
  const __m256i twice = _mm256_or_si256(index, _mm256_slli_epi16(index, 8));                      // for the low and the high byte
  const __m256i first = _mm256_or_si256(twice, _mm256_cmpgt_epi8(twice, _mm256_set1_epi8(15)));   // bit 7: a zero
  const __m256i last = _mm256_sub_epi8(twice, _mm256_set1_epi8(16));                              // negative below 16: a zero
  const __m256i low = _mm256_or_si256(_mm256_shuffle_epi8(t.low[0], first), _mm256_shuffle_epi8(t.low[1], last));
  const __m256i high = _mm256_or_si256(_mm256_shuffle_epi8(t.high[0], first), _mm256_shuffle_epi8(t.high[1], last));
  return pair_bytes_half(low, high);
}
template <int kOffset>
LANES_INLINE Ints word_of(const WordTable& table, Ints i) {
  const Ints index = add_words(i, splat_word(kOffset + 1));
  return {word_of_half(table, index.a), word_of_half(table, index.b)};
}

LANES_INLINE Ints larger_bits(Ints x, Ints y) { return {_mm256_max_epu32(x.a, y.a), _mm256_max_epu32(x.b, y.b)}; }
LANES_INLINE __m256i rotate_half(__m256i x) { return _mm256_or_si256(_mm256_slli_epi32(x, 1), _mm256_srli_epi32(x, 31)); }
LANES_INLINE Ints rotate_left_one(Ints x) { return {rotate_half(x.a), rotate_half(x.b)}; }
template <int kBits>
LANES_INLINE Ints shift_bits_right(Ints x) { return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)}; }
LANES_INLINE void store_low_bytes(void* p, Ints x) {
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));  // rows 0-3, 8-11, 4-7, 12-15
  const __m256i bytes = _mm256_packus_epi16(words, words);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5))));
}

}  // namespace
}  // namespace inflight::kernels
