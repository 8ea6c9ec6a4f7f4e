// The vector vocabulary of vector.inl and attention.inl on AVX2: V is 8 floats.
// isa/avx512/vec.h has the same names. "First n" means lanes 0..n-1, 0 <= n <= kLanes; other lanes load as 0 and are not stored.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace inflight::kernels {
namespace {

using V = __m256;
struct Lanes {  // a set of lanes, each all ones or all zeros
  __m256i bits;
};
struct Index {  // an int32 per lane
  __m256i bits;
};
struct Pair {  // neighbouring elements 2i, 2i + 1: lane i of `even` and of `odd`
  V even, odd;
};
struct Wide {  // FP64 accumulators, one per lane
  __m256d low, high;
};
constexpr int kLanes = 8;
constexpr int kRegisters = 16;

inline void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline V zero() { return _mm256_setzero_ps(); }
inline V set1(float value) { return _mm256_set1_ps(value); }
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
inline Lanes first(std::int64_t n) { return {_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))}; }
inline Lanes without(Lanes lanes, Lanes removed) { return {_mm256_andnot_si256(removed.bits, lanes.bits)}; }
inline V load_first(const float* p, std::int64_t n) { return _mm256_maskload_ps(p, first(n).bits); }
inline void store_first(float* p, V v, std::int64_t n) { _mm256_maskstore_ps(p, first(n).bits, v); }
inline V select(Lanes lanes, V yes, V no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(lanes.bits)); }

inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
inline V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
inline V max(V a, V b) { return _mm256_max_ps(a, b); }              // b where either is NaN
inline V min(V a, V b) { return _mm256_min_ps(a, b); }              // b where either is NaN
inline V round(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V power_of_two(__m256i n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
// v * 2^n, n whole, -252 <= n <= 254; in two steps, of which only the second can round.
inline V times_power_of_two(V v, V n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return mul(mul(v, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}
inline float reduce_add(V v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
inline float reduce_max(V v) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

inline Wide wide_zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
inline __m256d wide_low(V v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
inline __m256d wide_high(V v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
inline Wide add(Wide sum, V v) { return {_mm256_add_pd(sum.low, wide_low(v)), _mm256_add_pd(sum.high, wide_high(v))}; }
inline Wide add_square(Wide sum, V v) {
  const __m256d low = wide_low(v), high = wide_high(v);
  return {_mm256_fmadd_pd(low, low, sum.low), _mm256_fmadd_pd(high, high, sum.high)};
}
inline double reduce_add(Wide sum) {
  const __m256d four = _mm256_add_pd(sum.low, sum.high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

inline bool any(Lanes lanes) { return _mm256_movemask_epi8(lanes.bits) != 0; }
inline Lanes both(Lanes a, Lanes b) { return {_mm256_and_si256(a.bits, b.bits)}; }
inline Lanes either(Lanes a, Lanes b) { return {_mm256_or_si256(a.bits, b.bits)}; }
inline Lanes none() { return {_mm256_setzero_si256()}; }
inline Lanes greater(V a, V b) { return {_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ))}; }
inline Lanes non_finite(V v) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  return {_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(v), exponent), exponent)};
}
inline Index index_set1(std::int32_t value) { return {_mm256_set1_epi32(value)}; }
inline Index index_select(Lanes lanes, Index yes, Index no) { return {_mm256_blendv_epi8(no.bits, yes.bits, lanes.bits)}; }
inline void index_store(std::int32_t* p, Index v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.bits); }

inline V shift_up(__m256i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)); }
inline V keep_high(__m256i bits) { return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u)))); }
inline Pair load_bf16(const std::uint16_t* p) {  // 2 * kLanes elements
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {shift_up(bits), keep_high(bits)};
}
inline Pair load_bf16_first(const std::uint16_t* p, std::int64_t pairs) {
  const __m256i bits = _mm256_maskload_epi32(reinterpret_cast<const int*>(p), first(pairs).bits);
  return {shift_up(bits), keep_high(bits)};
}
// The pair's 2 * kLanes elements in order, in two vectors named even and odd.
inline Pair interleave(Pair v) {
  const V low = _mm256_unpacklo_ps(v.even, v.odd), high = _mm256_unpackhi_ps(v.even, v.odd);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

// Nearest even to BF16, in the high half of each lane; NaN stays NaN, quieted.
inline V to_bf16_bits(V v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return keep_high(_mm256_blendv_epi8(rounded, quiet, nan));
}
inline void store_bf16(std::uint16_t* p, V v) {
  const __m256i words = _mm256_srli_epi32(_mm256_castps_si256(to_bf16_bits(v)), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline void store_bf16_first(std::uint16_t* p, V v, std::int64_t n) {
  std::uint16_t all[kLanes];
  store_bf16(all, v);
  std::memcpy(p, all, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
}

}  // namespace
}  // namespace inflight::kernels
