// What lut4.inl needs of AVX-512 beyond dot.h. Bytes: one register of 64, four groups of 16: dword j of 128-bit lane i holds inputs 4i .. 4i + 3 of group j.
#pragma once
#include "kernels/isa/avx512/dot.h"
#include "kernels/lut4.h"

namespace inflight::kernels {
namespace {

using Mask = __mmask16;  // a bit a dword

LANES_INLINE Ints table16(const std::uint8_t (&bytes)[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))); }
LANES_INLINE Ints look_up(Ints table, Ints index) { return _mm512_shuffle_epi8(table, index); }
LANES_INLINE Ints nibbles_low(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
LANES_INLINE Ints nibbles_high(Ints v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
LANES_INLINE Ints eighths(Ints y) { return _mm512_and_si512(_mm512_srli_epi16(y, 3), _mm512_set1_epi8(15)); }  // bits 3..6 of each byte
LANES_INLINE Ints clamp_bytes(Ints y) { return _mm512_min_epi8(_mm512_max_epi8(y, _mm512_set1_epi8(-64)), _mm512_set1_epi8(63)); }
LANES_INLINE Ints count_above(Ints count, Ints y, Ints bound) { return _mm512_mask_sub_epi8(count, _mm512_cmpgt_epi8_mask(y, bound), count, _mm512_set1_epi8(-1)); }
LANES_INLINE Ints subtract_bytes(Ints a, Ints b) { return _mm512_subs_epi8(a, b); }
// Signed bytes squared, summed by fours; |byte| <= 127.
LANES_INLINE Ints squares(Ints e) {
  const Ints size = _mm512_abs_epi8(e);
  return _mm512_dpbusd_epi32(_mm512_setzero_si512(), size, size);
}
// Rounded to the nearest even integer; four vectors of one group each into Bytes, saturated.
LANES_INLINE Ints round_lanes(Lanes x) { return _mm512_cvtps_epi32(x); }
LANES_INLINE Ints narrow_groups(const Ints (&q)[4]) { return _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3])); }
// Over the four 128-bit lanes; every lane gets the result.
LANES_INLINE Ints add_across(Ints x) {
  x = _mm512_add_epi32(x, _mm512_shuffle_i32x4(x, x, 0x4e));
  return _mm512_add_epi32(x, _mm512_shuffle_i32x4(x, x, 0xb1));
}
// The largest magnitude of each of four vectors, its bits shifted up by one, and 1 where it is (also) that of a negative number or zero:
// dword j of every 128-bit lane belongs to vector j.
LANES_INLINE Ints largest_of_each(const Lanes (&z)[4]) {
  Ints m[4];
  for (int i = 0; i < 4; ++i) m[i] = _mm512_rol_epi32(_mm512_castps_si512(z[i]), 1);
  const Ints a = _mm512_max_epu32(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
  const Ints b = _mm512_max_epu32(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
  Ints x = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  x = _mm512_max_epu32(x, _mm512_shuffle_i32x4(x, x, 0x4e));
  return _mm512_max_epu32(_mm512_max_epu32(x, _mm512_shuffle_i32x4(x, x, 0xb1)), _mm512_set1_epi32(1));
}
template <int kGroup>
LANES_INLINE Lanes splat_group(Lanes x) { return _mm512_shuffle_ps(x, x, kGroup * 0x55); }
LANES_INLINE Ints bits_of(Lanes x) { return _mm512_castps_si512(x); }
LANES_INLINE Lanes floats_of(Ints x) { return _mm512_castsi512_ps(x); }
LANES_INLINE Ints shift_right_one(Ints x) { return _mm512_srli_epi32(x, 1); }
LANES_INLINE Ints shift_up_31(Ints x) { return _mm512_slli_epi32(x, 31); }
LANES_INLINE Ints flip_bits(Ints x, Ints mask) { return _mm512_xor_si512(x, mask); }
LANES_INLINE Ints shift_down_19(Ints x) { return _mm512_srli_epi32(x, 19); }
LANES_INLINE Ints shift_up_19(Ints x) { return _mm512_slli_epi32(x, 19); }
LANES_INLINE Ints smaller(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
LANES_INLINE Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
LANES_INLINE Ints both_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
LANES_INLINE Ints either_bits(Ints a, Ints b) { return _mm512_or_si512(a, b); }
// table[i] for the low four bits i of each dword.
using InverseTable = Lanes;
LANES_INLINE InverseTable inverse_table(const float (&table)[16]) { return _mm512_loadu_ps(table); }
LANES_INLINE Lanes inverse_of(InverseTable table, Ints i) { return _mm512_permutexvar_ps(i, table); }
LANES_INLINE Mask less(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LANES_INLINE Ints choose_if(Mask m, Ints yes, Ints no) { return _mm512_mask_blend_epi32(m, no, yes); }
LANES_INLINE Lanes choose_if(Mask m, Lanes yes, Lanes no) { return _mm512_mask_blend_ps(m, no, yes); }
// Nibbles of four groups as the eight dwords of their blocks: the runs of 4 inputs 0 and 1 are the low and high nibbles of a group's first block, 2 and 3 of its second.
LANES_INLINE void store_group_codes(std::uint32_t* chunk, Ints nibbles) {
  const __m256i low = _mm512_castsi512_si256(nibbles), high = _mm512_extracti64x4_epi64(nibbles, 1);
  const __m128i first = _mm_or_si128(_mm256_castsi256_si128(low), _mm_slli_epi32(_mm256_extracti128_si256(low, 1), 4));
  const __m128i second = _mm_or_si128(_mm256_castsi256_si128(high), _mm_slli_epi32(_mm256_extracti128_si256(high, 1), 4));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk), _mm_unpacklo_epi32(first, second));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(chunk + 4), _mm_unpackhi_epi32(first, second));
}
LANES_INLINE void store_group_dwords(std::uint32_t (&out)[4], Ints x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(x)); }

// 16 bytes as signed dwords.
LANES_INLINE Ints widen_signed(const std::uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

}  // namespace
}  // namespace inflight::kernels
