// The vector vocabulary of linear*.inl, load.inl and roofline.inl on AVX2, with and without VNNI: two registers hold the 16 lanes of a panel.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#define LANES_INLINE [[gnu::always_inline]] inline

namespace inflight::kernels {
namespace {

struct Lanes {  // 16 floats
  __m256 a, b;
};
struct Ints {  // 16 int32
  __m256i a, b;
};
constexpr int kFloatTokens = 4;  // tile of the FP32 products: tokens x panels
constexpr int kFloatPanels = 1;
constexpr int kTileTokens = 2;   // tile of the int8 products
constexpr int kTilePanels = 1;
constexpr int kGroupedTokens = 4;  // tile of the grouped products: tokens x kTilePanels
constexpr int kAlonePanels = 2;  // FP32 products of one token: panels at once
constexpr int kAloneSums = 2;    // int8 products of one panel: tokens x sums

LANES_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
LANES_INLINE Lanes zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANES_INLINE Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES_INLINE Lanes load_lanes(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES_INLINE void store_lanes(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
LANES_INLINE __m128i load_half(const std::uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
LANES_INLINE Lanes load_fp16(const std::uint16_t* p) { return {_mm256_cvtph_ps(load_half(p)), _mm256_cvtph_ps(load_half(p + 8))}; }
LANES_INLINE __m256 widen_bf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
LANES_INLINE Lanes load_bf16(const std::uint16_t* p) { return {widen_bf16(load_half(p)), widen_bf16(load_half(p + 8))}; }
LANES_INLINE Lanes multiply(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LANES_INLINE Lanes fused(Lanes x, Lanes y, Lanes z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }  // x * y + z

// ---------------------------------------------------------------- weights as floats: one 64-byte block of a panel
LANES_INLINE Ints load_ints(const void* p) {
  const auto* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
// The kBits-wide signed integer whose top bit is `kTop` bits below the top, as floats.
template <int kTop, int kBits>
LANES_INLINE Lanes field(Ints v) {
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v.a, kTop), 32 - kBits)), _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v.b, kTop), 32 - kBits))};
}
LANES_INLINE Ints flip(Ints v, char mask) { return {_mm256_xor_si256(v.a, _mm256_set1_epi8(mask)), _mm256_xor_si256(v.b, _mm256_set1_epi8(mask))}; }
LANES_INLINE void widen_block(const void* block, Lanes (&q)[1]) { q[0] = load_lanes(static_cast<const float*>(block)); }
LANES_INLINE void widen_block(const void* block, Lanes (&q)[2]) {
  const Ints v = load_ints(block);
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  q[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(v.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(v.b, 16))};
  q[1] = {_mm256_castsi256_ps(_mm256_and_si256(v.a, top)), _mm256_castsi256_ps(_mm256_and_si256(v.b, top))};
}
LANES_INLINE void widen_block(const void* block, Lanes (&q)[4]) {  // u8
  const Ints v = flip(load_ints(block), static_cast<char>(0x80));  // code - 128 as int8
  q[0] = field<24, 8>(v);
  q[1] = field<16, 8>(v);
  q[2] = field<8, 8>(v);
  q[3] = field<0, 8>(v);
}
LANES_INLINE void widen_block(const void* block, Lanes (&q)[8]) {  // u4: byte j holds inputs j and 4 + j
  const Ints v = flip(load_ints(block), static_cast<char>(0x88));  // code - 8 as int4
  q[0] = field<28, 4>(v);
  q[1] = field<20, 4>(v);
  q[2] = field<12, 4>(v);
  q[3] = field<4, 4>(v);
  q[4] = field<24, 4>(v);
  q[5] = field<16, 4>(v);
  q[6] = field<8, 4>(v);
  q[7] = field<0, 4>(v);
}
// Two BF16 inputs, each in all lanes.
LANES_INLINE void splat_pair(const std::uint16_t* x, Lanes (&out)[2]) {
  int pair;
  std::memcpy(&pair, x, sizeof pair);
  const __m256i v = _mm256_set1_epi32(pair);
  const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)), odd = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  out[0] = {even, even};
  out[1] = {odd, odd};
}

// ---------------------------------------------------------------- int8: codes (unsigned) times activations (signed), exact
LANES_INLINE Ints splat_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANES_INLINE __m256i splat_quad(const std::int8_t* x) {
  int quad;
  std::memcpy(&quad, x, sizeof quad);
  return _mm256_set1_epi32(quad);
}
LANES_INLINE void load_codes(const std::uint8_t* block, Ints (&codes)[2]) {
  const Ints v = load_ints(block);
  const __m256i nibble = _mm256_set1_epi8(15);
  codes[0] = {_mm256_and_si256(v.a, nibble), _mm256_and_si256(v.b, nibble)};
  codes[1] = {_mm256_and_si256(_mm256_srli_epi16(v.a, 4), nibble), _mm256_and_si256(_mm256_srli_epi16(v.b, 4), nibble)};
}
LANES_INLINE void store_ints(void* p, Ints x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.b);
}
LANES_INLINE Lanes to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// Sums that are short of 32 bits: 16-bit halves of the 16 rows.
using ShortSums = Ints;
LANES_INLINE Ints short_dot(Ints sums, Ints codes, __m256i x) {
  return {_mm256_add_epi16(sums.a, _mm256_maddubs_epi16(codes.a, x)), _mm256_add_epi16(sums.b, _mm256_maddubs_epi16(codes.b, x))};
}
LANES_INLINE Ints add_short(Ints sum, Ints shorts, short times) {
  const __m256i by = _mm256_set1_epi16(times);
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(shorts.a, by)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(shorts.b, by))};
}
#ifdef __AVXVNNI__  // isa/avx2_vnni
// Quads whose products with one activation each fit a short sum.
template <int kBits, int kZeroPoint>
constexpr int kShortQuads = 1;
template <int kBits>
using Codes = Ints;          // 16 rows x 4 inputs
template <int kBits>
using Activation = __m256i;  // 4 inputs, in every lane
LANES_INLINE void load_codes(const std::uint8_t* block, Ints (&codes)[1]) { codes[0] = load_ints(block); }
template <int kBits>
LANES_INLINE __m256i splat_activation(const std::int8_t* x) {
  return splat_quad(x);
}
template <int kBits>
LANES_INLINE Ints dot(Ints sum, Ints codes, __m256i x) {
  return {_mm256_dpbusd_avx_epi32(sum.a, codes.a, x), _mm256_dpbusd_avx_epi32(sum.b, codes.b, x)};
}
#else
template <int kBits, int kZeroPoint>
constexpr int kShortQuads = kZeroPoint == 64 ? 1 : 8;  // 8 * 2 * 15 * 128 fits 16 bits
// Without VNNI: u8 codes as 16-bit integers of even and of odd inputs (8-bit multiply-adds would saturate), u4 codes as bytes (2 * 15 * 127 fits 16 bits).
struct WideCodes {
  Ints even, odd;
};
struct WideActivation {
  __m256i even, odd;
};
template <int kBits>
struct DotTypes {
  using Codes = WideCodes;
  using Activation = WideActivation;
};
template <>
struct DotTypes<4> {
  using Codes = Ints;
  using Activation = __m256i;
};
template <int kBits>
using Codes = typename DotTypes<kBits>::Codes;            // 16 rows x 4 inputs
template <int kBits>
using Activation = typename DotTypes<kBits>::Activation;  // 4 inputs, in every lane

LANES_INLINE void load_codes(const std::uint8_t* block, WideCodes (&codes)[1]) {
  const Ints v = load_ints(block);
  const __m256i low = _mm256_set1_epi16(0xff);
  codes[0].even = {_mm256_and_si256(v.a, low), _mm256_and_si256(v.b, low)};
  codes[0].odd = {_mm256_srli_epi16(v.a, 8), _mm256_srli_epi16(v.b, 8)};
}
template <int kBits>
LANES_INLINE Activation<kBits> splat_activation(const std::int8_t* x) {
  const __m256i v = splat_quad(x);
  if constexpr (kBits == 4) return v;
  else return WideActivation{_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
}
template <int kBits>
LANES_INLINE Ints dot(Ints sum, Codes<kBits> codes, Activation<kBits> x) {
  if constexpr (kBits == 4) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(_mm256_maddubs_epi16(codes.a, x), ones)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(_mm256_maddubs_epi16(codes.b, x), ones))};
  } else {
    return {_mm256_add_epi32(sum.a, _mm256_add_epi32(_mm256_madd_epi16(codes.even.a, x.even), _mm256_madd_epi16(codes.odd.a, x.odd))),
            _mm256_add_epi32(sum.b, _mm256_add_epi32(_mm256_madd_epi16(codes.even.b, x.even), _mm256_madd_epi16(codes.odd.b, x.odd)))};
  }
}
#endif

// ---------------------------------------------------------------- quantizing
// Elements [0, n) of p, n <= 16; the others 0. No byte past them is read.
LANES_INLINE Lanes load_some(const float* p, std::int64_t n) {
  float whole[16] = {};
  std::memcpy(whole, p, static_cast<std::size_t>(n) * 4);
  return load_lanes(whole);
}
LANES_INLINE __m256 sign_bits() { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0x80000000u))); }
LANES_INLINE Lanes magnitude(Lanes x) { return {_mm256_andnot_ps(sign_bits(), x.a), _mm256_andnot_ps(sign_bits(), x.b)}; }
LANES_INLINE Lanes maximum(Lanes x, Lanes y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LANES_INLINE Lanes minimum(Lanes x, Lanes y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LANES_INLINE float largest(Lanes x) {
  const __m256 m = _mm256_max_ps(x.a, x.b);
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
LANES_INLINE std::int32_t total(Ints x) {
  const __m256i s = _mm256_add_epi32(x.a, x.b);
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
LANES_INLINE Ints add(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LANES_INLINE Ints subtract(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
template <int kBits>
LANES_INLINE Ints shift_right(Ints x) { return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)}; }
template <int kBits>
LANES_INLINE Ints shift_left(Ints x) { return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)}; }
LANES_INLINE __m256i quantize_half(__m256 x, __m256 scale, __m256 bound) {
  const __m256 r = _mm256_div_ps(x, scale);
  const __m256 rounded = _mm256_add_ps(r, _mm256_or_ps(_mm256_and_ps(r, sign_bits()), _mm256_set1_ps(0.5f)));
  return _mm256_cvttps_epi32(_mm256_max_ps(_mm256_min_ps(rounded, bound), _mm256_xor_ps(bound, sign_bits())));
}
// trunc(clamp(r + copysign(0.5, r), -bound, bound)) with r = x / scale.
LANES_INLINE Ints quantize_lanes(Lanes x, Lanes scale, Lanes bound) { return {quantize_half(x.a, scale.a, bound.a), quantize_half(x.b, scale.b, bound.b)}; }
LANES_INLINE Ints nearest(Lanes x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }  // ties to even
LANES_INLINE Ints either(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
LANES_INLINE bool any_bit(Ints x) {
  const __m256i v = _mm256_or_si256(x.a, x.b);
  return _mm256_testz_si256(v, v) == 0;
}
// 16 codes of each of kGroupedTokens tokens as bytes [4][kGroupedTokens][4]: four inputs of a token lie together.
LANES_INLINE void store_quads(void* p, const Ints (&q)[4]) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_packs_epi16(_mm256_packs_epi32(q[0].a, q[1].a), _mm256_packs_epi32(q[2].a, q[3].a)));
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, _mm256_packs_epi16(_mm256_packs_epi32(q[0].b, q[1].b), _mm256_packs_epi32(q[2].b, q[3].b)));
}
LANES_INLINE void store_bytes(void* p, Ints x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
LANES_INLINE void store_quads(void* p, const Ints (&q)[1]) { store_bytes(p, q[0]); }  // of one token
LANES_INLINE void store_columns(void* p, __m256i x0, __m256i x1, __m256i x2, __m256i x3) {
  const __m256i a = _mm256_unpacklo_epi32(x0, x1), b = _mm256_unpackhi_epi32(x0, x1), c = _mm256_unpacklo_epi32(x2, x3), d = _mm256_unpackhi_epi32(x2, x3);
  const __m256i y0 = _mm256_unpacklo_epi64(a, c), y1 = _mm256_unpackhi_epi64(a, c), y2 = _mm256_unpacklo_epi64(b, d), y3 = _mm256_unpackhi_epi64(b, d);
  auto* to = static_cast<__m256i*>(p);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(y0, y1, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(y2, y3, 0x20));
  _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(y0, y1, 0x31));
  _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(y2, y3, 0x31));
}
// Columns of kGroupedTokens rows of 32 bits, one after the other.
LANES_INLINE void store_columns(void* p, const Ints (&x)[4]) {
  store_columns(p, x[0].a, x[1].a, x[2].a, x[3].a);
  store_columns(static_cast<char*>(p) + 128, x[0].b, x[1].b, x[2].b, x[3].b);
}

// ---------------------------------------------------------------- packing
LANES_INLINE Ints maximum_bits(Ints most, Lanes x) {
  const Lanes m = magnitude(x);
  return {_mm256_max_epu32(most.a, _mm256_castps_si256(m.a)), _mm256_max_epu32(most.b, _mm256_castps_si256(m.b))};
}
LANES_INLINE std::uint32_t largest_of(Ints x) {
  const __m256i m = _mm256_max_epu32(x.a, x.b);
  __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1))));
}
// Largest of n 16-bit values at p without their sign bits.
LANES_INLINE std::uint16_t largest_half(const char* p, std::int64_t n) {
  const __m256i mask = _mm256_set1_epi16(0x7fff);
  __m256i most = _mm256_setzero_si256();
  std::int64_t k = 0;
  for (; k + 16 <= n; k += 16) most = _mm256_max_epu16(most, _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + k * 2)), mask));
  if (k < n) {
    char whole[32] = {};
    std::memcpy(whole, p + k * 2, static_cast<std::size_t>(n - k) * 2);
    most = _mm256_max_epu16(most, _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(whole)), mask));
  }
  return static_cast<std::uint16_t>(largest_of({_mm256_and_si256(most, _mm256_set1_epi32(0xffff)), _mm256_srli_epi32(most, 16)}));
}
// 32 codes of one row, q + zero point, as bytes in order.
LANES_INLINE __m256i narrow(Ints x, Ints y, char zero) {
  const __m256i bytes = _mm256_add_epi8(_mm256_packs_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b)), _mm256_set1_epi8(zero));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
LANES_INLINE void store_u8_codes(std::uint32_t* chunk, const Ints (&q)[4]) {
  for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(chunk) + i, narrow(q[i * 2], q[i * 2 + 1], static_cast<char>(0x80)));
}
// Two runs of 4 codes make the low and the high nibbles of a dword.
LANES_INLINE void store_u4_codes(std::uint32_t* chunk, const Ints (&q)[4]) {
  __m256 joined[2];  // the even dwords hold
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = narrow(q[i * 2], q[i * 2 + 1], 8);
    joined[i] = _mm256_castsi256_ps(_mm256_or_si256(bytes, _mm256_srli_epi64(bytes, 28)));
  }
  const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(joined[0], joined[1], 0x88));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(chunk), _mm256_permute4x64_epi64(even, 0xd8));
}
// Column j of rows [row, row + 8) of the chunk, for j in [column, column + 8), goes to dst[j * 16 + row ..].
LANES_INLINE void scatter_eight(const std::uint32_t (&chunk)[16][16], int row, std::int64_t column, std::int64_t blocks, std::uint32_t* dst) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(&chunk[row + i][column]));
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {  // a[i + c]: columns c and 4 + c of rows i .. i + 3
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    b[c] = _mm256_permute2f128_ps(a[c], a[4 + c], 0x20);
    b[4 + c] = _mm256_permute2f128_ps(a[c], a[4 + c], 0x31);
  }
  for (std::int64_t j = 0; j < 8; ++j) {
    if (column + j >= blocks) break;
    _mm256_storeu_ps(reinterpret_cast<float*>(dst + (column + j) * 16 + row), b[j]);
  }
}
// Column j of chunk[0 .. rows) goes to lanes [lane, lane + rows) of dst[j], j < blocks.
LANES_INLINE void scatter(const std::uint32_t (&chunk)[16][16], int lane, int rows, std::int64_t blocks, std::uint32_t* dst) {
  if (rows != 16) {
    for (std::int64_t j = 0; j < blocks; ++j)
      for (int row = 0; row < rows; ++row) dst[j * 16 + lane + row] = chunk[row][j];
    return;
  }
  for (int row = 0; row < 16; row += 8)
    for (std::int64_t column = 0; column < blocks; column += 8) scatter_eight(chunk, row, column, blocks, dst);
}

}  // namespace
}  // namespace inflight::kernels
