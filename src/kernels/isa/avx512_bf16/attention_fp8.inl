// Attention over E4M3 codes with BF16 dot products, which take their numbers as they are. Included by attention_fp8.cc after kernels/attention_fp8.inl and the
// attention.inl of this folder, whose rows and passes it shares.
//
// A tile of values is decoded and paired once for all rows. Keys are decoded once for many rows, in registers for few: the same products in the same order.

// The scratch of a call: that of the passes, then a tile of keys in BF16.
inline std::uint16_t* decoded_keys(const AttendArgs& args, const DotScratch& scratch) { return reinterpret_cast<std::uint16_t*>(scratch.q(args.tokens * args.heads)); }

inline std::int64_t attend_fp8_dot_scratch(std::int64_t rows, std::int64_t head_dim) {
  const std::int64_t dot_floats = attend_dot_scratch(rows, head_dim) + kTile * head_dim / 2, floats = fp8_attend_scratch(rows, head_dim);
  return dot_floats > floats ? dot_floats : floats;
}

// decode: the keys too; else the result's keys are not to be read.
inline Tile<std::uint16_t> dot_tile(const AttendArgs& args, const Tile<std::uint8_t>& tile, const Tile<std::uint8_t>& ahead, bool decode, const DotScratch& scratch) {
  Tile<std::uint16_t> out{tile.begin, tile.end, tile.position, tile.tokens_begin, tile.tokens_end, {}, {}};
  const std::int64_t subtile_codes = kSubtile * args.head_dim;
  const int first_seen = tile.begin / kSubtile, last_seen = (tile.end - 1) / kSubtile;
  for (int s = 0; s < kTile / kSubtile; ++s) {
    const int seen = s < first_seen ? first_seen : s > last_seen ? last_seen : s;
    out.keys[s] = decoded_keys(args, scratch) + seen * subtile_codes;
    if (!decode || s != seen) continue;
    for (std::int64_t i = 0; i < subtile_codes; i += 64) {
      fetch(ahead.keys[s] + i);
      decode_keys(tile.keys[s] + i, decoded_keys(args, scratch) + s * subtile_codes + i);
    }
  }
  return out;
}

inline void pair_e4m3_values(const AttendArgs& args, const Tile<std::uint8_t>& tile, const Tile<std::uint8_t>& ahead, const DotScratch& scratch) {
  const __m512i in_order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (int key = tile.begin / 2 * 2; key < tile.end; key += 2) {
    const std::int64_t row = key % kSubtile * args.head_dim;
    const std::uint8_t *first_row = tile.values[key / kSubtile] + row, *second_row = first_row + args.head_dim, *next = ahead.values[key / kSubtile] + row;
    float* out = scratch.values() + key / 2 * scratch.width;
    for (std::int64_t d = 0; d < args.head_dim; d += 64) {
      const std::int64_t left = args.head_dim - d;
      const __mmask64 present = left < 64 ? (__mmask64{1} << left) - 1 : ~__mmask64{0};
      fetch(next + d);
      fetch(next + args.head_dim + d);
      const E4m3Halves a = e4m3_halves(_mm512_permutexvar_epi64(in_order, _mm512_maskz_loadu_epi8(present, first_row + d)));
      const E4m3Halves b = e4m3_halves(_mm512_permutexvar_epi64(in_order, _mm512_maskz_loadu_epi8(present, second_row + d)));
      _mm512_storeu_si512(out + d, _mm512_unpacklo_epi16(a.first, b.first));
      _mm512_storeu_si512(out + d + kLanes, _mm512_unpackhi_epi16(a.first, b.first));
      if (left <= kDotWidth) break;
      _mm512_storeu_si512(out + d + kDotWidth, _mm512_unpacklo_epi16(a.second, b.second));
      _mm512_storeu_si512(out + d + kDotWidth + kLanes, _mm512_unpackhi_epi16(a.second, b.second));
    }
  }
}

// body(the tile's codes, those of the next) for every tile.
template <class Body>
inline void for_code_tiles(const AttendArgs& args, Body&& body) {
  const std::int64_t last = seen_to(args, args.tokens - 1);
  Tile<std::uint8_t> tile = tile_at<std::uint8_t>(args, seen_from(args, 0) / kTile * kTile);
  for (bool more = true; more;) {
    more = tile.position + kTile < last;
    const Tile<std::uint8_t> ahead = more ? tile_at<std::uint8_t>(args, tile.position + kTile) : tile;
    body(tile, ahead);
    tile = ahead;
  }
}

// ---------------------------------------------------------------- BF16 queries
void attend_e4m3_dot(const Fp8AttendArgs& given) {
  AttendArgs args = given.attend;
  args.scale *= given.scale_k;
  const DotScratch scratch = dot_scratch(args);
  attend_dot(args, scratch, [&](std::int64_t position) {
    const Tile<std::uint8_t> tile = tile_at<std::uint8_t>(args, position);
    pair_e4m3_values(args, tile, tile, scratch);
    return dot_tile(args, tile, tile, true, scratch);
  });
  for (std::int64_t t = 0; t < args.tokens; ++t)
    for (std::int64_t i = 0; i < args.heads * args.head_dim; ++i) args.out[t * args.out_stride + i] *= given.scale_v;
}

// ---------------------------------------------------------------- all of it E4M3
// Scores of few rows, keys decoded as they come.
template <int kRows>
inline void code_scores(const AttendArgs& args, const Tile<std::uint8_t>& tile, const Tile<std::uint8_t>& ahead, const DotScratch& scratch, std::int64_t row, float (*scores)[kTile]) {
  constexpr int kVectors = kTile / kSubtile;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
  const float* q = scratch.q(row);
  for (std::int64_t d = 0; d < args.head_dim; d += 4, q += 2)
    for (int v = 0; v < kVectors; ++v) {
      fetch(ahead.keys[v] + d * kSubtile);
      const E4m3Halves key = e4m3_halves(_mm512_loadu_si512(tile.keys[v] + d * kSubtile));
      for (int r = 0; r < kRows; ++r) sum[r][v] = dot(same_pairs(q + r * scratch.row_floats() + 1), key.second, dot(same_pairs(q + r * scratch.row_floats()), key.first, sum[r][v]));
    }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(scores[r] + v * kLanes, sum[r][v]);
}

// Scores become e8; the sum is that of e.
inline void full_dot_weights(const float* scores, int begin, int end, float scale, float bound, const RowState& state, std::uint16_t* out) {
  V sum = zero(), e[kTileVectors];
  for (int v = 0; v < kTileVectors; ++v) {
    e[v] = exp(sub(seen_or(mul(load(scores + v * kLanes), set1(scale)), v, begin, end, -__builtin_inff()), set1(*state.max)));
    sum = add(sum, e[v]);
    e[v] = e4m3_positive(mul(e[v], set1(bound)));
  }
  for (int v = 0; v < kTileVectors; v += 2) _mm512_storeu_si512(out + v * kLanes, to_bf16_in_order(e[v], e[v + 1]));
  store(state.sum, add(load(state.sum), sum));
}

void attend_e4m3_full_dot(const Fp8AttendArgs& given) {
  AttendArgs args = given.attend;
  args.scale = args.scale * given.scale_q * given.scale_k;
  const DotScratch scratch = dot_scratch(args);
  const std::int64_t rows = args.tokens * args.heads;
  const bool few = rows <= kDirectRows;
  for (std::int64_t row = 0; row < rows; ++row) {
    kEncoder.encode_bf16(args.q + row / args.heads * args.q_stride + row % args.heads * args.head_dim, args.head_dim, given.inverse_q, given.bound, reinterpret_cast<std::uint16_t*>(scratch.q(row)));
    for (float* p = scratch.weighted(row); p < scratch.max(row); p += kLanes) store(p, zero());
    *scratch.max(row) = -__builtin_inff();
  }
  alignas(64) float scored[8][kTile];
  // body(DotPass, row, begin, end) with the rows' scores in `scored`.
  const auto passes = [&](const Tile<std::uint8_t>& codes, const Tile<std::uint8_t>& ahead, auto&& body) {
    const Tile<std::uint16_t> tile = dot_tile(args, codes, ahead, !few, scratch);
    for_dot_passes(args, codes, [&]<int kRows>(DotPass<kRows> pass, std::int64_t row) {
      const int begin = tile_begin(args, codes.position, row / args.heads), end = tile_end(args, codes.position, (row + kRows - 1) / args.heads);
      constexpr int kAtOnce = kRows < 4 ? kRows : 4;
      if (few) {
        for (int r = 0; r < kRows; r += kAtOnce) code_scores<kAtOnce>(args, codes, ahead, scratch, row + r, scored + r);
      } else {
        pass.scores(args, tile, begin, end, scratch, row, scored);
      }
      body(pass, row, begin, end);
    });
  };
  const auto each_row = [&](const Tile<std::uint8_t>& codes, std::int64_t row, int count, auto&& body) {
    for (int r = 0; r < count; ++r) {
      const std::int64_t token = (row + r) / args.heads;
      body(r, tile_begin(args, codes.position, token), tile_end(args, codes.position, token), RowState{scratch.max(row + r), scratch.sum(row + r), nullptr});
    }
  };
  for_code_tiles(args, [&](const Tile<std::uint8_t>& codes, const Tile<std::uint8_t>& ahead) {
    passes(codes, ahead, [&]<int kRows>(DotPass<kRows>, std::int64_t row, int, int) {
      each_row(codes, row, kRows, [&](int r, int begin, int end, const RowState& state) { full_max(scored[r], begin, end, args.scale, state); });
    });
  });
  alignas(64) std::uint16_t weighed[8][kTile];
  V factors[8];
  for (V& factor : factors) factor = set1(1);
  for_code_tiles(args, [&](const Tile<std::uint8_t>& codes, const Tile<std::uint8_t>& ahead) {
    pair_e4m3_values(args, codes, ahead, scratch);
    passes(codes, ahead, [&]<int kRows>(DotPass<kRows> pass, std::int64_t row, int from, int to) {
      each_row(codes, row, kRows, [&](int r, int begin, int end, const RowState& state) { full_dot_weights(scored[r], begin, end, args.scale, given.bound, state, weighed[r]); });
      pass.values(from, to, scratch, row, weighed, factors);
    });
  });
  for (std::int64_t row = 0; row < rows; ++row) {
    const V sum = set1(reduce_add(load(scratch.sum(row))) * given.bound), scale = set1(given.scale_v);
    write_dot_row(args, scratch, row, [&](V weighted) { return mul(div(weighted, sum), scale); });
  }
}
