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
  std::int64_t line_at() const { return 0; }  // one row in preparation
  float* line() const { return base + line_at(); }
  std::int64_t tile_at() const { return line_at() + row_floats(); }  // rows or values of the tile as Math wants them
  float* tile() const { return base + tile_at(); }
  std::int64_t q_at(std::int64_t p) const { return tile_at() + kTile * row_floats() + p * dim * kPanel; }  // units [dim / kUnit][16]
  float* q(std::int64_t p) const { return base + q_at(p); }
  std::int64_t scores_at(std::int64_t p) const { return q_at(panels) + p * kTile * kPanel; }  // [row][16], then weights, units [row / kUnit][16]
  float* scores(std::int64_t p) const { return base + scores_at(p); }
  std::int64_t weighted_at(std::int64_t p) const { return scores_at(panels) + p * kPanel * value_dim; }  // [16][value_dim]
  float* weighted(std::int64_t p) const { return base + weighted_at(p); }
  std::int64_t max_at(std::int64_t p) const { return weighted_at(panels) + p * kPanel; }
  float* max(std::int64_t p) const { return base + max_at(p); }
  std::int64_t sum_at(std::int64_t p) const { return max_at(panels) + p * kPanel; }
  float* sum(std::int64_t p) const { return base + sum_at(p); }
  std::int64_t factor_at(std::int64_t p) const { return sum_at(panels) + p * kPanel; }
  float* factor(std::int64_t p) const { return base + factor_at(p); }
  std::int64_t floats() const { return factor_at(panels); }
};

inline std::int64_t panels_of(std::int64_t heads) { return (heads + kPanel - 1) / kPanel; }

std::int64_t latent_scratch(std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t value_dim) {
  return LatentScratch{dim, value_dim, tokens * panels_of(heads), nullptr}.floats();
}

inline std::int64_t row_dim(const LatentArgs& args) { return args.dim; }
inline std::int64_t row_dim(const ExpandArgs& args) { return args.rank + args.rope_dim; }

template <class Stored, class Args>
const Stored* latent_row(const Args& args, std::int64_t position) {
  return reinterpret_cast<const Stored*>(args.latents + args.block_table[position / args.block_size] * args.block_stride) + position % args.block_size * row_dim(args);
}

// Brings the rows of the tile at `position` nearer, a share at each step() of `steps`: a hardware prefetcher stops at the end of a page.
struct Ahead {
  const char* subtiles[kTile / kSubtile];
  int count = 0, subtile = 0;
  std::int64_t bytes = 0, at = 0, share = 0;  // of a subtile; place in it; a step's
  template <class Stored, class Args>
  static Ahead of(const Args& args, std::int64_t position, std::int64_t last, std::int64_t steps, std::int64_t begin = 0) {
    Ahead ahead;
    for (std::int64_t j = position; j < last && j < position + kTile; j += kSubtile)
      if (j + kSubtile > begin) ahead.subtiles[ahead.count++] = reinterpret_cast<const char*>(latent_row<Stored>(args, j));
    ahead.bytes = kSubtile * row_dim(args) * static_cast<std::int64_t>(sizeof(Stored));
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
  static constexpr float kScale = 1;  // on q, so that scores are exponents
  // A row of n numbers into one lane of a panel, units [n][16].
  static void pack(const float* row, std::int64_t n, float factor, float*, float* out) {
    for (std::int64_t d = 0; d < n; ++d) out[d * kPanel] = row[d] * factor;
  }
  template <class Args>
  static void load_rows(const Args& args, std::int64_t position, float* copy, LatentTile& tile) {
    const std::int64_t stride = (row_dim(args) + kPanel - 1) / kPanel * kPanel;
    for (int j = tile.begin; j < tile.end; ++j) widen(latent_row<Stored>(args, position + j), row_dim(args), copy + j * stride);
    for (int s = 0; s < kTile / kSubtile; ++s) tile.rows[s] = copy + s * kSubtile * stride;
    tile.row_stride = stride;
  }
  static void load_tile(const LatentArgs& args, std::int64_t position, const LatentScratch& scratch, LatentTile& tile) {
    load_rows(args, position, scratch.tile(), tile);
    tile.values = scratch.tile();
    tile.value_k = tile.row_stride;
    tile.value_p = kPanel;
  }
  // Computed keys [end][n] with the rows' rotary parts behind them, as units; `narrow` is room for them.
  static const float* key_units(const LatentTile& tile, const ExpandArgs& args, float* keys, float*) {
    for (int j = 0; j < tile.end; ++j)
      __builtin_memcpy(keys + j * (args.nope_dim + args.rope_dim) + args.nope_dim, tile.rows[j / kSubtile] + j % kSubtile * tile.row_stride + args.rank, static_cast<std::size_t>(args.rope_dim) * sizeof(float));
    return keys;
  }
  static void value_units(LatentTile& tile, const float* values, std::int64_t n, float*) {
    tile.values = values;
    tile.value_k = n;
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
      Math::pack(q + h * args.dim, args.dim, args.scale * Math::kScale, scratch.line(), scratch.q(p) + h);
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

// ---- the plain form: tokens are the lanes, one head a call

struct ExpandScratch {
  std::int64_t nope_dim, rope_dim, rank, value_dim, panels;  // panels of tokens
  float* base;
  std::int64_t key_dim() const { return nope_dim + rope_dim; }
  std::int64_t row_floats() const { return (rank + rope_dim + kPanel - 1) / kPanel * kPanel; }
  std::int64_t line_at() const { return 0; }
  float* line() const { return base + line_at(); }
  std::int64_t rows_at() const { return line_at() + (row_floats() > nope_dim + rope_dim + kPanel ? row_floats() : nope_dim + rope_dim + kPanel); }
  float* rows() const { return base + rows_at(); }
  std::int64_t weights_at() const { return rows_at() + kTile * row_floats(); }  // of keys, then of values: panels of units [rank / kUnit][16]
  float* weights() const { return base + weights_at(); }
  std::int64_t keys_at() const { return weights_at() + (nope_dim + value_dim) * rank; }  // [kTile][key_dim]
  float* keys() const { return base + keys_at(); }
  std::int64_t key_units_at() const { return keys_at() + kTile * key_dim(); }
  float* key_units() const { return base + key_units_at(); }
  std::int64_t values_at() const { return key_units_at() + kTile * key_dim(); }  // [kTile][value_dim]
  float* values() const { return base + values_at(); }
  std::int64_t value_units_at() const { return values_at() + kTile * value_dim; }
  float* value_units() const { return base + value_units_at(); }
  std::int64_t q_at(std::int64_t p) const { return value_units_at() + kTile * value_dim + p * key_dim() * kPanel; }
  float* q(std::int64_t p) const { return base + q_at(p); }
  std::int64_t scores_at(std::int64_t p) const { return q_at(panels) + p * kTile * kPanel; }
  float* scores(std::int64_t p) const { return base + scores_at(p); }
  std::int64_t weighted_at(std::int64_t p) const { return scores_at(panels) + p * kPanel * value_dim; }
  float* weighted(std::int64_t p) const { return base + weighted_at(p); }
  std::int64_t max_at(std::int64_t p) const { return weighted_at(panels) + p * kPanel; }
  float* max(std::int64_t p) const { return base + max_at(p); }
  std::int64_t sum_at(std::int64_t p) const { return max_at(panels) + p * kPanel; }
  float* sum(std::int64_t p) const { return base + sum_at(p); }
  std::int64_t factor_at(std::int64_t p) const { return sum_at(panels) + p * kPanel; }
  float* factor(std::int64_t p) const { return base + factor_at(p); }
  std::int64_t floats() const { return factor_at(panels); }
};

std::int64_t expand_scratch(std::int64_t tokens, std::int64_t nope_dim, std::int64_t rope_dim, std::int64_t rank, std::int64_t value_dim) {
  return ExpandScratch{nope_dim, rope_dim, rank, value_dim, panels_of(tokens), nullptr}.floats();
}

// Element (output, input) of packed panels of `inputs` inputs.
inline float weight_at(const void* codes, bool wide, std::int64_t inputs, std::int64_t output, std::int64_t input) {
  const std::int64_t panel = output / kPanel * kPanel, lane = output % kPanel;
  if (wide) return static_cast<const float*>(codes)[panel * inputs + input * kPanel + lane];
  const std::uint16_t half = static_cast<const std::uint16_t*>(codes)[panel * ((inputs + 1) / 2 * 2) + (input / 2 * kPanel + lane) * 2 + input % 2];
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Math>
void expand(const ExpandArgs& args) {
  const ExpandScratch scratch{args.nope_dim, args.rope_dim, args.rank, args.value_dim, panels_of(args.tokens), args.scratch};
  const std::int64_t key_dim = scratch.key_dim(), panels = scratch.panels, last = args.end + args.tokens - 1, rank_units = args.rank / Math::kUnit;

  // Keys' weights, turned to [N, R]; a row of them lies in no cache line of its own, so a few are gathered at a time.
  for (std::int64_t n = 0; n < args.nope_dim; ++n) {
    for (std::int64_t r = 0; r < args.rank; ++r) scratch.line()[r] = weight_at(args.k_b, args.wide, args.nope_dim, r, n);
    Math::pack(scratch.line(), args.rank, 1, scratch.keys(), scratch.weights() + n / kPanel * rank_units * kPanel + n % kPanel);
  }
  float* value_weights = scratch.weights() + args.nope_dim * args.rank;
  const float* v_b = static_cast<const float*>(args.v_b);
  if (args.wide != (Math::kUnit == 1)) {
    for (std::int64_t n = 0; n < args.value_dim; ++n) {
      for (std::int64_t r = 0; r < args.rank; ++r) scratch.line()[r] = weight_at(args.v_b, args.wide, args.rank, n, r);
      Math::pack(scratch.line(), args.rank, 1, scratch.keys(), value_weights + n / kPanel * rank_units * kPanel + n % kPanel);
    }
    v_b = value_weights;
  }

  __builtin_memset(scratch.q(0), 0, static_cast<std::size_t>(panels * key_dim * kPanel) * sizeof(float));
  __builtin_memset(scratch.weighted(0), 0, static_cast<std::size_t>(panels * kPanel * args.value_dim) * sizeof(float));
  for (std::int64_t t = 0; t < args.tokens; ++t) Math::pack(args.q + t * args.q_stride, key_dim, args.scale * Math::kScale, scratch.line(), scratch.q(t / kPanel) + t % kPanel);
  for (std::int64_t i = 0; i < panels * kPanel; ++i) {
    scratch.max(0)[i] = -__builtin_inff();
    scratch.sum(0)[i] = 0;
  }

  for (std::int64_t position = 0; position < last; position += kTile) {
    LatentTile tile;
    tile.begin = 0;
    tile.end = last - position < kTile ? static_cast<int>(last - position) : kTile;
    Math::load_rows(args, position, scratch.rows(), tile);
    const std::int64_t first_panel = args.end > position ? 0 : (position - args.end + 1) / kPanel;
    // Rows before this are seen by all tokens of a panel, and by lane l those before this + l.
    const auto seen_by_all = [&](std::int64_t p) {
      const std::int64_t end = args.end + p * kPanel - position;
      return end < kTile ? static_cast<int>(end) : kTile;
    };
    const auto end_of = [&](std::int64_t p) {
      const int end = seen_by_all(p) + kPanel - 1;
      return end < tile.end ? end : tile.end;
    };

    const auto make = [&](const float* weights, std::int64_t n, float* out, std::int64_t stride) {
      over_panels(0, n / kPanel, [&](std::int64_t d, auto count) {
        constexpr int kPanels = decltype(count)::kValue, kRows = rows_at_once(kPanels);
        for (int row = 0; row < tile.end; row += kRows)
          product<Math, kRows, kPanels>(tile.rows[row / kSubtile] + row % kSubtile * tile.row_stride, tile.row_stride, 1, weights + d * rank_units * kPanel, kPanel, rank_units * kPanel, rank_units,
                                        [&](int m, int panel, int v, V sum) { store(out + (row + m) * stride + (d + panel) * kPanel + v * kLanes, sum); });
      });
    };
    make(scratch.weights(), args.nope_dim, scratch.keys(), key_dim);
    make(v_b, args.value_dim, scratch.values(), args.value_dim);
    const float* keys = Math::key_units(tile, args, scratch.keys(), scratch.key_units());
    Math::value_units(tile, scratch.values(), args.value_dim, scratch.value_units());

    over_panels(first_panel, panels, [&](std::int64_t p, auto count) {
      constexpr int kPanels = decltype(count)::kValue, kRows = rows_at_once(kPanels);
      for (int row = 0; row < tile.end; row += kRows)
        product<Math, kRows, kPanels>(keys + row * (key_dim / Math::kUnit), key_dim / Math::kUnit, 1, scratch.q(p), kPanel, key_dim * kPanel, key_dim / Math::kUnit,
                                      [&](int m, int panel, int v, V sum) { store(scratch.scores(p + panel) + (row + m) * kPanel + v * kLanes, sum); });
    });

    for (std::int64_t p = first_panel; p < panels; ++p)
      for (int v = 0; v < kPanelVectors; ++v) {
        float* scores = scratch.scores(p) + v * kLanes;
        const int all = seen_by_all(p), end = end_of(p);
        V lowest = set1(-__builtin_inff());
        __asm__("" : "+x"(lowest));  // in a register: a masked load of the constant is slow where the mask is off (divisor.inl)
        for (int j = all > 0 ? all : 0; j < end; ++j) {
          const int unseen = j - all + 1 - v * kLanes;
          store(scores + j * kPanel, select(first(unseen < 0 ? 0 : unseen > kLanes ? kLanes : unseen), lowest, load(scores + j * kPanel)));
        }
        const V old_max = load(scratch.max(p) + v * kLanes);
        V new_max = old_max;
        for (int j = 0; j < end; ++j) new_max = max(new_max, load(scores + j * kPanel));
        const V factor = Math::power(sub(old_max, new_max));
        const V sum = Math::weigh(scores, 0, end, new_max);
        store(scratch.max(p) + v * kLanes, new_max);
        store(scratch.sum(p) + v * kLanes, fma(load(scratch.sum(p) + v * kLanes), factor, sum));
        store(scratch.factor(p) + v * kLanes, factor);
      }

    over_panels(0, args.value_dim / kPanel, [&](std::int64_t d, auto count) {
      constexpr int kPanels = decltype(count)::kValue, kRows = rows_at_once(kPanels);
      for (std::int64_t p = first_panel; p < panels; ++p)
        for (int t = 0; t < kPanel; t += kRows)
          product<Math, kRows, kPanels>(scratch.scores(p) + t, 1, kPanel, tile.values + d * tile.value_p, tile.value_k, tile.value_p, (end_of(p) + Math::kUnit - 1) / Math::kUnit,
                                        [&](int m, int panel, int v, V sum) {
                                          float* weighted = scratch.weighted(p) + (t + m) * args.value_dim + (d + panel) * kPanel + v * kLanes;
                                          store(weighted, fma(load(weighted), set1(scratch.factor(p)[t + m]), sum));
                                        });
    });
  }

  for (std::int64_t t = 0; t < args.tokens; ++t) {
    const V sum = set1(scratch.sum(t / kPanel)[t % kPanel]);
    const float* weighted = scratch.weighted(t / kPanel) + t % kPanel * args.value_dim;
    for (std::int64_t d = 0; d < args.value_dim; d += kLanes) store(args.out + t * args.out_stride + d, div(load(weighted + d), sum));
  }
}
