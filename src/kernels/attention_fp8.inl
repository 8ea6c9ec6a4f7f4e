// Attention over E4M3 codes (attention_fp8.h), against the vocabulary of isa/<isa>/vec.h, isa/<isa>/attention_fp8.h and the rows, tiles and passes of attention.inl.
// Included once by isa/<isa>/attention_fp8.cc after them, in a nameless namespace; `kEncoder` there names the ISA's Fp8Kernels.
//
// A call of few rows decodes codes in registers as its passes read them; one of many decodes each tile once, to BF16. Both multiply the same numbers in the same
// order: where the ISA's registers hold numbers in units of 1 / kKeyUnit or 1 / kValueUnit, powers of two, q or the weights are that much larger.
constexpr std::int64_t kDirectRows = 2 * kMaxPassRows;  // at most so many decode in registers

struct E4m3Cache {
  using Stored = std::uint8_t;
  static Pair values(const std::uint8_t* p) { return value_numbers(p); }
  static Pair values_first(const std::uint8_t* p, std::int64_t n) { return value_numbers_first(p, n); }
  static Pair in_order(Pair v) { return interleave(v); }
};

constexpr int fp8_score_vectors(int heads) { return kRegisters == 32 ? (heads <= 2 ? 4 : 2) : heads <= 2 ? 2 : 1; }

// tile_scores() of attention.inl on codes; q is larger by kKeyUnit.
template <int kHeads, bool kFetch>
inline void tile_scores_e4m3(const Tile<std::uint8_t>& tile, int begin, int end, const Tile<std::uint8_t>& ahead, const float* const (&q)[kHeads], std::int64_t head_dim, float (*scores)[kTile]) {
  constexpr int kVectors = fp8_score_vectors(kHeads), kBytes = 4 * kLanes;
  for (int base = begin / kLanes / kVectors * kVectors; base * kLanes < end; base += kVectors) {
    const std::uint8_t *keys[kVectors], *ahead_keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int subtile = (base + v) / kSubtileVectors, offset = (base + v) % kSubtileVectors * kBytes;
      keys[v] = tile.keys[subtile] + offset;
      ahead_keys[v] = ahead.keys[subtile] + offset;
    }
    Pair dot[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) dot[h][v] = {zero(), zero()};
    for (std::int64_t d = 0; d < head_dim; d += 4) {
      for (int v = 0; v < kVectors; ++v) {
        if (kFetch && (kVectors == 1 || v % kSubtileVectors == 0)) fetch(ahead_keys[v] + d * kSubtile);
        const Quad key = key_numbers(keys[v] + d * kSubtile);
        for (int h = 0; h < kHeads; ++h)
          for (int i = 0; i < 4; i += 2)
            dot[h][v] = {fma(set1(q[h][d + i]), key.part[i], dot[h][v].even), fma(set1(q[h][d + i + 1]), key.part[i + 1], dot[h][v].odd)};
      }
    }
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) store(scores[h] + (base + v) * kLanes, add(dot[h][v].even, dot[h][v].odd));
  }
}

template <int kRows>
struct Pass<E4m3Cache, kRows> {
  static void scores(const AttendArgs& args, const Step<std::uint8_t>& step, const Tile<std::uint8_t>* ahead, float (*scores)[kTile]) {
    const float* q[kRows];
    for (int r = 0; r < kRows; ++r) q[r] = args.q + (step.row + r) / args.heads * args.q_stride + (step.row + r) % args.heads * args.head_dim;
    if (ahead) {
      tile_scores_e4m3<kRows, true>(step.tile, step.begin, step.end, *ahead, q, args.head_dim, scores);
    } else {
      tile_scores_e4m3<kRows, false>(step.tile, step.begin, step.end, step.tile, q, args.head_dim, scores);
    }
  }
  static void weights(const AttendArgs& args, const Step<std::uint8_t>& step, float (*scores)[kTile], V* factors) {
    Pass<Bf16Cache, kRows>::weights(args, {{.position = step.tile.position}, step.row, step.rows, step.begin, step.end}, scores, factors);
    enlarge(scores);
  }
  static void values(const AttendArgs& args, const Step<std::uint8_t>& step, const Tile<std::uint8_t>* ahead, const float (*weights)[kTile], const V* factors) {
    RowState states[kRows];
    for (int r = 0; r < kRows; ++r) states[r] = row_state(args, step.row + r);
    if (ahead) {
      row_values<E4m3Cache, kRows, true>(step.tile, step.begin, step.end, *ahead, weights, factors, states, args.head_dim);
    } else {
      row_values<E4m3Cache, kRows, false>(step.tile, step.begin, step.end, step.tile, weights, factors, states, args.head_dim);
    }
  }
  static void enlarge(float (*weights)[kTile]) {
    if (kValueUnit == 1) return;
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kTileVectors; ++v) store(weights[r] + v * kLanes, mul(load(weights[r] + v * kLanes), set1(kValueUnit)));
  }
};

// ---------------------------------------------------------------- scratch
// Of a call, in floats: the rows' states, their queries, a tile of keys and one of values in BF16.
struct Fp8Scratch {
  std::int64_t rows, head_dim;
  float* base;
  float* queries() const { return base + attend_scratch(rows, head_dim); }
  std::uint16_t* keys() const { return reinterpret_cast<std::uint16_t*>(queries() + rows * head_dim); }
  std::uint16_t* values() const { return keys() + kTile * head_dim; }
  std::int64_t floats() const { return attend_scratch(rows, head_dim) + rows * head_dim + kTile * head_dim; }
};

inline std::int64_t fp8_attend_scratch(std::int64_t rows, std::int64_t head_dim) { return Fp8Scratch{rows, head_dim, nullptr}.floats(); }

// The tile at `position` in BF16; meanwhile brings that at `ahead` nearer.
inline Tile<std::uint16_t> decoded_tile(const Tile<std::uint8_t>& tile, const Tile<std::uint8_t>& ahead, std::int64_t head_dim, bool with_values, const Fp8Scratch& scratch) {
  Tile<std::uint16_t> out{tile.begin, tile.end, tile.position, tile.tokens_begin, tile.tokens_end, {}, {}};
  const std::int64_t subtile_codes = kSubtile * head_dim;
  const int first_seen = tile.begin / kSubtile, last_seen = (tile.end - 1) / kSubtile;
  for (int s = 0; s < kTile / kSubtile; ++s) {
    int seen = s < first_seen ? first_seen : s > last_seen ? last_seen : s;
    __asm__("" : "+r"(seen));  // as in tile_at()
    out.keys[s] = scratch.keys() + seen * subtile_codes;
    out.values[s] = scratch.values() + seen * subtile_codes;
  }
  for (int s = first_seen; s <= last_seen; ++s) {
    for (std::int64_t i = 0; i < subtile_codes; i += 64) {
      fetch(ahead.keys[s] + i);
      decode_keys(tile.keys[s] + i, scratch.keys() + s * subtile_codes + i);
    }
    if (!with_values) continue;
    for (std::int64_t i = 0; i < subtile_codes; i += 64) {  // rows lie end to end
      fetch(ahead.values[s] + i);
      decode_values(tile.values[s] + i, scratch.values() + s * subtile_codes + i);
    }
  }
  return out;
}

// body(step, the tile ahead) for every tile and its rows; the tiles as `Cache` wants them.
template <class Cache, class Body>
inline void walk(const AttendArgs& args, bool with_values, const Fp8Scratch& scratch, Body&& body) {
  const std::int64_t last = seen_to(args, args.tokens - 1);
  Tile<std::uint8_t> codes = tile_at<std::uint8_t>(args, seen_from(args, 0) / kTile * kTile);
  for (bool more = true; more;) {
    more = codes.position + kTile < last;
    const Tile<std::uint8_t> ahead = more ? tile_at<std::uint8_t>(args, codes.position + kTile) : codes;
    Step<typename Cache::Stored> step{};
    if constexpr (sizeof(typename Cache::Stored) == 1) {
      step.tile = codes;
    } else {
      step.tile = decoded_tile(codes, ahead, args.head_dim, with_values, scratch);
    }
    for (std::int64_t row = step.tile.tokens_begin * args.heads; row < step.tile.tokens_end * args.heads; row += step.rows) {
      set_rows(args, step, row);
      body(step, args.cold && row == step.tile.tokens_begin * args.heads ? &ahead : nullptr);
    }
    codes = ahead;
  }
}

template <class Stored>
inline const Tile<Stored>* fetched(const Tile<std::uint8_t>* ahead) {
  if constexpr (sizeof(Stored) == 1) return ahead;
  else return nullptr;  // the decoder did
}

inline void clear_states(const AttendArgs& args) {
  for (std::int64_t row = 0; row < args.tokens * args.heads; ++row) {
    const RowState state = row_state(args, row);
    std::memset(state.sum, 0, static_cast<std::size_t>(state_floats(args.head_dim)) * sizeof(float));
    *state.max = -__builtin_inff();
  }
}

// out = weighted / (sum * one) * scale.
template <class Cache>
inline void write_out(const AttendArgs& args, float one, float scale) {
  for (std::int64_t row = 0; row < args.tokens * args.heads; ++row) {
    const RowState state = row_state(args, row);
    const V sum = set1(reduce_add(load(state.sum)) * one), by = set1(scale);
    float* out = args.out + row / args.heads * args.out_stride + row % args.heads * args.head_dim;
    for (std::int64_t d = 0; d < args.head_dim; d += kUnit) {
      const Pair mean = Cache::in_order({mul(div(load(state.weighted + d), sum), by), mul(div(load(state.weighted + d + kLanes), sum), by)});
      const std::int64_t count = args.head_dim - d;
      store_first(out + d, mean.even, count < kLanes ? count : kLanes);
      if (count > kLanes) store_first(out + d + kLanes, mean.odd, count < kUnit ? count - kLanes : kLanes);
    }
  }
}

// ---------------------------------------------------------------- FP32 queries
void attend_e4m3(const Fp8AttendArgs& given) {
  AttendArgs args = given.attend;
  args.scale *= given.scale_k;
  const std::int64_t rows = args.tokens * args.heads, width = args.heads * args.head_dim;
  const Fp8Scratch scratch{rows, args.head_dim, args.scratch};
  if (rows <= kDirectRows) {
    if (kKeyUnit != 1) {
      for (std::int64_t t = 0; t < args.tokens; ++t)
        for (std::int64_t i = 0; i < width; ++i) scratch.queries()[t * width + i] = args.q[t * args.q_stride + i] * kKeyUnit;
      args.q = scratch.queries();
      args.q_stride = width;
    }
    attend<E4m3Cache>(args);
    for (std::int64_t t = 0; t < args.tokens; ++t)
      for (std::int64_t i = 0; i < width; ++i) args.out[t * args.out_stride + i] *= given.scale_v;
    return;
  }
  clear_states(args);
  alignas(64) float scores[kMaxPassRows][kTile];
  V factors[kMaxPassRows];
  walk<Bf16Cache>(args, true, scratch, [&](const Step<std::uint16_t>& step, const Tile<std::uint8_t>*) {
    with_pass<Bf16Cache>(step.rows, [&](auto pass) {
      pass.scores(args, step, nullptr, scores);
      pass.weights(args, step, scores, factors);
      pass.values(args, step, nullptr, scores, factors);
    });
  });
  write_out<Bf16Cache>(args, 1, given.scale_v);
}

// ---------------------------------------------------------------- all of it E4M3
// Lanes of vector v of a tile that are among keys [begin, end).
inline V seen_or(V x, int v, int begin, int end, float other) {
  const int from = begin - v * kLanes, to = end - v * kLanes;
  const Lanes seen = without(first(lanes_of(to)), first(lanes_of(from)));
  return select(seen, x, set1(other));
}

inline void full_max(const float* scores, int begin, int end, float scale, const RowState& state) {
  V most = set1(*state.max);
  for (int v = 0; v < kTileVectors; ++v) most = max(most, seen_or(mul(load(scores + v * kLanes), set1(scale)), v, begin, end, -__builtin_inff()));
  *state.max = reduce_max(most);
}

// Scores become e8 times `unit`, 0 where unseen; the sum is that of e.
inline void full_weights(float* scores, int begin, int end, float scale, float bound, float unit, const RowState& state) {
  V sum = zero();
  for (int v = 0; v < kTileVectors; ++v) {
    const V score = seen_or(mul(load(scores + v * kLanes), set1(scale)), v, begin, end, -__builtin_inff());
    const V weight = exp(sub(score, set1(*state.max)));
    sum = add(sum, weight);
    store(scores + v * kLanes, mul(e4m3_positive(mul(weight, set1(bound))), set1(unit)));
  }
  store(state.sum, add(load(state.sum), sum));
}

template <class Cache>
void attend_full(const AttendArgs& args, float bound, const Fp8Scratch& scratch) {
  using Stored = typename Cache::Stored;
  clear_states(args);
  alignas(64) float scores[kMaxPassRows][kTile];
  const auto each_row = [&](const Step<Stored>& step, auto&& body) {
    for (int r = 0; r < step.rows; ++r) {
      const std::int64_t token = (step.row + r) / args.heads;
      body(scores[r], tile_begin(args, step.tile.position, token), tile_end(args, step.tile.position, token), row_state(args, step.row + r));
    }
  };
  walk<Cache>(args, false, scratch, [&](const Step<Stored>& step, const Tile<std::uint8_t>* ahead) {
    with_pass<Cache>(step.rows, [&](auto pass) { pass.scores(args, step, fetched<Stored>(ahead), scores); });
    each_row(step, [&](float* row, int begin, int end, const RowState& state) { full_max(row, begin, end, args.scale, state); });
  });
  V factors[kMaxPassRows];
  for (V& factor : factors) factor = set1(1);
  constexpr float kUnitOfWeights = sizeof(Stored) == 1 ? kValueUnit : 1;
  walk<Cache>(args, true, scratch, [&](const Step<Stored>& step, const Tile<std::uint8_t>* ahead) {
    with_pass<Cache>(step.rows, [&](auto pass) { pass.scores(args, step, fetched<Stored>(ahead), scores); });
    each_row(step, [&](float* row, int begin, int end, const RowState& state) { full_weights(row, begin, end, args.scale, bound, kUnitOfWeights, state); });
    with_pass<Cache>(step.rows, [&](auto pass) { pass.values(args, step, fetched<Stored>(ahead), scores, factors); });
  });
}

// The queries' numbers, `unit` times as large, as floats.
inline AttendArgs with_e4m3_queries(const Fp8AttendArgs& given, const Fp8Scratch& scratch, float unit) {
  AttendArgs args = given.attend;
  const std::int64_t width = args.heads * args.head_dim;
  constexpr std::int64_t kChunk = 256;
  std::uint16_t numbers[kChunk];
  for (std::int64_t t = 0; t < args.tokens; ++t)
    for (std::int64_t i = 0; i < width; i += kChunk) {
      const std::int64_t count = width - i < kChunk ? width - i : kChunk;
      kEncoder.encode_bf16(args.q + t * args.q_stride + i, count, given.inverse_q, given.bound, numbers);
      for (std::int64_t j = 0; j < count; ++j) {
        const std::uint32_t bits = std::uint32_t{numbers[j]} << 16;
        float number;
        std::memcpy(&number, &bits, sizeof number);
        scratch.queries()[t * width + i + j] = number * unit;
      }
    }
  args.q = scratch.queries();
  args.q_stride = width;
  args.scale = args.scale * given.scale_q * given.scale_k;
  return args;
}

inline void attend_e4m3_full(const Fp8AttendArgs& given) {
  const std::int64_t rows = given.attend.tokens * given.attend.heads;
  const Fp8Scratch scratch{rows, given.attend.head_dim, given.attend.scratch};
  if (rows <= kDirectRows) {
    const AttendArgs args = with_e4m3_queries(given, scratch, kKeyUnit);
    attend_full<E4m3Cache>(args, given.bound, scratch);
    write_out<E4m3Cache>(args, given.bound, given.scale_v);
  } else {
    const AttendArgs args = with_e4m3_queries(given, scratch, 1);
    attend_full<Bf16Cache>(args, given.bound, scratch);
    write_out<Bf16Cache>(args, given.bound, given.scale_v);
  }
}

// ---------------------------------------------------------------- filling the cache
void store_kv_e4m3(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block, float inverse_k, float inverse_v, float bound) {
  std::uint8_t* keys = static_cast<std::uint8_t*>(key_block) + slot / kSubtile * kSubtile * head_dim + e4m3_place(0, slot % kSubtile);
  constexpr std::int64_t kChunk = 256;
  std::uint8_t codes[kChunk];
  for (std::int64_t d = 0; d < head_dim; d += kChunk) {
    const std::int64_t count = head_dim - d < kChunk ? head_dim - d : kChunk;
    kEncoder.encode(k + d, count, inverse_k, bound, codes);
    for (std::int64_t i = 0; i < count; i += 4) {
      std::memcpy(keys + (d + i) * kSubtile, codes + i, 2);
      std::memcpy(keys + (d + i) * kSubtile + 8, codes + i + 2, 2);
    }
  }
  kEncoder.encode(v, head_dim, inverse_v, bound, static_cast<std::uint8_t*>(value_block) + slot * head_dim);
}
