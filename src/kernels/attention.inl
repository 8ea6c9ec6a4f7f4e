// Attention of G heads of one token over one KV head's paged cache, against the vocabulary of isa/<isa>/vec.h.
// Included once by isa/<isa>/vector.cc after vector.inl, in a nameless namespace.
//
// One step takes a tile of 64 keys that starts at a multiple of 64: scores with keys as lanes, the running maximum, weights,
// then values with D as lanes. The tile stays in the first-level cache while the heads pass over it, at most four at a time.
// Every number is one fixed chain of operations (D ascending in a score, keys ascending in a value, tiles ascending), so neither
// the heads that share a pass nor the registers that share a loop change a bit.
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
  static Pair values(const float* p) { return {load(p), load(p + kLanes)}; }
  static Pair values_first(const float* p, std::int64_t n) { return n > kLanes ? Pair{load(p), load_first(p + kLanes, n - kLanes)} : Pair{load_first(p, n), zero()}; }
  static Pair in_order(Pair v) { return v; }
};

struct Bf16Cache {
  using Stored = std::uint16_t;
  static constexpr int kKeyVector = 2 * kLanes;
  static Pair keys(const std::uint16_t* p) { return load_bf16(p); }
  static Pair values(const std::uint16_t* p) { return load_bf16(p); }
  static Pair values_first(const std::uint16_t* p, std::int64_t n) { return load_bf16_first(p, n / 2); }
  static Pair in_order(Pair v) { return interleave(v); }
};

// What of one tile is visible, and where it lies.
template <class Stored>
struct Tile {
  int begin, end;                          // visible keys, 0 <= begin < end <= kTile
  const Stored* keys[kTile / kSubtile];    // of subtiles that hold a visible key
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
  return tile;
}

// Lane vectors whose scores are summed at once: as many as the registers hold.
constexpr int score_vectors(int heads) { return kRegisters == 32 ? 4 : heads == 1 ? 8 : heads == 2 ? 4 : 2; }

// scores[head][key] = q . key for the tile's visible keys; other entries are unspecified (but never from unseen subtiles).
template <class Cache, int kHeads>
inline void tile_scores(const Tile<typename Cache::Stored>& tile, const float* q, std::int64_t head_dim, float (*scores)[kTile]) {
  constexpr int kVectors = score_vectors(kHeads);
  const int first_seen = tile.begin / kLanes, last_seen = (tile.end - 1) / kLanes;
  for (int base = first_seen / kVectors * kVectors; base <= last_seen; base += kVectors) {
    const typename Cache::Stored* keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {  // lanes that nobody sees repeat a seen vector
      const int vector = base + v < first_seen ? first_seen : base + v > last_seen ? last_seen : base + v;
      keys[v] = tile.keys[vector / kSubtileVectors] + vector % kSubtileVectors * Cache::kKeyVector;
    }
    V dot[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) dot[h][v] = zero();
    for (std::int64_t d = 0; d < head_dim; d += 2) {
      V even[kHeads], odd[kHeads];
      for (int h = 0; h < kHeads; ++h) {
        even[h] = set1(q[h * head_dim + d]);
        odd[h] = set1(q[h * head_dim + d + 1]);
      }
      for (int v = 0; v < kVectors; ++v) {
        const Pair key = Cache::keys(keys[v] + d * kSubtile);
        for (int h = 0; h < kHeads; ++h) dot[h][v] = fma(odd[h], key.odd, fma(even[h], key.even, dot[h][v]));
      }
    }
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) store(scores[h] + (base + v) * kLanes, dot[h][v]);
  }
}

// Turns one head's scores into weights exp(score - max), 0 where unseen; returns the factor exp(old max - new max).
inline V tile_weights(float* scores, int begin, int end, float scale, const HeadState& state) {
  const V lowest = set1(-__builtin_inff());
  V most = lowest;
  V scaled[kTileVectors];
  Lanes seen[kTileVectors];
  for (int v = 0; v < kTileVectors; ++v) {
    const int from = begin - v * kLanes, to = end - v * kLanes;
    seen[v] = without(first(to < 0 ? 0 : to > kLanes ? kLanes : to), first(from < 0 ? 0 : from > kLanes ? kLanes : from));
    scaled[v] = select(seen[v], mul(load(scores + v * kLanes), set1(scale)), lowest);
    most = max(most, scaled[v]);
  }
  const V old_max = set1(*state.max);
  const V new_max = max(old_max, set1(reduce_max(most)));
  V sum = zero();
  for (int v = 0; v < kTileVectors; ++v) {
    const V weight = select(seen[v], exp(sub(scaled[v], new_max)), zero());
    store(scores + v * kLanes, weight);
    sum = add(sum, weight);
  }
  const V factor = exp(sub(old_max, new_max));
  store(state.sum, fma(load(state.sum), factor, sum));
  store_first(state.max, new_max, 1);
  return factor;
}

// weighted = weighted * factor + sum over visible keys of weight * value, for kUnits units from `unit`; kTail: one unit of `tail` elements.
template <class Cache, int kHeads, int kUnits, bool kTail>
inline void tile_values(const Tile<typename Cache::Stored>& tile, const float (*weights)[kTile], const V* factors, const HeadState* states, std::int64_t head_dim,
                        std::int64_t unit, std::int64_t tail) {
  Pair sum[kHeads][kUnits];
  for (int h = 0; h < kHeads; ++h)
    for (int u = 0; u < kUnits; ++u) sum[h][u] = {zero(), zero()};
  for (int s = tile.begin / kSubtile; s * kSubtile < tile.end; ++s) {
    const int begin = tile.begin > s * kSubtile ? tile.begin : s * kSubtile;
    const int end = tile.end < (s + 1) * kSubtile ? tile.end : (s + 1) * kSubtile;
    const typename Cache::Stored* row = tile.values[s] + (begin - s * kSubtile) * head_dim + unit * kUnit;
    for (int key = begin; key < end; ++key, row += head_dim) {
      for (int u = 0; u < kUnits; ++u) {
        const Pair value = kTail ? Cache::values_first(row, tail) : Cache::values(row + u * kUnit);
        for (int h = 0; h < kHeads; ++h) {
          const V weight = set1(weights[h][key]);
          sum[h][u].even = fma(weight, value.even, sum[h][u].even);
          sum[h][u].odd = fma(weight, value.odd, sum[h][u].odd);
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

template <class Cache, int kHeads>
void tile_step(const AttendArgs& args, const Tile<typename Cache::Stored>& tile, std::int64_t head, const HeadState* states) {
  alignas(64) float scores[kHeads][kTile];
  V factors[kHeads];
  tile_scores<Cache, kHeads>(tile, args.q + head * args.head_dim, args.head_dim, scores);
  for (int h = 0; h < kHeads; ++h) factors[h] = tile_weights(scores[h], tile.begin, tile.end, args.scale, states[h]);
  constexpr int kUnits = value_units(kHeads);
  const std::int64_t units = args.head_dim / kUnit, tail = args.head_dim % kUnit;
  std::int64_t unit = 0;
  for (; unit + kUnits <= units; unit += kUnits) tile_values<Cache, kHeads, kUnits, false>(tile, scores, factors, states, args.head_dim, unit, 0);
  for (; unit < units; ++unit) tile_values<Cache, kHeads, 1, false>(tile, scores, factors, states, args.head_dim, unit, 0);
  if (tail) tile_values<Cache, kHeads, 1, true>(tile, scores, factors, states, args.head_dim, unit, tail);
}

// Floats of one head's state: sum, weighted, max.
inline std::int64_t state_floats(std::int64_t head_dim) { return kLanes + (head_dim + kUnit - 1) / kUnit * kUnit + 1; }

std::int64_t attend_scratch(std::int64_t heads, std::int64_t head_dim) { return heads * state_floats(head_dim); }

inline HeadState head_state(const AttendArgs& args, std::int64_t head) {
  float* base = args.scratch + head * state_floats(args.head_dim);
  return {base + state_floats(args.head_dim) - 1, base, base + kLanes};
}

template <class Cache>
void attend(const AttendArgs& args) {
  for (std::int64_t head = 0; head < args.heads; ++head) {
    const HeadState state = head_state(args, head);
    std::memset(state.sum, 0, static_cast<std::size_t>(state_floats(args.head_dim)) * sizeof(float));
    *state.max = -__builtin_inff();
  }
  for (std::int64_t position = args.begin / kTile * kTile; position < args.end; position += kTile) {
    const Tile<typename Cache::Stored> tile = tile_at<typename Cache::Stored>(args, position);
    for (std::int64_t head = 0; head < args.heads;) {
      const std::int64_t left = args.heads - head;
      HeadState states[kMaxPassHeads];
      for (int h = 0; h < kMaxPassHeads && h < left; ++h) states[h] = head_state(args, head + h);
      if (left >= 4) {
        tile_step<Cache, 4>(args, tile, head, states);
      } else if (left == 3) {
        tile_step<Cache, 3>(args, tile, head, states);
      } else if (left == 2) {
        tile_step<Cache, 2>(args, tile, head, states);
      } else {
        tile_step<Cache, 1>(args, tile, head, states);
      }
      head += left < kMaxPassHeads ? left : kMaxPassHeads;
    }
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
