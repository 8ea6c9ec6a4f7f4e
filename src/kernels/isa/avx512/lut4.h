// What lut4.inl needs of AVX-512 beyond dot.h.
#pragma once
#include "kernels/isa/avx512/dot.h"
#include "kernels/lut4.h"

namespace inflight::kernels {
namespace {

LANES_INLINE Ints table16(const std::uint8_t (&bytes)[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))); }
LANES_INLINE Ints look_up(Ints table, Ints index) { return _mm512_shuffle_epi8(table, index); }
LANES_INLINE Ints nibbles_low(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
LANES_INLINE Ints nibbles_high(Ints v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
LANES_INLINE Ints bits_of(Lanes x) { return _mm512_castps_si512(x); }
LANES_INLINE Lanes floats_of(Ints x) { return _mm512_castsi512_ps(x); }
LANES_INLINE Ints flip_bits(Ints x, Ints mask) { return _mm512_xor_si512(x, mask); }
LANES_INLINE Ints shift_up_19(Ints x) { return _mm512_slli_epi32(x, 19); }
LANES_INLINE Ints smaller(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
LANES_INLINE Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
LANES_INLINE Ints both_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
LANES_INLINE Ints either_bits(Ints a, Ints b) { return _mm512_or_si512(a, b); }

// 16 bytes as signed dwords.
LANES_INLINE Ints widen_signed(const std::uint8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

}  // namespace
}  // namespace inflight::kernels
