// The vector vocabulary of linear*.inl, load.inl and roofline.inl on AVX-512: one register holds the 16 lanes of a panel.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#define LANES_INLINE [[gnu::always_inline]] inline

namespace inflight::kernels {
namespace {

using Lanes = __m512;   // 16 floats
using Ints = __m512i;   // 16 int32
constexpr int kFloatTokens = 8;  // tile of the FP32 products: tokens x panels
constexpr int kFloatPanels = 2;
constexpr int kTileTokens = 4;   // tile of the int8 products
constexpr int kTilePanels = 2;
constexpr int kGroupedTokens = 8;  // tile of the grouped products: tokens x kTilePanels
constexpr int kAlonePanels = 4;  // FP32 products of one token: panels at once
constexpr int kAloneSums = 4;    // int8 products of one panel: tokens x sums

LANES_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
LANES_INLINE Lanes zeros() { return _mm512_setzero_ps(); }
LANES_INLINE Lanes splat(float x) { return _mm512_set1_ps(x); }
LANES_INLINE Lanes load_lanes(const float* p) { return _mm512_loadu_ps(p); }
LANES_INLINE void store_lanes(float* p, Lanes x) { _mm512_storeu_ps(p, x); }
LANES_INLINE Lanes load_fp16(const std::uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
LANES_INLINE Lanes load_bf16(const std::uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
LANES_INLINE Lanes multiply(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
LANES_INLINE Lanes divide(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
LANES_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c

// ---------------------------------------------------------------- weights as floats: one 64-byte block of a panel
LANES_INLINE void widen_block(const void* block, Lanes (&q)[1]) { q[0] = _mm512_loadu_ps(block); }
LANES_INLINE void widen_pair(Ints v, Lanes (&q)[2]) {
  q[0] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
  q[1] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
LANES_INLINE void widen_block(const void* block, Lanes (&q)[2]) { widen_pair(_mm512_loadu_si512(block), q); }
LANES_INLINE void widen_block(const void* block, Lanes (&q)[4]) {  // u8
  const Ints v = _mm512_xor_si512(_mm512_loadu_si512(block), _mm512_set1_epi8(static_cast<char>(0x80)));  // code - 128 as int8
  q[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24), 24));
  q[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 16), 24));
  q[2] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 8), 24));
  q[3] = _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24));
}
LANES_INLINE void widen_block(const void* block, Lanes (&q)[8]) {  // u4: byte j holds inputs j and 4 + j
  const Ints v = _mm512_xor_si512(_mm512_loadu_si512(block), _mm512_set1_epi8(static_cast<char>(0x88)));  // code - 8 as int4
  q[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 28), 28));
  q[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 20), 28));
  q[2] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 12), 28));
  q[3] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 4), 28));
  q[4] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24), 28));
  q[5] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 16), 28));
  q[6] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 8), 28));
  q[7] = _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 28));
}
// Two BF16 inputs, each in all lanes.
LANES_INLINE void splat_pair(const std::uint16_t* x, Lanes (&out)[2]) {
  int pair;
  std::memcpy(&pair, x, sizeof pair);
  widen_pair(_mm512_set1_epi32(pair), out);
}

// ---------------------------------------------------------------- int8: codes (unsigned) times activations (signed), exact
template <int kBits>
using Codes = __m512i;       // 16 rows x 4 inputs
template <int kBits>
using Activation = __m512i;  // 4 inputs, in every lane
LANES_INLINE Ints splat_int(std::int32_t x) { return _mm512_set1_epi32(x); }
LANES_INLINE Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
LANES_INLINE void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x); }
LANES_INLINE Lanes to_float(Ints x) { return _mm512_cvtepi32_ps(x); }
LANES_INLINE void load_codes(const std::uint8_t* block, __m512i (&codes)[1]) { codes[0] = _mm512_loadu_si512(block); }
LANES_INLINE void load_codes(const std::uint8_t* block, __m512i (&codes)[2]) {
  const Ints v = _mm512_loadu_si512(block), nibble = _mm512_set1_epi8(15);
  codes[0] = _mm512_and_si512(v, nibble);
  codes[1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
}
template <int kBits>
LANES_INLINE __m512i splat_activation(const std::int8_t* x) {
  int quad;
  std::memcpy(&quad, x, sizeof quad);
  return _mm512_set1_epi32(quad);
}
template <int kBits, int kZeroPoint>
constexpr int kShortQuads = 1;
using ShortSums = Ints;
template <int kBits>
LANES_INLINE Ints dot(Ints sum, __m512i codes, __m512i x) {
  return _mm512_dpbusd_epi32(sum, codes, x);
}

// ---------------------------------------------------------------- quantizing
// Elements [0, n) of p, n <= 16; the others 0. No byte past them is read.
LANES_INLINE Lanes load_some(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p); }
LANES_INLINE Lanes magnitude(Lanes x) { return _mm512_abs_ps(x); }
LANES_INLINE Lanes maximum(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
LANES_INLINE Lanes minimum(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }
LANES_INLINE float largest(Lanes x) { return _mm512_reduce_max_ps(x); }
LANES_INLINE std::int32_t total(Ints x) { return _mm512_reduce_add_epi32(x); }
LANES_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
LANES_INLINE Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
template <int kBits>
LANES_INLINE Ints shift_right(Ints x) { return _mm512_srai_epi32(x, kBits); }
template <int kBits>
LANES_INLINE Ints shift_left(Ints x) { return _mm512_slli_epi32(x, kBits); }
// trunc(clamp(r + copysign(0.5, r), -bound, bound)) with r = x / scale.
LANES_INLINE Ints quantize_lanes(Lanes x, Lanes scale, Lanes bound) {
  const Lanes r = _mm512_div_ps(x, scale);
  const Lanes sign = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0x80000000u)));
  const Lanes rounded = _mm512_add_ps(r, _mm512_or_ps(_mm512_and_ps(r, sign), _mm512_set1_ps(0.5f)));
  return _mm512_cvttps_epi32(_mm512_max_ps(_mm512_min_ps(rounded, bound), _mm512_xor_ps(bound, sign)));
}
LANES_INLINE Ints nearest(Lanes x) { return _mm512_cvtps_epi32(x); }  // ties to even
LANES_INLINE Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
LANES_INLINE bool any_bit(Ints x) { return _mm512_test_epi32_mask(x, x) != 0; }
// 16 codes of each of kGroupedTokens tokens as bytes [4][kGroupedTokens][4]: four inputs of a token lie together.
LANES_INLINE void store_quads(void* p, const Ints (&q)[8]) {
  const Ints a = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));  // 128-bit lane i: quad i of four tokens
  const Ints b = _mm512_packs_epi16(_mm512_packs_epi32(q[4], q[5]), _mm512_packs_epi32(q[6], q[7]));
  _mm512_storeu_si512(p, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b));
  _mm512_storeu_si512(static_cast<char*>(p) + 64, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b));
}
LANES_INLINE void store_bytes(void* p, Ints x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }
LANES_INLINE void store_quads(void* p, const Ints (&q)[1]) { store_bytes(p, q[0]); }  // of one token
// Columns of kGroupedTokens rows of 32 bits, one after the other.
LANES_INLINE void store_columns(void* p, const Ints (&x)[8]) {
  Ints half[2][4];  // [rows 0 to 3, 4 to 7][c]: columns 4 * i + c in 128-bit lane i
  for (int h = 0; h < 2; ++h) {
    const Ints* y = x + h * 4;
    const Ints a = _mm512_unpacklo_epi32(y[0], y[1]), b = _mm512_unpackhi_epi32(y[0], y[1]), c = _mm512_unpacklo_epi32(y[2], y[3]), d = _mm512_unpackhi_epi32(y[2], y[3]);
    half[h][0] = _mm512_unpacklo_epi64(a, c);
    half[h][1] = _mm512_unpackhi_epi64(a, c);
    half[h][2] = _mm512_unpacklo_epi64(b, d);
    half[h][3] = _mm512_unpackhi_epi64(b, d);
  }
  auto* to = static_cast<char*>(p);
  for (int i = 0; i < 2; ++i) {  // columns 4 * lane + 2 * i and the next, of all lanes
    const Ints even0 = _mm512_shuffle_i32x4(half[0][2 * i], half[1][2 * i], 0x88), even1 = _mm512_shuffle_i32x4(half[0][2 * i + 1], half[1][2 * i + 1], 0x88);
    const Ints odd0 = _mm512_shuffle_i32x4(half[0][2 * i], half[1][2 * i], 0xdd), odd1 = _mm512_shuffle_i32x4(half[0][2 * i + 1], half[1][2 * i + 1], 0xdd);
    _mm512_storeu_si512(to + i * 64, _mm512_shuffle_i32x4(even0, even1, 0x88));
    _mm512_storeu_si512(to + i * 64 + 128, _mm512_shuffle_i32x4(odd0, odd1, 0x88));
    _mm512_storeu_si512(to + i * 64 + 256, _mm512_shuffle_i32x4(even0, even1, 0xdd));
    _mm512_storeu_si512(to + i * 64 + 384, _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
  }
}

// ---------------------------------------------------------------- packing
LANES_INLINE Ints maximum_bits(Ints most, Lanes x) { return _mm512_max_epu32(most, _mm512_castps_si512(_mm512_abs_ps(x))); }
LANES_INLINE std::uint32_t largest_of(Ints x) { return _mm512_reduce_max_epu32(x); }
// Largest of n 16-bit values at p without their sign bits.
LANES_INLINE std::uint16_t largest_half(const char* p, std::int64_t n) {
  const Ints mask = _mm512_set1_epi16(0x7fff);
  Ints a = _mm512_setzero_si512(), b = a;
  std::int64_t k = 0;
  for (; k + 64 <= n; k += 64) {
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_loadu_si512(p + k * 2), mask));
    b = _mm512_max_epu16(b, _mm512_and_si512(_mm512_loadu_si512(p + k * 2 + 64), mask));
  }
  for (; k < n; k += 32) {
    const __mmask32 some = n - k >= 32 ? 0xffffffffu : (1u << (n - k)) - 1;
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_maskz_loadu_epi16(some, p + k * 2), mask));
  }
  a = _mm512_max_epu16(a, b);
  const Ints even = _mm512_and_si512(a, _mm512_set1_epi32(0xffff)), odd = _mm512_srli_epi32(a, 16);
  return static_cast<std::uint16_t>(_mm512_reduce_max_epu32(_mm512_max_epu32(even, odd)));
}
// 64 codes of one row, q + zero point, as bytes in order.
LANES_INLINE Ints narrow(const Ints (&q)[4], char zero) {
  const Ints words0 = _mm512_packs_epi32(q[0], q[1]), words1 = _mm512_packs_epi32(q[2], q[3]);
  const Ints bytes = _mm512_add_epi8(_mm512_packs_epi16(words0, words1), _mm512_set1_epi8(zero));
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}
LANES_INLINE void store_u8_codes(std::uint32_t* chunk, const Ints (&q)[4]) { _mm512_storeu_si512(chunk, narrow(q, static_cast<char>(0x80))); }
// Two runs of 4 codes make the low and the high nibbles of a dword.
LANES_INLINE void store_u4_codes(std::uint32_t* chunk, const Ints (&q)[4]) {
  const Ints bytes = narrow(q, 8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(chunk), _mm512_cvtepi64_epi32(_mm512_or_si512(bytes, _mm512_srli_epi64(bytes, 28))));
}
// Column j of chunk[0 .. rows) goes to lanes [lane, lane + rows) of dst[j], j < blocks.
LANES_INLINE void scatter(const std::uint32_t (&chunk)[16][16], int lane, int rows, std::int64_t blocks, std::uint32_t* dst) {
  if (rows != 16) {
    for (std::int64_t j = 0; j < blocks; ++j)
      for (int row = 0; row < rows; ++row) dst[j * 16 + lane + row] = chunk[row][j];
    return;
  }
  Ints a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_load_si512(chunk[i]);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // a[i + c]: column c of each 128-bit lane, rows i .. i + 3
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // 4x4 transpose of 128-bit lanes
    const Ints x0 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88), x1 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    const Ints y0 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88), y1 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    b[c] = _mm512_shuffle_i32x4(x0, y0, 0x88);
    b[8 + c] = _mm512_shuffle_i32x4(x0, y0, 0xdd);
    b[4 + c] = _mm512_shuffle_i32x4(x1, y1, 0x88);
    b[12 + c] = _mm512_shuffle_i32x4(x1, y1, 0xdd);
  }
  for (std::int64_t j = 0; j < 16; ++j) {
    if (j >= blocks) break;
    _mm512_storeu_si512(dst + j * 16, b[j]);
  }
}

}  // namespace
}  // namespace inflight::kernels
