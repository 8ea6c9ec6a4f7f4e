// What attention_fp8.inl needs of AVX-512 beyond vec.h: codes as numbers, by byte shuffles where the ISA has them on 128 bytes (VBMI), else as FP16.
#pragma once
#include "kernels/isa/avx512/e4m3_bytes.h"
#include "kernels/isa/avx512/vec.h"

namespace inflight::kernels {
namespace {

struct Quad {
  V part[4];
};

// Sign, exponent and mantissa of a code are those of an FP16 number 2^8 times smaller, subnormals included: numbers in registers are in that unit.
constexpr float kValueUnit = 256;
// 2 * kLanes elements of a value.
inline Pair value_numbers(__m256i codes) {
  const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
  return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 1), mask)), _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(codes, 1), mask))};
}
inline Pair value_numbers(const std::uint8_t* p) { return value_numbers(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Pair value_numbers_first(const std::uint8_t* p, std::int64_t n) { return value_numbers(_mm256_maskz_loadu_epi8((__mmask32{1} << n) - 1, p)); }

#ifdef __AVX512VBMI__

// BF16 of 64 codes: of the first and of the second eight of every sixteen.
struct E4m3Halves {
  __m512i first, second;
};
inline E4m3Halves e4m3_halves(__m512i codes) {
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.low), codes, _mm512_load_si512(kE4m3Bytes.low + 64));
  const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.high), codes, _mm512_load_si512(kE4m3Bytes.high + 64));
  const __m512i with_sign = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);  // high | (codes & sign)
  return {_mm512_unpacklo_epi8(low, with_sign), _mm512_unpackhi_epi8(low, with_sign)};
}

constexpr float kKeyUnit = 1;
inline Quad key_numbers(const std::uint8_t* p) {
  const E4m3Halves pairs = e4m3_halves(_mm512_loadu_si512(p));
  return {{shift_up(pairs.first), keep_high(pairs.first), shift_up(pairs.second), keep_high(pairs.second)}};
}
// To BF16: 64 codes of keys, which become two rows of pairs [16][2], and 64 codes of values in order.
inline void decode_keys(const std::uint8_t* codes, std::uint16_t* out) {
  const E4m3Halves pairs = e4m3_halves(_mm512_loadu_si512(codes));
  _mm512_storeu_si512(out, pairs.first);
  _mm512_storeu_si512(out + 32, pairs.second);
}
inline void decode_values(const std::uint8_t* codes, std::uint16_t* out) {
  const E4m3Halves halves = e4m3_halves(_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_loadu_si512(codes)));
  _mm512_storeu_si512(out, halves.first);
  _mm512_storeu_si512(out + 32, halves.second);
}

#else

constexpr float kKeyUnit = 256;
// Elements 0 to 3 of 16 keys.
inline Quad key_numbers(const std::uint8_t* p) {
  const __m512i v = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_loadu_si512(p)), mask = _mm512_set1_epi16(static_cast<short>(0xbf80));
  const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 1), mask), odd = _mm512_and_si512(_mm512_srai_epi16(v, 1), mask);
  return {{_mm512_cvtph_ps(_mm512_castsi512_si256(even)), _mm512_cvtph_ps(_mm512_castsi512_si256(odd)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(even, 1)),
           _mm512_cvtph_ps(_mm512_extracti64x4_epi64(odd, 1))}};
}
// To BF16: 64 codes of keys, which become two rows of pairs [16][2], and 64 codes of values in order.
inline void store_bf16_pairs(std::uint16_t* p, V even, V odd, float unit) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(mul(even, set1(unit))), 16), high = _mm512_castps_si512(mul(odd, set1(unit)));  // whose low halves are 0
  _mm512_storeu_si512(p, _mm512_or_si512(low, high));
}
inline void decode_keys(const std::uint8_t* codes, std::uint16_t* out) {
  const Quad key = key_numbers(codes);
  for (int i = 0; i < 4; i += 2) store_bf16_pairs(out + 16 * i, key.part[i], key.part[i + 1], kKeyUnit);
}
inline void decode_values(const std::uint8_t* codes, std::uint16_t* out) {
  for (int i = 0; i < 64; i += 32) {
    const Pair v = value_numbers(codes + i);
    store_bf16_pairs(out + i, v.even, v.odd, kValueUnit);
  }
}

#endif

// The number of e4m3(x) for 0 <= x <= 448.
inline V e4m3_positive(V x) {
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i normal = _mm512_and_si512(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))), _mm512_set1_epi32(static_cast<int>(0xfff00000u)));
  const V place = set1(0x1p14f), subnormal = sub(add(x, place), place);  // its last place is worth 2^-9
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, set1(0x1p-6f), _CMP_LT_OQ), _mm512_castsi512_ps(normal), subnormal);
}

}  // namespace
}  // namespace inflight::kernels
