// Attention of G heads of a few tokens over one KV head's paged cache, against the vocabulary of isa/<isa>/vec.h.
// Included once by isa/<isa>/vector.cc after vector.inl, in a nameless namespace.
//
// A row is one head of one token: row r is head r % G of token r / G. One step takes a tile of 64 keys that starts at a multiple of 64:
// scores with keys as lanes, the running maximum, weights, then values with D as lanes. The tile stays in the first-level cache while the
// rows that see any of it pass over it, at most four at a time; a key that some row of a pass must not see has weight 0 there.
// Every number is one fixed chain of operations (D ascending in a score, keys ascending in a value, tiles ascending), so neither
// the rows that share a pass nor the registers that share a loop change a bit. A cold cache is fetched one tile ahead: its blocks are
// short and scattered, so the hardware sees no stream to follow.
constexpr int kTile = 64;
constexpr int kSubtile = 16;  // keys that are contiguous in a block
constexpr int kTileVectors = kTile / kLanes;
constexpr int kSubtileVectors = kSubtile / kLanes;
constexpr int kMaxPassRows = 4;
constexpr int kUnit = 2 * kLanes;  // elements of a value row that one Pair holds

struct F32Cache {
  using Stored = float;
  static constexpr int kKeyVector = kLanes;  // elements between the keys of neighbouring lane vectors
  static Pair keys(const float* p) { return {load(p), load(p + kSubtile)}; }
  static void fetch_keys(const float* p) {
    fetch(p);
    fetch(p + kSubtile);
  }
  static Pair values(const float* p) { return {load(p), load(p + kLanes)}; }
  static Pair values_first(const float* p, std::int64_t n) { return n > kLanes ? Pair{load(p), load_first(p + kLanes, n - kLanes)} : Pair{load_first(p, n), zero()}; }
  static Pair in_order(Pair v) { return v; }
};

struct Bf16Cache {
  using Stored = std::uint16_t;
  static constexpr int kKeyVector = 2 * kLanes;
  static Pair keys(const std::uint16_t* p) { return load_bf16(p); }
  static void fetch_keys(const std::uint16_t* p) { fetch(p); }
  static Pair values(const std::uint16_t* p) { return load_bf16(p); }
  static Pair values_first(const std::uint16_t* p, std::int64_t n) { return load_bf16_first(p, n / 2); }
  static Pair in_order(Pair v) { return interleave(v); }
};

// The keys that token t of a call sees.
inline std::int64_t seen_from(const AttendArgs& args, std::int64_t token) {
  const std::int64_t from = args.end + token - args.window;
  return args.window > 0 && from > args.begin ? from : args.begin;
}
inline std::int64_t seen_to(const AttendArgs& args, std::int64_t token) { return args.end + token; }

// What of one tile is visible to any token, and where it lies.
template <class Stored>
struct Tile {
  int begin, end;                          // visible keys, 0 <= begin < end <= kTile
  std::int64_t position;                   // of the tile's first key
  std::int64_t tokens_begin, tokens_end;   // the tokens that see any of its keys
  const Stored* keys[kTile / kSubtile];    // of subtiles; one without a visible key repeats one that has
  const Stored* values[kTile / kSubtile];  // the subtile's first row
};

// A row's state between tiles. `sum` and `weighted` are scaled by exp(-max).
struct RowState {
  float* max;       // [1]
  float* sum;       // [kLanes]
  float* weighted;  // [ceil(D / kUnit)][2][kLanes]
};

// What token t sees of the tile at `position`.
inline int tile_begin(const AttendArgs& args, std::int64_t position, std::int64_t token) {
  const std::int64_t from = seen_from(args, token) - position;
  return from > 0 ? static_cast<int>(from) : 0;
}
inline int tile_end(const AttendArgs& args, std::int64_t position, std::int64_t token) {
  const std::int64_t to = seen_to(args, token) - position;
  return to < kTile ? static_cast<int>(to) : kTile;
}

template <class Stored>
Tile<Stored> tile_at(const AttendArgs& args, std::int64_t position) {
  Tile<Stored> tile;
  tile.position = position;
  tile.tokens_begin = args.end > position ? 0 : position - args.end + 1;
  const std::int64_t leaving = position + kTile + args.window - args.end;  // the first token whose window begins past the tile
  tile.tokens_end = args.window > 0 && leaving < args.tokens ? leaving : args.tokens;
  tile.begin = tile_begin(args, position, tile.tokens_begin);
  tile.end = tile_end(args, position, tile.tokens_end - 1);
  for (int s = tile.begin / kSubtile; s * kSubtile < tile.end; ++s) {
    const std::int64_t key = position + s * kSubtile;
    const std::int64_t block = args.block_table[key / args.block_size] * args.block_stride;
    const std::int64_t offset = key % args.block_size * args.head_dim;  // elements; the same for keys and values
    tile.keys[s] = reinterpret_cast<const Stored*>(args.keys + block) + offset;
    tile.values[s] = reinterpret_cast<const Stored*>(args.values + block) + offset;
  }
  const int first_seen = tile.begin / kSubtile, last_seen = (tile.end - 1) / kSubtile;
  for (int s = 0; s < kTile / kSubtile; ++s) {
    int seen = s < first_seen ? first_seen : s > last_seen ? last_seen : s;
    __asm__("" : "+r"(seen));  // one at a time: all at once, compilers read the numbers under a mask (divisor.inl)
    tile.keys[s] = tile.keys[seen];
    tile.values[s] = tile.values[seen];
  }
  return tile;
}

// Lane vectors whose scores are summed at once: as many as the registers hold.
constexpr int score_vectors(int heads) { return kRegisters == 32 ? (heads <= 2 ? 4 : 2) : heads == 1 ? 4 : heads == 2 ? 2 : 1; }

// scores[row][key] = q . key, even and odd d summed apart, for the keys [begin, end) of the tile; the other entries are unspecified.
// kFetch: brings the keys of `ahead` nearer on the way.
template <class Cache, int kHeads, bool kFetch>
inline void tile_scores(const Tile<typename Cache::Stored>& tile, int begin, int end, const Tile<typename Cache::Stored>& ahead, const float* const (&q)[kHeads], std::int64_t head_dim,
                        float (*scores)[kTile]) {
  constexpr int kVectors = score_vectors(kHeads);
  for (int base = begin / kLanes / kVectors * kVectors; base * kLanes < end; base += kVectors) {
    const typename Cache::Stored *keys[kVectors], *ahead_keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int subtile = (base + v) / kSubtileVectors, offset = (base + v) % kSubtileVectors * Cache::kKeyVector;
      keys[v] = tile.keys[subtile] + offset;
      ahead_keys[v] = ahead.keys[subtile] + offset;
    }
    Pair dot[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) dot[h][v] = {zero(), zero()};
    for (std::int64_t d = 0; d < head_dim; d += 2) {
      V even[kHeads], odd[kHeads];
      for (int h = 0; h < kHeads; ++h) {
        even[h] = set1(q[h][d]);
        odd[h] = set1(q[h][d + 1]);
      }
      for (int v = 0; v < kVectors; ++v) {
        if (kFetch && (kVectors == 1 || v % kSubtileVectors == 0)) Cache::fetch_keys(ahead_keys[v] + d * kSubtile);
        const Pair key = Cache::keys(keys[v] + d * kSubtile);
        for (int h = 0; h < kHeads; ++h) dot[h][v] = {fma(even[h], key.even, dot[h][v].even), fma(odd[h], key.odd, dot[h][v].odd)};
      }
    }
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) store(scores[h] + (base + v) * kLanes, add(dot[h][v].even, dot[h][v].odd));
  }
}

// n cut to a vector's lanes. One number at a time: two at once, compilers read the limits under a mask (see divisor.inl).
inline int lanes_of(int n) {
  n = n < 0 ? 0 : n > kLanes ? kLanes : n;
  __asm__("" : "+r"(n));
  return n;
}

// Turns one row's scores into weights exp(score - max), 0 where unseen; returns the factor exp(old max - new max). kWhole: every key is seen.
template <bool kWhole>
inline V tile_weights(float* scores, int begin, int end, float scale, const RowState& state) {
  const V lowest = set1(-__builtin_inff());
  V most = lowest;
  V scaled[kTileVectors];
  for (int v = 0; v < kTileVectors; ++v) {
    scaled[v] = mul(load(scores + v * kLanes), set1(scale));
    if (!kWhole) {
      const int from = begin - v * kLanes, to = end - v * kLanes;
      const Lanes seen = without(first(lanes_of(to)), first(lanes_of(from)));
      scaled[v] = select(seen, scaled[v], lowest);
    }
    most = max(most, scaled[v]);
  }
  const float old_max = *state.max, tile_max = reduce_max(most);
  const float new_max = tile_max > old_max ? tile_max : old_max;
  V sum = zero();
  for (int v = 0; v < kTileVectors; ++v) {
    const V weight = exp(sub(scaled[v], set1(new_max)));  // exp(-inf) = 0 where unseen
    store(scores + v * kLanes, weight);
    sum = add(sum, weight);
  }
  const V factor = new_max == old_max ? set1(1) : exp(sub(set1(old_max), set1(new_max)));  // exp(0) is 1 exactly
  store(state.sum, fma(load(state.sum), factor, sum));
  *state.max = new_max;
  return factor;
}

// weighted = weighted * factor + sum over the keys [first_key, last_key) of weight * value, for kUnits units from `unit`; kTail: one unit of `tail` elements.
template <class Cache, int kHeads, int kUnits, bool kTail, bool kFetch>
inline void tile_values(const Tile<typename Cache::Stored>& tile, int first_key, int last_key, const Tile<typename Cache::Stored>& ahead, const float (*weights)[kTile], const V* factors, const RowState* states,
                        std::int64_t head_dim, std::int64_t unit, std::int64_t tail) {
  using Stored = typename Cache::Stored;
  // The tile ahead is fetched from all its subtiles in turn: a few streams at once are served faster than one.
  constexpr int kLine = 64 / sizeof(Stored), kLines = (kUnits * kUnit + kLine - 1) / kLine, kStreams = kTile / kSubtile;
  Pair sum[kHeads][kUnits];
  for (int h = 0; h < kHeads; ++h)
    for (int u = 0; u < kUnits; ++u) sum[h][u] = {zero(), zero()};
  for (int s = first_key / kSubtile; s * kSubtile < last_key; ++s) {
    const int begin = first_key > s * kSubtile ? first_key : s * kSubtile;
    const int end = last_key < (s + 1) * kSubtile ? last_key : (s + 1) * kSubtile;
    const std::int64_t start = (begin - s * kSubtile) * head_dim + unit * kUnit;
    const Stored* row = tile.values[s] + start;
    for (int key = begin; key < end; ++key, row += head_dim) {
      if (kFetch)
        for (int i = 0; i < kLines; ++i) {
          const int line = key * kLines + i, at = line / kStreams;
          fetch(ahead.values[line % kStreams] + at / kLines * head_dim + unit * kUnit + at % kLines * kLine);
        }
      for (int u = 0; u < kUnits; ++u) {
        const Pair value = kTail ? Cache::values_first(row, tail) : Cache::values(row + u * kUnit);
        for (int h = 0; h < kHeads; ++h) {
          const V weight = set1(weights[h][key]);
          sum[h][u] = {fma(weight, value.even, sum[h][u].even), fma(weight, value.odd, sum[h][u].odd)};
        }
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int u = 0; u < kUnits; ++u) {
      float* weighted = states[h].weighted + (unit + u) * kUnit;
      store(weighted, fma(load(weighted), factors[h], sum[h][u].even));
      store(weighted + kLanes, fma(load(weighted + kLanes), factors[h], sum[h][u].odd));
    }
  }
}

constexpr int value_units(int heads) { return kRegisters == 32 ? (heads <= 3 ? 4 : 2) : heads == 1 ? 4 : heads == 2 ? 2 : 1; }

template <class Cache, int kHeads, bool kFetch>
inline void row_values(const Tile<typename Cache::Stored>& tile, int begin, int end, const Tile<typename Cache::Stored>& ahead, const float (*weights)[kTile], const V* factors, const RowState* states,
                       std::int64_t head_dim) {
  constexpr int kUnits = value_units(kHeads);
  const std::int64_t units = head_dim / kUnit, tail = head_dim % kUnit;
  std::int64_t unit = 0;
  for (; unit + kUnits <= units; unit += kUnits) tile_values<Cache, kHeads, kUnits, false, kFetch>(tile, begin, end, ahead, weights, factors, states, head_dim, unit, 0);
  for (; unit < units; ++unit) tile_values<Cache, kHeads, 1, false, kFetch>(tile, begin, end, ahead, weights, factors, states, head_dim, unit, 0);
  if (tail) tile_values<Cache, kHeads, 1, true, kFetch>(tile, begin, end, ahead, weights, factors, states, head_dim, unit, tail);
}

// Floats of one row's state: sum, weighted, max.
inline std::int64_t state_floats(std::int64_t head_dim) { return kLanes + (head_dim + kUnit - 1) / kUnit * kUnit + 1; }

std::int64_t attend_scratch(std::int64_t rows, std::int64_t head_dim) { return rows * state_floats(head_dim); }

inline RowState row_state(const AttendArgs& args, std::int64_t row) {
  float* base = args.scratch + row * state_floats(args.head_dim);
  return {base + state_floats(args.head_dim) - 1, base, base + kLanes};
}

// One tile and the one to four rows that pass over it together.
template <class Stored>
struct Step {
  Tile<Stored> tile;
  std::int64_t row;
  int rows;        // 0: there is no such step
  int begin, end;  // keys that any of the rows sees
};

template <class Stored>
void set_rows(const AttendArgs& args, Step<Stored>& step, std::int64_t row) {
  const std::int64_t left = step.tile.tokens_end * args.heads - row;
  step.row = row;
  step.rows = static_cast<int>(left < kMaxPassRows ? left : kMaxPassRows);
  step.begin = tile_begin(args, step.tile.position, row / args.heads);
  step.end = tile_end(args, step.tile.position, (row + step.rows - 1) / args.heads);
}

template <class Stored>
Step<Stored> step_at(const AttendArgs& args, std::int64_t position) {
  Step<Stored> step{tile_at<Stored>(args, position), 0, 0, 0, 0};
  set_rows(args, step, step.tile.tokens_begin * args.heads);
  return step;
}

template <class Stored>
Step<Stored> step_after(const AttendArgs& args, const Step<Stored>& step) {
  const std::int64_t row = step.row + step.rows;
  Step<Stored> next = step;
  if (row < step.tile.tokens_end * args.heads) {
    set_rows(args, next, row);
    return next;
  }
  const std::int64_t position = step.tile.position + kTile;
  if (position < seen_to(args, args.tokens - 1)) return step_at<Stored>(args, position);
  next.rows = 0;
  return next;
}

// The three parts of a step. `ahead`: the tile to fetch, or nullptr.
template <class Cache, int kRows>
struct Pass {
  using Stored = typename Cache::Stored;
  static void scores(const AttendArgs& args, const Step<Stored>& step, const Tile<Stored>* ahead, float (*scores)[kTile]) {
    const float* q[kRows];
    for (int r = 0; r < kRows; ++r) q[r] = args.q + (step.row + r) / args.heads * args.q_stride + (step.row + r) % args.heads * args.head_dim;
    if (ahead) {
      tile_scores<Cache, kRows, true>(step.tile, step.begin, step.end, *ahead, q, args.head_dim, scores);
    } else {
      tile_scores<Cache, kRows, false>(step.tile, step.begin, step.end, step.tile, q, args.head_dim, scores);
    }
  }
  static void weights(const AttendArgs& args, const Step<Stored>& step, float (*scores)[kTile], V* factors) {
    for (int r = 0; r < kRows; ++r) {
      const RowState state = row_state(args, step.row + r);
      const std::int64_t token = (step.row + r) / args.heads;
      const int begin = tile_begin(args, step.tile.position, token), end = tile_end(args, step.tile.position, token);
      factors[r] = end - begin == kTile ? tile_weights<true>(scores[r], 0, kTile, args.scale, state) : tile_weights<false>(scores[r], begin, end, args.scale, state);
    }
  }
  static void values(const AttendArgs& args, const Step<Stored>& step, const Tile<Stored>* ahead, const float (*weights)[kTile], const V* factors) {
    RowState states[kRows];
    for (int r = 0; r < kRows; ++r) states[r] = row_state(args, step.row + r);
    if (ahead) {
      row_values<Cache, kRows, true>(step.tile, step.begin, step.end, *ahead, weights, factors, states, args.head_dim);
    } else {
      row_values<Cache, kRows, false>(step.tile, step.begin, step.end, step.tile, weights, factors, states, args.head_dim);
    }
  }
};

// body(Pass) with the pass for the rows of a step.
template <class Cache, class Body>
inline void with_pass(int rows, Body&& body) {
  switch (rows) {
    case 1: return body(Pass<Cache, 1>{});
    case 2: return body(Pass<Cache, 2>{});
    case 3: return body(Pass<Cache, 3>{});
    default: return body(Pass<Cache, 4>{});
  }
}

template <class Cache>
void attend(const AttendArgs& args) {
  using Stored = typename Cache::Stored;
  const std::int64_t rows = args.tokens * args.heads;
  for (std::int64_t row = 0; row < rows; ++row) {
    const RowState state = row_state(args, row);
    std::memset(state.sum, 0, static_cast<std::size_t>(state_floats(args.head_dim)) * sizeof(float));
    *state.max = -__builtin_inff();
  }

  // The next step's scores come between a step's weights and its values: independent products to run beside the exponentials' long chain.
  alignas(64) float scores[2][kMaxPassRows][kTile];
  V factors[kMaxPassRows];
  int turn = 0;
  const auto first_of_tile = [&](const Step<Stored>& step) { return step.row == step.tile.tokens_begin * args.heads; };
  Step<Stored> step = step_at<Stored>(args, seen_from(args, 0) / kTile * kTile);
  Step<Stored> next = step_after(args, step);
  // The tile behind that of a step, from what follows the step; the last tile itself where there is none.
  const auto tile_behind = [&](const Step<Stored>& of, const Step<Stored>& following) {
    const std::int64_t position = of.tile.position + kTile;
    return following.tile.position == position ? following.tile : position < seen_to(args, args.tokens - 1) ? tile_at<Stored>(args, position) : of.tile;
  };
  Tile<Stored> keys_ahead = args.cold ? tile_behind(step, next) : step.tile, values_ahead = keys_ahead;
  with_pass<Cache>(step.rows, [&](auto pass) { pass.scores(args, step, args.cold ? &keys_ahead : nullptr, scores[0]); });
  for (;;) {
    const Step<Stored> after = next.rows ? step_after(args, next) : next;
    const bool fetch_values = args.cold && first_of_tile(step), fetch_keys = args.cold && next.rows && first_of_tile(next);
    if (fetch_values) values_ahead = keys_ahead;
    if (fetch_keys) keys_ahead = tile_behind(next, after);
    with_pass<Cache>(step.rows, [&](auto pass) { pass.weights(args, step, scores[turn], factors); });
    if (next.rows) with_pass<Cache>(next.rows, [&](auto pass) { pass.scores(args, next, fetch_keys ? &keys_ahead : nullptr, scores[turn ^ 1]); });
    with_pass<Cache>(step.rows, [&](auto pass) { pass.values(args, step, fetch_values ? &values_ahead : nullptr, scores[turn], factors); });
    if (!next.rows) break;
    step = next;
    next = after;
    turn ^= 1;
  }

  for (std::int64_t row = 0; row < rows; ++row) {
    const RowState state = row_state(args, row);
    const V sum = set1(reduce_add(load(state.sum)));
    float* out = args.out + row / args.heads * args.out_stride + row % args.heads * args.head_dim;
    for (std::int64_t d = 0; d < args.head_dim; d += kUnit) {
      const Pair mean = Cache::in_order({div(load(state.weighted + d), sum), div(load(state.weighted + d + kLanes), sum)});
      const std::int64_t count = args.head_dim - d;
      store_first(out + d, mean.even, count < kLanes ? count : kLanes);
      if (count > kLanes) store_first(out + d + kLanes, mean.odd, count < kUnit ? count - kLanes : kLanes);
    }
  }
}
