// AVX-512 with BF16 dot products over a BF16 cache; over an FP32 cache as in isa/avx512.
#include "kernels/latent.h"

#include "kernels/isa/avx512/vec.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {
#include "kernels/exp.inl"

#include "kernels/latent.inl"

inline V dot(V a, V b, V sum) { return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b)); }

// 2^x with a relative error under 8e-6, far below what rounding to BF16 adds; 0 under -150.
// x = n + f; 2^f = 1 + f p(f), p interpolated at the Chebyshev nodes of |f| <= 1/2.
inline V exp2_coarse(V x) {
  const V bounded = max(set1(-160), x);
  const V n = round(bounded);
  const V f = sub(bounded, n);
  V p = set1(0x1.3c6e5cp-7f);
  p = fma(p, f, set1(0x1.c96d5ep-5f));
  p = fma(p, f, set1(0x1.ebfb3ep-3f));
  p = fma(p, f, set1(0x1.62e2d2p-1f));
  return times_power_of_two(fma(p, f, set1(1)), n);
}

// A unit is two BF16: numbers d, d + 1 of a row or of q; weights or values of rows 2k, 2k + 1.
struct DotMath {
  using Stored = std::uint16_t;
  static constexpr int kUnit = 2;
  static constexpr float kNatural = 0x1.62e43p-1f;  // scores are exponents of 2
  static V multiply_add(V a, V b, V c) { return dot(a, b, c); }
  static constexpr float kScale = 0x1.715476p+0f;
  static void pack(const float* row, std::int64_t n, float factor, float* line, float* out) {
    auto* rounded = reinterpret_cast<std::uint16_t*>(line);
    for (std::int64_t d = 0; d < n; d += kLanes) {
      const std::int64_t count = n - d < kLanes ? n - d : kLanes;
      store_bf16_first(rounded + d, mul(load_first(row + d, count), set1(factor)), count);
    }
    for (std::int64_t k = 0; k < n / 2; ++k) __builtin_memcpy(out + k * kPanel, rounded + 2 * k, 4);
  }
  template <class Args>
  static void load_rows(const Args& args, std::int64_t position, float*, LatentTile& tile) {
    for (int s = tile.begin / kSubtile; s * kSubtile < tile.end; ++s) tile.rows[s] = reinterpret_cast<const float*>(latent_row<Stored>(args, position + s * kSubtile));
    tile.row_stride = row_dim(args) / 2;
  }
  // Lane by lane: low half a, high half b.
  static __m512i pairs_of(V a, V b) {
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i pairs = _mm512_or_si512(places, _mm512_slli_epi32(_mm512_add_epi32(places, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  static const float* key_units(const LatentTile& tile, const ExpandArgs& args, float* keys, float* narrow) {
    auto* out = reinterpret_cast<Stored*>(narrow);
    const std::int64_t key_dim = args.nope_dim + args.rope_dim;
    for (int j = 0; j < tile.end; ++j) {
      for (std::int64_t d = 0; d < args.nope_dim; d += kLanes) store_bf16(out + j * key_dim + d, load(keys + j * key_dim + d));
      const auto* row = reinterpret_cast<const Stored*>(tile.rows[j / kSubtile] + j % kSubtile * tile.row_stride);
      __builtin_memcpy(out + j * key_dim + args.nope_dim, row + args.rank, static_cast<std::size_t>(args.rope_dim) * sizeof(Stored));
    }
    return narrow;
  }
  static void value_units(LatentTile& tile, const float* values, std::int64_t n, float* units) {
    tile.values = units;
    tile.value_k = kPanel;
    tile.value_p = kTile / 2 * kPanel;
    for (std::int64_t d = 0; d < n; d += kPanel, units += tile.value_p)
      for (int k = 0; 2 * k < tile.end; ++k)
        _mm512_storeu_si512(units + k * kPanel, pairs_of(load(values + 2 * k * n + d), 2 * k + 1 < tile.end ? load(values + (2 * k + 1) * n + d) : zero()));
  }
  static void load_tile(const LatentArgs& args, std::int64_t position, const LatentScratch& scratch, LatentTile& tile) {
    load_rows(args, position, nullptr, tile);
    tile.values = scratch.tile();
    tile.value_k = kPanel;
    tile.value_p = kTile / 2 * kPanel;
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i low = _mm512_or_si512(places, _mm512_slli_epi32(_mm512_add_epi32(places, _mm512_set1_epi32(32)), 16));  // words 0, 32, 1, 33, ...
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(0x00100010));
    // Panel by panel: what is written lies together, and rows are read a line each.
    alignas(64) static constexpr Stored kNothing[2 * kPanel] = {};
    const int first_pair = tile.begin / 2, pairs_end = (tile.end + 1) / 2;
    const Stored* rows[kTile];
    for (int j = 2 * first_pair; j < 2 * pairs_end; ++j) rows[j] = j >= tile.begin && j < tile.end ? latent_row<Stored>(args, position + j) : nullptr;
    const auto pair_up = [&](std::int64_t d, auto both, int k) {
      constexpr bool kBoth = decltype(both)::kValue != 0;
      const auto line = [&](const Stored* row) { return kBoth ? _mm512_loadu_si512(row) : _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row))); };
      const __m512i a = line(rows[2 * k] ? rows[2 * k] + d : kNothing), b = line(rows[2 * k + 1] ? rows[2 * k + 1] + d : kNothing);
      float* out = scratch.tile() + d / kPanel * tile.value_p + k * kPanel;
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, low, b));
      if (kBoth) _mm512_storeu_si512(out + tile.value_p, _mm512_permutex2var_epi16(a, high, b));
    };
    std::int64_t d = 0;
    for (; d + 2 * kPanel <= args.value_dim; d += 2 * kPanel)
      for (int k = first_pair; k < pairs_end; ++k) pair_up(d, Constant<1>{}, k);
    for (; d < args.value_dim; d += kPanel)
      for (int k = first_pair; k < pairs_end; ++k) pair_up(d, Constant<0>{}, k);
  }
  // Scores of the rows [begin, end) become pairs of rounded weights, row 2k and 2k + 1 in the place of row k, 0 where unseen; returns their sum.
  static V weigh(float* scores, int begin, int end, V max) {
    V sum = zero();
    const V ones = _mm512_castsi512_ps(_mm512_set1_epi16(0x3f80));
    const auto weight = [&](int j) { return j >= begin && j < end ? exp2_coarse(sub(load(scores + j * kPanel), max)) : zero(); };
    for (int k = begin / 2; 2 * k < end; ++k) {
      const V pair = _mm512_castsi512_ps(pairs_of(weight(2 * k), weight(2 * k + 1)));
      store(scores + k * kPanel, pair);
      sum = dot(pair, ones, sum);
    }
    return sum;
  }
  static V power(V x) { return exp2_coarse(x); }
};
}  // namespace

extern const LatentKernels latent_avx512_bf16;
const LatentKernels latent_avx512_bf16 = {
    .scratch = latent_scratch, .attend_f32 = attend_latent<F32Math<float>>, .attend_bf16 = attend_latent<F32Math<std::uint16_t>>, .attend_bf16_dot = attend_latent<DotMath>,
    .expand_scratch = expand_scratch, .expand_f32 = expand<F32Math<float>>, .expand_bf16 = expand<F32Math<std::uint16_t>>, .expand_bf16_dot = expand<DotMath>};

}  // namespace inflight::kernels
