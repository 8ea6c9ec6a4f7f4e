// What fp8.inl and fp8_load.inl need of AVX-512 beyond dot.h: codes as numbers, by byte shuffles where the ISA has them on 128 bytes (VBMI), else as FP16.
#pragma once
#include "kernels/isa/avx512/e4m3_bytes.h"
#include "kernels/isa/avx512/dot.h"
#include "kernels/fp8.h"

namespace inflight::kernels {
namespace {

LANES_INLINE void store_part(void* p, Lanes x) { _mm512_store_ps(p, x); }

#ifdef __AVX512VBMI__

LANES_INLINE void store_part(void* p, Ints x) { _mm512_store_si512(p, x); }

// A block as BF16 pairs of inputs (0, 1) and (2, 3).
struct E4m3Pairs {
  Ints first, second;
};
LANES_INLINE E4m3Pairs e4m3_pairs(const char* block) {
  const Ints v = _mm512_loadu_si512(block);
  const Ints low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.low), v, _mm512_load_si512(kE4m3Bytes.low + 64));
  const Ints high = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.high), v, _mm512_load_si512(kE4m3Bytes.high + 64));
  const Ints with_sign = _mm512_ternarylogic_epi32(high, v, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);  // high | (v & sign)
  return {_mm512_unpacklo_epi8(low, with_sign), _mm512_unpackhi_epi8(low, with_sign)};
}

constexpr float kE4m3Unit = 1;
struct CodeFloats {
  static constexpr int kBytes = 64, kParts = 4;
  LANES_INLINE static E4m3Pairs fetch(const char* block) { return e4m3_pairs(block); }
  LANES_INLINE static Lanes part(const E4m3Pairs& raw, int j) {
    const Ints pair = j < 2 ? raw.first : raw.second;
    return _mm512_castsi512_ps(j % 2 == 0 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

#else

// Sign, exponent and mantissa of a code are those of an FP16 number 2^8 times smaller, subnormals included: sums are in that unit.
constexpr float kE4m3Unit = 256;
struct CodeFloats {
  static constexpr int kBytes = 64, kParts = 4;
  struct Raw {
    Ints even, odd;  // FP16 of inputs 0 and 1 (low halves), 2 and 3 (high halves) of 16 rows
  };
  LANES_INLINE static Raw fetch(const char* block) {
    const Ints v = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_loadu_si512(block)), mask = _mm512_set1_epi16(static_cast<short>(0xbf80));
    return {_mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 1), mask), _mm512_and_si512(_mm512_srai_epi16(v, 1), mask)};
  }
  LANES_INLINE static Lanes part(const Raw& raw, int j) {
    const Ints words = j % 2 == 0 ? raw.even : raw.odd;
    return _mm512_cvtph_ps(j < 2 ? _mm512_castsi512_si256(words) : _mm512_extracti64x4_epi64(words, 1));
  }
};

#endif

// ---------------------------------------------------------------- packing and encoding
// Four codes a row become two of four rows, twice (e4m3_place).
LANES_INLINE Ints pairs_together(Ints block) {
  return _mm512_shuffle_epi8(block, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)));
}
LANES_INLINE Ints all_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
LANES_INLINE void store_codes(std::uint32_t* chunk, const Ints (&q)[4]) { _mm512_storeu_si512(chunk, narrow(q, 0)); }

// |x| cut at bound, rounded as float_to_e4m3() does: beside the sign, a NaN, or a number.
struct E4m3Rounded {
  Ints bits, size;   // of x, and of |x| cut
  __mmask16 nan, small;
};
LANES_INLINE E4m3Rounded e4m3_rounded(Lanes x, Lanes bound) {
  const Ints bits = _mm512_castps_si512(x), whole = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const Ints size = _mm512_min_epu32(whole, _mm512_castps_si512(bound));
  return {bits, size, _mm512_cmpgt_epi32_mask(whole, _mm512_set1_epi32(0x7f800000)), _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x3c800000))};
}
LANES_INLINE Ints e4m3_half_even(Ints size) {  // half of the last bit kept, less one where that is even
  const Ints odd = _mm512_and_si512(_mm512_srli_epi32(size, 20), _mm512_set1_epi32(1));
  return _mm512_add_epi32(size, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
}
// `value` in every lane, from a register: a choice must not become a masked load of the constant (divisor.inl).
LANES_INLINE Ints held(int value) {
  Ints lanes = _mm512_set1_epi32(value);
  __asm__("" : "+v"(lanes));
  return lanes;
}
// Codes as int8 in dwords.
LANES_INLINE Ints e4m3_codes(Lanes x, Lanes bound) {
  const E4m3Rounded r = e4m3_rounded(x, bound);
  const Ints normal = _mm512_sub_epi32(_mm512_srli_epi32(e4m3_half_even(r.size), 20), _mm512_set1_epi32(120 << 3));
  const Ints subnormal = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(r.size), _mm512_set1_ps(0x1p14f))), _mm512_set1_epi32(0x46800000));
  const Ints code = _mm512_mask_blend_epi32(r.nan, _mm512_mask_blend_epi32(r.small, normal, subnormal), held(0x7f));
  return _mm512_or_si512(code, _mm512_and_si512(_mm512_srai_epi32(r.bits, 24), _mm512_set1_epi32(~0x7f)));
}
// The numbers that the codes mean.
LANES_INLINE Lanes e4m3_numbers(Lanes x, Lanes bound) {
  const E4m3Rounded r = e4m3_rounded(x, bound);
  const Ints normal = _mm512_and_si512(e4m3_half_even(r.size), _mm512_set1_epi32(static_cast<int>(0xfff00000u)));
  const Lanes ulp = _mm512_set1_ps(0x1p14f), subnormal = _mm512_sub_ps(_mm512_add_ps(_mm512_castsi512_ps(r.size), ulp), ulp);
  const Ints number = _mm512_mask_blend_epi32(r.nan, _mm512_mask_blend_epi32(r.small, normal, _mm512_castps_si512(subnormal)), held(0x7fc00000));
  return _mm512_castsi512_ps(_mm512_or_si512(number, _mm512_and_si512(r.bits, _mm512_set1_epi32(static_cast<int>(0x80000000u)))));
}
LANES_INLINE void store_high_halves(std::uint16_t* p, Lanes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16)));
}

}  // namespace
}  // namespace inflight::kernels
