// What lut4.inl needs of AVX2 beyond dot.h. Bytes: two registers of 32, four groups of 16: dword j of 128-bit lane i (of the four) holds inputs 4i .. 4i + 3 of group j.
#pragma once
#include "kernels/isa/avx2/dot.h"
#include "kernels/lut4.h"

namespace inflight::kernels {
namespace {

struct Mask {  // all bits of a dword
  __m256 a, b;
};

LANES_INLINE Ints table16(const std::uint8_t (&bytes)[16]) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return {t, t};
}
LANES_INLINE Ints look_up(Ints table, Ints index) { return {_mm256_shuffle_epi8(table.a, index.a), _mm256_shuffle_epi8(table.b, index.b)}; }
LANES_INLINE Ints nibbles_low(Ints v) { return {_mm256_and_si256(v.a, _mm256_set1_epi8(15)), _mm256_and_si256(v.b, _mm256_set1_epi8(15))}; }
LANES_INLINE Ints nibbles_high(Ints v) { return nibbles_low({_mm256_srli_epi16(v.a, 4), _mm256_srli_epi16(v.b, 4)}); }
LANES_INLINE Ints eighths(Ints y) { return nibbles_low({_mm256_srli_epi16(y.a, 3), _mm256_srli_epi16(y.b, 3)}); }  // bits 3..6 of each byte
LANES_INLINE __m256i clamp_half(__m256i y) { return _mm256_min_epi8(_mm256_max_epi8(y, _mm256_set1_epi8(-64)), _mm256_set1_epi8(63)); }
LANES_INLINE Ints clamp_bytes(Ints y) { return {clamp_half(y.a), clamp_half(y.b)}; }
LANES_INLINE Ints count_above(Ints count, Ints y, Ints bound) {
  return {_mm256_sub_epi8(count.a, _mm256_cmpgt_epi8(y.a, bound.a)), _mm256_sub_epi8(count.b, _mm256_cmpgt_epi8(y.b, bound.b))};
}
LANES_INLINE Ints subtract_bytes(Ints x, Ints y) { return {_mm256_subs_epi8(x.a, y.a), _mm256_subs_epi8(x.b, y.b)}; }
// Signed bytes squared, summed by fours; |byte| <= 127.
LANES_INLINE __m256i squares_half(__m256i e) {
  const __m256i size = _mm256_abs_epi8(e);
  return _mm256_madd_epi16(_mm256_maddubs_epi16(size, size), _mm256_set1_epi16(1));
}
LANES_INLINE Ints squares(Ints e) { return {squares_half(e.a), squares_half(e.b)}; }
// Rounded to the nearest even integer; four vectors of one group each into Bytes, saturated.
LANES_INLINE Ints round_lanes(Lanes x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
LANES_INLINE Ints narrow_groups(const Ints (&q)[4]) {
  return {_mm256_packs_epi16(_mm256_packs_epi32(q[0].a, q[1].a), _mm256_packs_epi32(q[2].a, q[3].a)), _mm256_packs_epi16(_mm256_packs_epi32(q[0].b, q[1].b), _mm256_packs_epi32(q[2].b, q[3].b))};
}
// Over the four 128-bit lanes; every lane gets the result.
LANES_INLINE Ints add_across(Ints x) {
  const __m256i s = _mm256_add_epi32(x.a, x.b), t = _mm256_add_epi32(s, _mm256_permute2x128_si256(s, s, 1));
  return {t, t};
}
// The largest magnitude of each of four vectors, its bits shifted up by one, and 1 where it is (also) that of a negative number or zero:
// dword j of every 128-bit lane belongs to vector j.
LANES_INLINE __m256i turned(__m256 x) { return _mm256_or_si256(_mm256_slli_epi32(_mm256_castps_si256(x), 1), _mm256_srli_epi32(_mm256_castps_si256(x), 31)); }
LANES_INLINE Ints largest_of_each(const Lanes (&z)[4]) {
  __m256i m[4];
  for (int i = 0; i < 4; ++i) m[i] = _mm256_max_epu32(turned(z[i].a), turned(z[i].b));
  const __m256i a = _mm256_max_epu32(_mm256_unpacklo_epi32(m[0], m[1]), _mm256_unpackhi_epi32(m[0], m[1]));
  const __m256i b = _mm256_max_epu32(_mm256_unpacklo_epi32(m[2], m[3]), _mm256_unpackhi_epi32(m[2], m[3]));
  const __m256i x = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  const __m256i y = _mm256_max_epu32(_mm256_max_epu32(x, _mm256_permute2x128_si256(x, x, 1)), _mm256_set1_epi32(1));
  return {y, y};
}
template <int kGroup>
LANES_INLINE Lanes splat_group(Lanes x) { return {_mm256_shuffle_ps(x.a, x.a, kGroup * 0x55), _mm256_shuffle_ps(x.b, x.b, kGroup * 0x55)}; }
LANES_INLINE Ints bits_of(Lanes x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LANES_INLINE Lanes floats_of(Ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LANES_INLINE Ints shift_right_one(Ints x) { return {_mm256_srli_epi32(x.a, 1), _mm256_srli_epi32(x.b, 1)}; }
LANES_INLINE Ints shift_up_31(Ints x) { return {_mm256_slli_epi32(x.a, 31), _mm256_slli_epi32(x.b, 31)}; }
LANES_INLINE Ints flip_bits(Ints x, Ints mask) { return {_mm256_xor_si256(x.a, mask.a), _mm256_xor_si256(x.b, mask.b)}; }
LANES_INLINE Ints shift_down_19(Ints x) { return {_mm256_srli_epi32(x.a, 19), _mm256_srli_epi32(x.b, 19)}; }
LANES_INLINE Ints shift_up_19(Ints x) { return {_mm256_slli_epi32(x.a, 19), _mm256_slli_epi32(x.b, 19)}; }
LANES_INLINE Ints smaller(Ints x, Ints y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
LANES_INLINE Ints larger(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
LANES_INLINE Ints both_bits(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LANES_INLINE Ints either_bits(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
// table[i] for the low four bits i of each dword; every 128-bit lane of i is the same.
struct InverseTable {
  __m256 low, high;
};
LANES_INLINE InverseTable inverse_table(const float (&table)[16]) { return {_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8)}; }
LANES_INLINE Lanes inverse_of(InverseTable table, Ints i) {
  const __m256 low = _mm256_permutevar8x32_ps(table.low, i.a), high = _mm256_permutevar8x32_ps(table.high, i.a);
  const __m256 x = _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i.a, 28)));
  return {x, x};
}
LANES_INLINE Mask less(Lanes x, Lanes y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
LANES_INLINE Lanes choose_if(Mask m, Lanes yes, Lanes no) { return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)}; }
LANES_INLINE Ints choose_if(Mask m, Ints yes, Ints no) { return bits_of(choose_if(m, floats_of(yes), floats_of(no))); }
// Nibbles of four groups as the eight dwords of their blocks: the runs of 4 inputs 0 and 1 are the low and high nibbles of a group's first block, 2 and 3 of its second.
LANES_INLINE void store_group_codes(std::uint32_t* chunk, Ints nibbles) {
  const __m128i first = _mm_or_si128(_mm256_castsi256_si128(nibbles.a), _mm_slli_epi32(_mm256_extracti128_si256(nibbles.a, 1), 4));
  const __m128i second = _mm_or_si128(_mm256_castsi256_si128(nibbles.b), _mm_slli_epi32(_mm256_extracti128_si256(nibbles.b, 1), 4));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk), _mm_unpacklo_epi32(first, second));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk + 4), _mm_unpackhi_epi32(first, second));
}
LANES_INLINE void store_group_dwords(std::uint32_t (&out)[4], Ints x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(x.a)); }

// 16 bytes as signed dwords.
LANES_INLINE Ints widen_signed(const std::uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}

}  // namespace
}  // namespace inflight::kernels
