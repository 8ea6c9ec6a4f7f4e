// The vector vocabulary of vector.inl and attention.inl on AVX-512: V is 16 floats.
// isa/avx2/vec.h has the same names. "First n" means lanes 0..n-1, 0 <= n <= kLanes; other lanes load as 0 and are not stored.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace inflight::kernels {
namespace {

using V = __m512;
using Lanes = __mmask16;  // a set of lanes
using Index = __m512i;    // an int32 per lane
struct Pair {             // neighbouring elements 2i, 2i + 1: lane i of `even` and of `odd`
  V even, odd;
};
struct Wide {  // FP64 accumulators, one per lane
  __m512d low, high;
};
constexpr int kLanes = 16;
constexpr int kRegisters = 32;

inline void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline V zero() { return _mm512_setzero_ps(); }
inline V set1(float value) { return _mm512_set1_ps(value); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline Lanes first(std::int64_t n) { return static_cast<Lanes>((1u << n) - 1); }
inline Lanes without(Lanes lanes, Lanes removed) { return static_cast<Lanes>(lanes & ~removed); }
inline V load_first(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store_first(float* p, V v, std::int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
inline V select(Lanes lanes, V yes, V no) { return _mm512_mask_blend_ps(lanes, no, yes); }

inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline V max(V a, V b) { return _mm512_max_ps(a, b); }              // b where either is NaN
inline V min(V a, V b) { return _mm512_min_ps(a, b); }              // b where either is NaN
inline V round(V v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V times_power_of_two(V v, V n) { return _mm512_scalef_ps(v, n); }  // v * 2^n, n whole, one rounding
inline float reduce_add(V v) { return _mm512_reduce_add_ps(v); }
inline float reduce_max(V v) { return _mm512_reduce_max_ps(v); }

inline Wide wide_zero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline __m512d wide_low(V v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
inline __m512d wide_high(V v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
inline Wide add(Wide sum, V v) { return {_mm512_add_pd(sum.low, wide_low(v)), _mm512_add_pd(sum.high, wide_high(v))}; }
inline Wide add_square(Wide sum, V v) {
  const __m512d low = wide_low(v), high = wide_high(v);
  return {_mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high)};
}
inline double reduce_add(Wide sum) { return _mm512_reduce_add_pd(_mm512_add_pd(sum.low, sum.high)); }

inline bool any(Lanes lanes) { return lanes != 0; }
inline Lanes both(Lanes a, Lanes b) { return a & b; }
inline Lanes either(Lanes a, Lanes b) { return a | b; }
inline Lanes none() { return 0; }
inline Lanes greater(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Lanes non_finite(V v) {
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(v), exponent), exponent);
}
inline Index index_set1(std::int32_t value) { return _mm512_set1_epi32(value); }
inline Index index_select(Lanes lanes, Index yes, Index no) { return _mm512_mask_blend_epi32(lanes, no, yes); }
inline void index_store(std::int32_t* p, Index v) { _mm512_storeu_si512(p, v); }

inline V shift_up(__m512i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)); }
inline V keep_high(__m512i bits) { return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))); }
inline Pair load_bf16(const std::uint16_t* p) {  // 2 * kLanes elements
  const __m512i bits = _mm512_loadu_si512(p);
  return {shift_up(bits), keep_high(bits)};
}
inline Pair load_bf16_first(const std::uint16_t* p, std::int64_t pairs) {
  const __m512i bits = _mm512_maskz_loadu_epi32(first(pairs), p);
  return {shift_up(bits), keep_high(bits)};
}
// The pair's 2 * kLanes elements in order, in two vectors named even and odd.
inline Pair interleave(Pair v) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return {_mm512_permutex2var_ps(v.even, low, v.odd), _mm512_permutex2var_ps(v.even, high, v.odd)};
}

// Nearest even to BF16, in the high half of each lane; NaN stays NaN, quieted.
inline V to_bf16_bits(V v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  return keep_high(_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet));
}
inline __m256i high_halves(V v) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)); }
inline void store_bf16(std::uint16_t* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), high_halves(to_bf16_bits(v))); }
inline void store_bf16_first(std::uint16_t* p, V v, std::int64_t n) { _mm256_mask_storeu_epi16(p, first(n), high_halves(to_bf16_bits(v))); }

}  // namespace
}  // namespace inflight::kernels
