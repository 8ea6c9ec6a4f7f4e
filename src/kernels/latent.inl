// Attention over latent rows (latent.h), against the vocabulary of isa/<isa>/vec.h. Included once by isa/<isa>/latent.cc after exp.inl, in a nameless namespace.
//
// Both steps are small matrix products over a tile of 64 rows. Query rows - a token's heads, padded to 16 - lie in panels of 16 lanes:
//   scores[row][head]  = sum over d of latent[row][d] * q[d][head]          one broadcast latent number times a vector of heads
//   weighted[head][d]  = sum over rows of weight[head][row] * latent[row][d]  one broadcast weight times a vector of d
// so maximum and sum of the softmax are lane by lane, and a latent row is read in the order in which it is stored. Every output is one chain of operations
// (d ascending, rows ascending, tiles ascending) whatever the shape of the register tile and the other rows.
//
// `Math` says what a four-byte unit of the operands is: one float, or two BF16 that a dot instruction sums.
constexpr int kTile = 64;
constexpr int kSubtile = 16;  // rows that are contiguous in a block
constexpr int kPanel = 16;
constexpr int kPanelVectors = kPanel / kLanes;
constexpr int kMostPanels = kRegisters == 32 ? 4 : 1;
constexpr int rows_at_once(int panels) { return kRegisters == 16 || panels == 4 ? 4 : panels == 2 ? 8 : 16; }  // divides a panel

template <int kN>
struct Constant {
  static constexpr int kValue = kN;
};

inline float unit_at(const float* p) {  // the bits may be two BF16
  float unit;
  __builtin_memcpy(&unit, p, sizeof unit);
  return unit;
}

// body(first panel, Constant<panels>) over [begin, end).
template <class Body>
inline void over_panels(std::int64_t begin, std::int64_t end, Body&& body) {
  std::int64_t p = begin;
  if constexpr (kMostPanels == 4) {
    for (; p + 4 <= end; p += 4) body(p, Constant<4>{});
    for (; p + 2 <= end; p += 2) body(p, Constant<2>{});
  }
  for (; p < end; ++p) body(p, Constant<1>{});
}

// sum[m][v] = sum over k < count of a[m * a_m + k * a_k] (broadcast) * b[k * b_k + panel * b_p + lanes]. done(m, panel, vector of the panel, sum).
template <class Math, int kRows, int kPanels, class Done>
inline void product(const float* a, std::int64_t a_m, std::int64_t a_k, const float* b, std::int64_t b_k, std::int64_t b_p, std::int64_t count, Done&& done) {
  constexpr int kVectors = kPanels * kPanelVectors;
  V sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v) sum[m][v] = zero();
  for (std::int64_t k = 0; k < count; ++k, a += a_k, b += b_k) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + v / kPanelVectors * b_p + v % kPanelVectors * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const V left = set1(unit_at(a + m * a_m));
      for (int v = 0; v < kVectors; ++v) sum[m][v] = Math::multiply_add(left, right[v], sum[m][v]);
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v) done(m, v / kPanelVectors, v % kPanelVectors, sum[m][v]);
}

// Operands of one tile. Rows [begin, end) are seen by some token; the others may be anything in `rows`, and are zero in `values` beside a seen one.
struct LatentTile {
  int begin, end;                       // 0 <= begin < end <= kTile
  const float* rows[kTile / kSubtile];  // units [16][row_stride], of subtiles with a seen row
  std::int64_t row_stride;
  const float* values;                  // unit k (rows k * Math::kUnit on) of panel p at k * value_k + p * value_p
  std::int64_t value_k, value_p;
};

// The scratch of a call, in floats.
struct LatentScratch {
  std::int64_t dim, value_dim, panels;
  float* base;
  std::int64_t row_floats() const { return (dim + kPanel - 1) / kPanel * kPanel; }
  float* line() const { return base; }                                             // one row in preparation
  float* tile() const { return line() + row_floats(); }                            // rows or values of the tile as Math wants them
  float* q(std::int64_t p) const { return tile() + kTile * row_floats() + p * dim * kPanel; }  // units [dim / kUnit][16]
  float* scores(std::int64_t p) const { return q(panels) + p * kTile * kPanel; }   // [row][16], then weights, units [row / kUnit][16]
  float* weighted(std::int64_t p) const { return scores(panels) + p * kPanel * value_dim; }  // [16][value_dim]
  float* max(std::int64_t p) const { return weighted(panels) + p * kPanel; }
  float* sum(std::int64_t p) const { return max(panels) + p * kPanel; }
  float* factor(std::int64_t p) const { return sum(panels) + p * kPanel; }
  std::int64_t floats() const { return factor(panels) - base; }
};

inline std::int64_t panels_of(std::int64_t heads) { return (heads + kPanel - 1) / kPanel; }

std::int64_t latent_scratch(std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t value_dim) {
  return LatentScratch{dim, value_dim, tokens * panels_of(heads), nullptr}.floats();
}

template <class Stored>
const Stored* latent_row(const LatentArgs& args, std::int64_t position) {
  return reinterpret_cast<const Stored*>(args.latents + args.block_table[position / args.block_size] * args.block_stride) + position % args.block_size * args.dim;
}

// Brings the rows of the tile at `position` nearer, a share at each step() of `steps`: a hardware prefetcher stops at the end of a page.
struct Ahead {
  const char* subtiles[kTile / kSubtile];
  int count = 0, subtile = 0;
  std::int64_t bytes = 0, at = 0, share = 0;  // of a subtile; place in it; a step's
  template <class Stored>
  static Ahead of(const LatentArgs& args, std::int64_t position, std::int64_t last, std::int64_t steps, std::int64_t begin = 0) {
    Ahead ahead;
    for (std::int64_t j = position; j < last && j < position + kTile; j += kSubtile)
      if (j + kSubtile > begin) ahead.subtiles[ahead.count++] = reinterpret_cast<const char*>(latent_row<Stored>(args, j));
    ahead.bytes = kSubtile * args.dim * static_cast<std::int64_t>(sizeof(Stored));
    ahead.share = (ahead.count * ahead.bytes / steps + 63) / 64 * 64 + 64;
    return ahead;
  }
  void step() {
    if (subtile == count) return;
    const std::int64_t to = at + share < bytes ? at + share : bytes;
    for (const char* p = subtiles[subtile]; at < to; at += 64) fetch(p + at);
    if (at >= bytes) {
      ++subtile;
      at = 0;
    }
  }
};

// FP32 arithmetic: a unit is a float, and a tile is copied (or widened) once.
inline void widen(const float* row, std::int64_t n, float* out) {
  for (std::int64_t d = 0; d < n; d += kLanes) {
    const std::int64_t count = n - d < kLanes ? n - d : kLanes;
    store_first(out + d, load_first(row + d, count), count);
  }
}
inline void widen(const std::uint16_t* row, std::int64_t n, float* out) {
  for (std::int64_t d = 0; d < n; d += 2 * kLanes) {
    const std::int64_t count = n - d;
    const Pair v = interleave(count >= 2 * kLanes ? load_bf16(row + d) : load_bf16_first(row + d, count / 2));
    store_first(out + d, v.even, count < kLanes ? count : kLanes);
    if (count > kLanes) store_first(out + d + kLanes, v.odd, count < 2 * kLanes ? count - kLanes : kLanes);
  }
}

template <class T>
struct F32Math {
  using Stored = T;
  static constexpr int kUnit = 1;
  static constexpr float kNatural = 1;  // scores are exponents of e
  static V multiply_add(V a, V b, V c) { return fma(a, b, c); }
  static void pack_q(const float* q, std::int64_t dim, float scale, float*, float* out) {
    for (std::int64_t d = 0; d < dim; ++d) out[d * kPanel] = q[d] * scale;
  }
  static void load_tile(const LatentArgs& args, std::int64_t position, const LatentScratch& scratch, LatentTile& tile) {
    const std::int64_t stride = scratch.row_floats();
    for (int j = tile.begin; j < tile.end; ++j) widen(latent_row<Stored>(args, position + j), args.dim, scratch.tile() + j * stride);
    for (int s = 0; s < kTile / kSubtile; ++s) tile.rows[s] = scratch.tile() + s * kSubtile * stride;
    tile.row_stride = tile.value_k = stride;
    tile.values = scratch.tile();
    tile.value_p = kPanel;
  }
  // Scores of the rows [begin, end) become weights exp(score - max), in place; returns their sum.
  static V weigh(float* scores, int begin, int end, V max) {
    V sum = zero();
    for (int j = begin; j < end; ++j) {
      const V weight = exp(sub(load(scores + j * kPanel), max));
      store(scores + j * kPanel, weight);
      sum = add(sum, weight);
    }
    return sum;
  }
  static V power(V x) { return exp(x); }
};

template <class Math>
void attend_latent(const LatentArgs& args) {
  const std::int64_t head_panels = panels_of(args.heads), units = args.dim / Math::kUnit;
  const LatentScratch scratch{args.dim, args.value_dim, args.tokens * head_panels, args.scratch};
  const std::int64_t panels = scratch.panels, last = args.end + args.tokens - 1;
  const auto heads_in = [&](std::int64_t p) {
    const std::int64_t left = args.heads - p % head_panels * kPanel;
    return left < kPanel ? left : kPanel;
  };

  const std::int64_t first_position = args.begin / kTile * kTile;
  Ahead first_ahead = Ahead::of<typename Math::Stored>(args, first_position, last, args.heads * args.tokens, args.begin);
  __builtin_memset(scratch.q(0), 0, static_cast<std::size_t>(panels * args.dim * kPanel) * sizeof(float));
  __builtin_memset(scratch.weighted(0), 0, static_cast<std::size_t>(panels * kPanel * args.value_dim) * sizeof(float));
  for (std::int64_t p = 0; p < panels; ++p) {
    const float* q = args.q + p / head_panels * args.q_stride + p % head_panels * kPanel * args.dim;
    for (std::int64_t h = 0; h < heads_in(p); ++h) {
      first_ahead.step();
      Math::pack_q(q + h * args.dim, args.dim, args.scale, scratch.line(), scratch.q(p) + h);
    }
    for (int v = 0; v < kPanelVectors; ++v) {
      store(scratch.max(p) + v * kLanes, set1(-__builtin_inff()));
      store(scratch.sum(p) + v * kLanes, zero());
    }
  }

  for (std::int64_t position = first_position; position < last; position += kTile) {
    LatentTile tile;
    tile.begin = args.begin > position ? static_cast<int>(args.begin - position) : 0;
    tile.end = last - position < kTile ? static_cast<int>(last - position) : kTile;
    Math::load_tile(args, position, scratch, tile);
    const std::int64_t first_token = args.end > position ? 0 : position - args.end + 1, first_panel = first_token * head_panels;
    const auto end_of = [&](std::int64_t p) {  // the rows that a panel's token sees end here
      const std::int64_t end = args.end + p / head_panels - position;
      return end < kTile ? static_cast<int>(end) : kTile;
    };

    over_panels(first_panel, panels, [&](std::int64_t p, auto count) {
      constexpr int kPanels = decltype(count)::kValue, kRows = rows_at_once(kPanels);
      for (int row = tile.begin / kSubtile * kSubtile; row < tile.end; row += kRows)
        product<Math, kRows, kPanels>(tile.rows[row / kSubtile] + row % kSubtile * tile.row_stride, tile.row_stride, 1, scratch.q(p), kPanel, scratch.dim * kPanel, units,
                                      [&](int m, int panel, int v, V sum) { store(scratch.scores(p + panel) + (row + m) * kPanel + v * kLanes, sum); });
    });

    for (std::int64_t p = first_panel; p < panels; ++p)
      for (int v = 0; v < kPanelVectors; ++v) {
        float* scores = scratch.scores(p) + v * kLanes;
        const int end = end_of(p);
        const V old_max = load(scratch.max(p) + v * kLanes);
        V new_max = old_max;
        for (int j = tile.begin; j < end; ++j) new_max = max(new_max, load(scores + j * kPanel));
        const V factor = Math::power(sub(old_max, new_max));
        const V sum = Math::weigh(scores, tile.begin, end, new_max);
        store(scratch.max(p) + v * kLanes, new_max);
        store(scratch.sum(p) + v * kLanes, fma(load(scratch.sum(p) + v * kLanes), factor, sum));
        store(scratch.factor(p) + v * kLanes, factor);
      }

    const std::int64_t value_steps = (args.value_dim / kPanel + kMostPanels - 1) / kMostPanels * (panels - first_panel) * (kPanel / rows_at_once(kMostPanels));
    Ahead ahead = Ahead::of<typename Math::Stored>(args, position + kTile, last, value_steps);
    over_panels(0, args.value_dim / kPanel, [&](std::int64_t d, auto count) {
      constexpr int kPanels = decltype(count)::kValue, kRows = rows_at_once(kPanels);
      for (std::int64_t p = first_panel; p < panels; ++p) {
        const std::int64_t heads = heads_in(p), first_unit = tile.begin / Math::kUnit, units_end = (end_of(p) + Math::kUnit - 1) / Math::kUnit;
        for (std::int64_t h = 0; h < heads; h += kRows) {
          ahead.step();
          product<Math, kRows, kPanels>(scratch.scores(p) + first_unit * kPanel + h, 1, kPanel, tile.values + first_unit * tile.value_k + d * tile.value_p, tile.value_k, tile.value_p,
                                        units_end - first_unit, [&](int m, int panel, int v, V sum) {
                                          float* weighted = scratch.weighted(p) + (h + m) * args.value_dim + (d + panel) * kPanel + v * kLanes;
                                          store(weighted, fma(load(weighted), set1(scratch.factor(p)[h + m]), sum));
                                        });
        }
      }
    });
  }

  for (std::int64_t p = 0; p < panels; ++p) {
    const std::int64_t token = p / head_panels, first_head = p % head_panels * kPanel;
    for (std::int64_t h = 0; h < heads_in(p); ++h) {
      const V sum = set1(scratch.sum(p)[h]);
      const float* weighted = scratch.weighted(p) + h * args.value_dim;
      float* out = args.out + token * args.out_stride + (first_head + h) * args.value_dim;
      for (std::int64_t d = 0; d < args.value_dim; d += kLanes) store(out + d, div(load(weighted + d), sum));
      if (args.maxima) args.maxima[token * args.heads + first_head + h] = scratch.max(p)[h] * Math::kNatural;
      if (args.sums) args.sums[token * args.heads + first_head + h] = scratch.sum(p)[h];
    }
  }
}
