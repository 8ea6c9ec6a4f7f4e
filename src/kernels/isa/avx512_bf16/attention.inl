// Attention of prompt tokens with BF16 dot products: q . k and weights . values both multiply BF16 and sum FP32.
// Included by vector.cc after attention.inl, whose rows, tiles and passes it shares; here a pass has up to eight rows.
//
// Keys already lie as the instruction wants them, (k, k+1) side by side for 16 tokens. Values lie as rows, so a tile of them is paired once
// - tokens 2i and 2i + 1 side by side, zeros where no row sees - and then read by every pass. A pair's element order is that of unpacklo and
// unpackhi; the last step puts it right. Scores are in powers of two: scale * log2(e) is part of q.
//
// A row's chain: scores sum d ascending; the tile's weights are rounded to BF16 and summed by pairs, keys ascending, in FP32;
// then weighted = weighted * factor + sum. Other rows of a pass change no bit.
constexpr int kTilePairs = kTile / 2;
constexpr int kDotWidth = 2 * kLanes;  // d that one pair of accumulators holds

inline __m512i pairs_at(const void* p) { return _mm512_loadu_si512(p); }
inline __m512i same_pairs(const void* p) {
  std::int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}
inline V dot(__m512i a, __m512i b, V sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
inline __m512i to_bf16_in_order(V low, V high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

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

// The scratch of a call, in floats: the paired tile, then for each row q in pairs, the weighted sum, the sum of weights, the maximum.
struct DotScratch {
  std::int64_t width;  // D rounded up to whole accumulators
  float* base;
  std::int64_t row_floats() const { return width / 2 + width + 2 * kLanes; }
  float* values() const { return base; }  // [kTilePairs][width] pairs
  float* q(std::int64_t row) const { return base + kTilePairs * width + row * row_floats(); }
  float* weighted(std::int64_t row) const { return q(row) + width / 2; }
  float* sum(std::int64_t row) const { return weighted(row) + width; }
  float* max(std::int64_t row) const { return sum(row) + kLanes; }
};

inline DotScratch dot_scratch(const AttendArgs& args) { return {(args.head_dim + kDotWidth - 1) / kDotWidth * kDotWidth, args.scratch}; }

std::int64_t attend_dot_scratch(std::int64_t rows, std::int64_t head_dim) {
  const DotScratch scratch{(head_dim + kDotWidth - 1) / kDotWidth * kDotWidth, nullptr};
  const std::int64_t dot_floats = kTilePairs * scratch.width + rows * scratch.row_floats(), floats = attend_scratch(rows, head_dim);
  return dot_floats > floats ? dot_floats : floats;
}

inline void pair_values(const AttendArgs& args, const Tile<std::uint16_t>& tile, const DotScratch& scratch) {
  const auto row_at = [&](int key) { return key >= tile.begin && key < tile.end ? tile.values[key / kSubtile] + key % kSubtile * args.head_dim : nullptr; };
  for (int key = tile.begin / 2 * 2; key < tile.end; key += 2) {
    const std::uint16_t *first_row = row_at(key), *second_row = row_at(key + 1);
    float* out = scratch.values() + key / 2 * scratch.width;
    for (std::int64_t d = 0; d < args.head_dim; d += kDotWidth) {
      const std::int64_t left = args.head_dim - d;
      const __mmask32 seen = left < kDotWidth ? (__mmask32{1} << left) - 1 : ~__mmask32{0};
      const __m512i a = first_row ? _mm512_maskz_loadu_epi16(seen, first_row + d) : _mm512_setzero_si512();
      const __m512i b = second_row ? _mm512_maskz_loadu_epi16(seen, second_row + d) : _mm512_setzero_si512();
      _mm512_storeu_si512(out + d, _mm512_unpacklo_epi16(a, b));
      _mm512_storeu_si512(out + d + kLanes, _mm512_unpackhi_epi16(a, b));
    }
  }
}

template <int kRows>
struct DotPass {
  static constexpr int kVectors = kRows > 4 ? 2 : 4;
  static constexpr int kUnits = kRows > 4 ? 1 : kRows > 2 ? 2 : 4;

  static void scores(const AttendArgs& args, const Tile<std::uint16_t>& tile, int begin, int end, const DotScratch& scratch, std::int64_t row, float (*scores)[kTile]) {
    for (int base = begin / kLanes / kVectors * kVectors; base * kLanes < end; base += kVectors) {
      const std::uint16_t* keys[kVectors];
      for (int v = 0; v < kVectors; ++v) keys[v] = tile.keys[base + v];
      V sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
      const float* q = scratch.q(row);
      const std::int64_t stride = scratch.row_floats();
      for (std::int64_t pair = 0; pair < args.head_dim / 2; ++pair) {
        __m512i key[kVectors];
        for (int v = 0; v < kVectors; ++v) key[v] = pairs_at(keys[v] + pair * 2 * kSubtile);
        for (int r = 0; r < kRows; ++r) {
          const __m512i query = same_pairs(q + r * stride + pair);
          for (int v = 0; v < kVectors; ++v) sum[r][v] = dot(query, key[v], sum[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) store(scores[r] + (base + v) * kLanes, sum[r][v]);
    }
  }

  // Scores of one row become rounded weights, in key order; returns the factor of what was summed before.
  static V weights(const float* scores, int begin, int end, const DotScratch& scratch, std::int64_t row, std::uint16_t* out) {
    V score[kTileVectors];
    V most = set1(-__builtin_inff());
    const bool whole = end - begin == kTile;
    for (int v = 0; v < kTileVectors; ++v) {
      score[v] = load(scores + v * kLanes);
      if (!whole) {
        const int from = begin - v * kLanes, to = end - v * kLanes;
        const Lanes seen = without(first(to < 0 ? 0 : to > kLanes ? kLanes : to), first(from < 0 ? 0 : from > kLanes ? kLanes : from));
        score[v] = select(seen, score[v], set1(-__builtin_inff()));
      }
      most = max(most, score[v]);
    }
    const float old_max = *scratch.max(row), tile_max = reduce_max(most);
    const float new_max = tile_max > old_max ? tile_max : old_max;
    V sum = zero();
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    for (int v = 0; v < kTileVectors; v += 2) {
      const __m512i weight = to_bf16_in_order(exp2_coarse(sub(score[v], set1(new_max))), exp2_coarse(sub(score[v + 1], set1(new_max))));
      _mm512_storeu_si512(out + v * kLanes, weight);
      sum = dot(weight, ones, sum);
    }
    const V factor = new_max == old_max ? set1(1) : exp2_coarse(sub(set1(old_max), set1(new_max)));
    store(scratch.sum(row), fma(load(scratch.sum(row)), factor, sum));
    *scratch.max(row) = new_max;
    return factor;
  }

  template <int kWide>
  static void values_at(int begin, int end, const DotScratch& scratch, std::int64_t row, std::int64_t d, const std::uint16_t (*weights)[kTile], const V* factors) {
    V sum[kRows][kWide][2];
    for (int r = 0; r < kRows; ++r)
      for (int u = 0; u < kWide; ++u) sum[r][u][0] = sum[r][u][1] = zero();
    for (int pair = begin / 2; pair * 2 < end; ++pair) {
      const float* value = scratch.values() + pair * scratch.width + d;
      for (int u = 0; u < kWide; ++u) {
        const __m512i low = pairs_at(value + u * kDotWidth), high = pairs_at(value + u * kDotWidth + kLanes);
        for (int r = 0; r < kRows; ++r) {
          const __m512i weight = same_pairs(weights[r] + 2 * pair);
          sum[r][u][0] = dot(weight, low, sum[r][u][0]);
          sum[r][u][1] = dot(weight, high, sum[r][u][1]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int u = 0; u < kWide; ++u)
        for (int half = 0; half < 2; ++half) {
          float* weighted = scratch.weighted(row + r) + d + u * kDotWidth + half * kLanes;
          store(weighted, fma(load(weighted), factors[r], sum[r][u][half]));
        }
  }

  static void values(int begin, int end, const DotScratch& scratch, std::int64_t row, const std::uint16_t (*weights)[kTile], const V* factors) {
    std::int64_t d = 0;
    for (; d + kUnits * kDotWidth <= scratch.width; d += kUnits * kDotWidth) values_at<kUnits>(begin, end, scratch, row, d, weights, factors);
    for (; d < scratch.width; d += kDotWidth) values_at<1>(begin, end, scratch, row, d, weights, factors);
  }

  static void run(const AttendArgs& args, const Tile<std::uint16_t>& tile, const DotScratch& scratch, std::int64_t row) {
    alignas(64) float scored[kRows][kTile];
    alignas(64) std::uint16_t weighed[kRows][kTile];
    V factors[kRows];
    const int begin = tile_begin(args, tile.position, row / args.heads), end = tile_end(args, tile.position, (row + kRows - 1) / args.heads);
    scores(args, tile, begin, end, scratch, row, scored);
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t token = (row + r) / args.heads;
      factors[r] = weights(scored[r], tile_begin(args, tile.position, token), tile_end(args, tile.position, token), scratch, row + r, weighed[r]);
    }
    values(begin, end, scratch, row, weighed, factors);
  }
};

// body(DotPass, its first row) for the rows that see any of the tile.
template <class Stored, class Body>
inline void for_dot_passes(const AttendArgs& args, const Tile<Stored>& tile, Body&& body) {
  const std::int64_t end = tile.tokens_end * args.heads;
  for (std::int64_t row = tile.tokens_begin * args.heads; row < end;) {
    const std::int64_t left = end - row;
    if (left >= 8) {
      body(DotPass<8>{}, row);
      row += 8;
    } else if (left >= 4) {
      body(DotPass<4>{}, row);
      row += 4;
    } else if (left >= 2) {
      body(DotPass<2>{}, row);
      row += 2;
    } else {
      body(DotPass<1>{}, row);
      row += 1;
    }
  }
}

// One row's elements in order: mean(weighted).
template <class Mean>
inline void write_dot_row(const AttendArgs& args, const DotScratch& scratch, std::int64_t row, Mean&& mean) {
  const __m512i low_half = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high_half = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  float* out = args.out + row / args.heads * args.out_stride + row % args.heads * args.head_dim;
  for (std::int64_t d = 0; d < args.head_dim; d += kDotWidth) {
    const V low = mean(load(scratch.weighted(row) + d)), high = mean(load(scratch.weighted(row) + d + kLanes));
    const std::int64_t left = args.head_dim - d;
    store_first(out + d, _mm512_permutex2var_ps(low, low_half, high), left < kLanes ? left : kLanes);
    if (left > kLanes) store_first(out + d + kLanes, _mm512_permutex2var_ps(low, high_half, high), left < kDotWidth ? left - kLanes : kLanes);
  }
}

// tile_of(position): the tile's keys in BF16, its values paired into the scratch.
template <class TileOf>
inline void attend_dot(const AttendArgs& args, const DotScratch& scratch, TileOf&& tile_of) {
  const std::int64_t rows = args.tokens * args.heads;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = args.q + row / args.heads * args.q_stride + row % args.heads * args.head_dim;
    const V scale = set1(args.scale * 0x1.715476p+0f);
    auto* q = reinterpret_cast<std::uint16_t*>(scratch.q(row));
    for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
      const std::int64_t left = args.head_dim - d;
      store_bf16_first(q + d, mul(load_first(from + d, left < kLanes ? left : kLanes), scale), left < kLanes ? left : kLanes);
    }
    for (float* p = scratch.weighted(row); p < scratch.max(row); p += kLanes) store(p, zero());
    *scratch.max(row) = -__builtin_inff();
  }

  const std::int64_t last = seen_to(args, args.tokens - 1);
  for (std::int64_t position = seen_from(args, 0) / kTile * kTile; position < last; position += kTile) {
    const Tile<std::uint16_t> tile = tile_of(position);
    for_dot_passes(args, tile, [&](auto pass, std::int64_t row) { pass.run(args, tile, scratch, row); });
  }

  for (std::int64_t row = 0; row < rows; ++row) {
    const V by = set1(1 / reduce_add(load(scratch.sum(row))));
    write_dot_row(args, scratch, row, [&](V weighted) { return mul(weighted, by); });
  }
}

inline void attend_bf16_dot(const AttendArgs& args) {
  const DotScratch scratch = dot_scratch(args);
  attend_dot(args, scratch, [&](std::int64_t position) {
    const Tile<std::uint16_t> tile = tile_at<std::uint16_t>(args, position);
    pair_values(args, tile, scratch);
    return tile;
  });
}
