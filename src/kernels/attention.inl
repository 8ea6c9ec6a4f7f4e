// Attention of G heads of one token over one KV head's paged cache, against the vocabulary of isa/<isa>/vec.h.
// Included once by isa/<isa>/vector.cc after vector.inl, in a nameless namespace.
//
// One step takes a tile of 64 keys that starts at a multiple of 64: scores with keys as lanes, the running maximum, weights,
// then values with D as lanes. The tile stays in the first-level cache while the heads pass over it, at most four at a time.
// Every number is one fixed chain of operations (D ascending in a score, keys ascending in a value, tiles ascending), so neither
// the heads that share a pass nor the registers that share a loop change a bit. A cold cache is fetched one tile ahead: its blocks are
// short and scattered, so the hardware sees no stream to follow.
constexpr int kTile = 64;
constexpr int kSubtile = 16;  // keys that are contiguous in a block
constexpr int kTileVectors = kTile / kLanes;
constexpr int kSubtileVectors = kSubtile / kLanes;
constexpr int kMaxPassHeads = 4;
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

// What of one tile is visible, and where it lies.
template <class Stored>
struct Tile {
  int begin, end;                          // visible keys, 0 <= begin < end <= kTile
  const Stored* keys[kTile / kSubtile];    // of subtiles; one without a visible key repeats one that has
  const Stored* values[kTile / kSubtile];  // the subtile's first row
};

// A head's state between tiles. `sum` and `weighted` are scaled by exp(-max).
struct HeadState {
  float* max;       // [1]
  float* sum;       // [kLanes]
  float* weighted;  // [ceil(D / kUnit)][2][kLanes]
};

template <class Stored>
Tile<Stored> tile_at(const AttendArgs& args, std::int64_t position) {
  Tile<Stored> tile;
  tile.begin = args.begin > position ? static_cast<int>(args.begin - position) : 0;
  tile.end = args.end < position + kTile ? static_cast<int>(args.end - position) : kTile;
  for (int s = tile.begin / kSubtile; s * kSubtile < tile.end; ++s) {
    const std::int64_t key = position + s * kSubtile;
    const std::int64_t block = args.block_table[key / args.block_size] * args.block_stride;
    const std::int64_t offset = key % args.block_size * args.head_dim;  // elements; the same for keys and values
    tile.keys[s] = reinterpret_cast<const Stored*>(args.keys + block) + offset;
    tile.values[s] = reinterpret_cast<const Stored*>(args.values + block) + offset;
  }
  const int first_seen = tile.begin / kSubtile, last_seen = (tile.end - 1) / kSubtile;
  for (int s = 0; s < kTile / kSubtile; ++s) {
    const int seen = s < first_seen ? first_seen : s > last_seen ? last_seen : s;
    tile.keys[s] = tile.keys[seen];
    tile.values[s] = tile.values[seen];
  }
  return tile;
}

// Lane vectors whose scores are summed at once: as many as the registers hold.
constexpr int score_vectors(int heads) { return kRegisters == 32 ? (heads <= 2 ? 4 : 2) : heads == 1 ? 4 : heads == 2 ? 2 : 1; }

// scores[head][key] = q . key, even and odd d summed apart, for the tile's visible keys; the other entries are unspecified.
// kFetch: brings the keys of `ahead` nearer on the way.
template <class Cache, int kHeads, bool kFetch>
inline void tile_scores(const Tile<typename Cache::Stored>& tile, const Tile<typename Cache::Stored>& ahead, const float* q, std::int64_t head_dim, float (*scores)[kTile]) {
  constexpr int kVectors = score_vectors(kHeads);
  for (int base = tile.begin / kLanes / kVectors * kVectors; base * kLanes < tile.end; base += kVectors) {
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
        even[h] = set1(q[h * head_dim + d]);
        odd[h] = set1(q[h * head_dim + d + 1]);
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

// Turns one head's scores into weights exp(score - max), 0 where unseen; returns the factor exp(old max - new max). kWhole: every key is seen.
template <bool kWhole>
inline V tile_weights(float* scores, int begin, int end, float scale, const HeadState& state) {
  const V lowest = set1(-__builtin_inff());
  V most = lowest;
  V scaled[kTileVectors];
  for (int v = 0; v < kTileVectors; ++v) {
    scaled[v] = mul(load(scores + v * kLanes), set1(scale));
    if (!kWhole) {
      const int from = begin - v * kLanes, to = end - v * kLanes;
      const Lanes seen = without(first(to < 0 ? 0 : to > kLanes ? kLanes : to), first(from < 0 ? 0 : from > kLanes ? kLanes : from));
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
  const V factor = exp(sub(set1(old_max), set1(new_max)));
  store(state.sum, fma(load(state.sum), factor, sum));
  *state.max = new_max;
  return factor;
}

// weighted = weighted * factor + sum over visible keys of weight * value, for kUnits units from `unit`; kTail: one unit of `tail` elements.
template <class Cache, int kHeads, int kUnits, bool kTail, bool kFetch>
inline void tile_values(const Tile<typename Cache::Stored>& tile, const Tile<typename Cache::Stored>& ahead, const float (*weights)[kTile], const V* factors, const HeadState* states,
                        std::int64_t head_dim, std::int64_t unit, std::int64_t tail) {
  using Stored = typename Cache::Stored;
  constexpr int kLine = 64 / sizeof(Stored);
  Pair sum[kHeads][kUnits];
  for (int h = 0; h < kHeads; ++h)
    for (int u = 0; u < kUnits; ++u) sum[h][u] = {zero(), zero()};
  for (int s = tile.begin / kSubtile; s * kSubtile < tile.end; ++s) {
    const int begin = tile.begin > s * kSubtile ? tile.begin : s * kSubtile;
    const int end = tile.end < (s + 1) * kSubtile ? tile.end : (s + 1) * kSubtile;
    const std::int64_t start = (begin - s * kSubtile) * head_dim + unit * kUnit;
    const Stored *row = tile.values[s] + start, *ahead_row = ahead.values[s] + start;
    for (int key = begin; key < end; ++key, row += head_dim, ahead_row += head_dim) {
      if (kFetch)
        for (int element = 0; element < kUnits * kUnit; element += kLine) fetch(ahead_row + element);
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
inline void row_values(const Tile<typename Cache::Stored>& tile, const Tile<typename Cache::Stored>& ahead, const float (*weights)[kTile], const V* factors, const HeadState* states,
                       std::int64_t head_dim) {
  constexpr int kUnits = value_units(kHeads);
  const std::int64_t units = head_dim / kUnit, tail = head_dim % kUnit;
  std::int64_t unit = 0;
  for (; unit + kUnits <= units; unit += kUnits) tile_values<Cache, kHeads, kUnits, false, kFetch>(tile, ahead, weights, factors, states, head_dim, unit, 0);
  for (; unit < units; ++unit) tile_values<Cache, kHeads, 1, false, kFetch>(tile, ahead, weights, factors, states, head_dim, unit, 0);
  if (tail) tile_values<Cache, kHeads, 1, true, kFetch>(tile, ahead, weights, factors, states, head_dim, unit, tail);
}

// Floats of one head's state: sum, weighted, max.
inline std::int64_t state_floats(std::int64_t head_dim) { return kLanes + (head_dim + kUnit - 1) / kUnit * kUnit + 1; }

std::int64_t attend_scratch(std::int64_t heads, std::int64_t head_dim) { return heads * state_floats(head_dim); }

inline HeadState head_state(const AttendArgs& args, std::int64_t head) {
  float* base = args.scratch + head * state_floats(args.head_dim);
  return {base + state_floats(args.head_dim) - 1, base, base + kLanes};
}

// One tile and the one to four heads that pass over it together.
template <class Stored>
struct Step {
  Tile<Stored> tile;
  std::int64_t position;  // of the tile's first key
  std::int64_t head;
};

template <class Stored>
Step<Stored> step_after(const AttendArgs& args, const Step<Stored>& step) {
  if (step.head + kMaxPassHeads < args.heads) return {step.tile, step.position, step.head + kMaxPassHeads};
  const std::int64_t position = step.position + kTile;
  return {position < args.end ? tile_at<Stored>(args, position) : step.tile, position, 0};
}

// The three parts of a step. `ahead`: the tile to fetch, or nullptr.
template <class Cache, int kHeads>
struct Pass {
  using Stored = typename Cache::Stored;
  static void scores(const AttendArgs& args, const Step<Stored>& step, const Tile<Stored>* ahead, float (*scores)[kTile]) {
    const float* q = args.q + step.head * args.head_dim;
    if (ahead) {
      tile_scores<Cache, kHeads, true>(step.tile, *ahead, q, args.head_dim, scores);
    } else {
      tile_scores<Cache, kHeads, false>(step.tile, step.tile, q, args.head_dim, scores);
    }
  }
  static void weights(const AttendArgs& args, const Step<Stored>& step, float (*scores)[kTile], V* factors) {
    const bool whole = step.tile.begin == 0 && step.tile.end == kTile;
    for (int h = 0; h < kHeads; ++h) {
      const HeadState state = head_state(args, step.head + h);
      factors[h] = whole ? tile_weights<true>(scores[h], 0, kTile, args.scale, state) : tile_weights<false>(scores[h], step.tile.begin, step.tile.end, args.scale, state);
    }
  }
  static void values(const AttendArgs& args, const Step<Stored>& step, const Tile<Stored>* ahead, const float (*weights)[kTile], const V* factors) {
    HeadState states[kHeads];
    for (int h = 0; h < kHeads; ++h) states[h] = head_state(args, step.head + h);
    if (ahead) {
      row_values<Cache, kHeads, true>(step.tile, *ahead, weights, factors, states, args.head_dim);
    } else {
      row_values<Cache, kHeads, false>(step.tile, step.tile, weights, factors, states, args.head_dim);
    }
  }
};

// body(Pass) with the pass for the heads of a step.
template <class Cache, class Body>
inline void with_pass(std::int64_t heads, Body&& body) {
  switch (heads) {
    case 1: return body(Pass<Cache, 1>{});
    case 2: return body(Pass<Cache, 2>{});
    case 3: return body(Pass<Cache, 3>{});
    default: return body(Pass<Cache, 4>{});
  }
}

template <class Cache>
void attend(const AttendArgs& args) {
  using Stored = typename Cache::Stored;
  for (std::int64_t head = 0; head < args.heads; ++head) {
    const HeadState state = head_state(args, head);
    std::memset(state.sum, 0, static_cast<std::size_t>(state_floats(args.head_dim)) * sizeof(float));
    *state.max = -__builtin_inff();
  }

  // The next step's scores come between a step's weights and its values: independent products to run beside the exponentials' long chain.
  alignas(64) float scores[2][kMaxPassHeads][kTile];
  V factors[kMaxPassHeads];
  int turn = 0;
  const std::int64_t begin = args.begin / kTile * kTile;
  Step<Stored> step{tile_at<Stored>(args, begin), begin, 0};
  Step<Stored> next = step_after(args, step);
  with_pass<Cache>(args.heads, [&](auto pass) { pass.scores(args, step, args.cold ? &next.tile : nullptr, scores[0]); });
  for (;;) {
    const bool more = next.position < args.end;
    const Step<Stored> after = more ? step_after(args, next) : next;
    const bool fetch_values = args.cold && step.head == 0, fetch_keys = args.cold && next.head == 0;
    with_pass<Cache>(args.heads - step.head, [&](auto pass) { pass.weights(args, step, scores[turn], factors); });
    if (more) with_pass<Cache>(args.heads - next.head, [&](auto pass) { pass.scores(args, next, fetch_keys ? &after.tile : nullptr, scores[turn ^ 1]); });
    with_pass<Cache>(args.heads - step.head, [&](auto pass) { pass.values(args, step, fetch_values ? &next.tile : nullptr, scores[turn], factors); });
    if (!more) break;
    step = next;
    next = after;
    turn ^= 1;
  }

  for (std::int64_t head = 0; head < args.heads; ++head) {
    const HeadState state = head_state(args, head);
    const V sum = set1(reduce_add(load(state.sum)));
    float* out = args.out + head * args.head_dim;
    for (std::int64_t d = 0; d < args.head_dim; d += kUnit) {
      const Pair mean = Cache::in_order({div(load(state.weighted + d), sum), div(load(state.weighted + d + kLanes), sum)});
      const std::int64_t count = args.head_dim - d;
      store_first(out + d, mean.even, count < kLanes ? count : kLanes);
      if (count > kLanes) store_first(out + d + kLanes, mean.odd, count < kUnit ? count - kLanes : kLanes);
    }
  }
}
