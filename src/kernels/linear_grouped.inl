// Products of grouped int8 activations, for every ISA with a vector vocabulary (dot.h). Tokens pass in tiles of R = kGroupedTokens, the last
// one filled up with zeros: prefill only, where a tile's arithmetic costs less than the reading of weights.
//
// Activations are integers of 16 bits, x = 256 * high + low with low in [-128, 127]. One record a tile, at a multiple of 64 bytes:
//   low     int8  [ceil(K/8)*2][R][4]   four inputs of a token (a quad) lie together; zero past K
//   high    int8  [quads][R][4]         of the quads alone where a token of the tile has a high part that is not 0: few, and a product adds only these
//   listed  int32 [quads]               which ones, ascending
//   groups  TileGroup [groups]
struct TileGroup {
  std::int32_t starts[kGroupedTokens];  // -8 * (sum of the integers): a sum's start for zero point 8, times 16 for 128
  float scales[kGroupedTokens];
  std::int32_t high;                    // quads listed
};

struct GroupedLayout {
  std::int64_t width;  // inputs an activation group covers
  std::int64_t groups;
  std::int64_t high_at, listed_at, groups_at, tile_bytes;

  GroupedLayout(std::int64_t inputs, std::int64_t group) {
    const std::int64_t quads = (inputs + 7) / 8 * 2;
    width = group % kActivationGroup == 0 ? kActivationGroup : group;
    groups = (inputs + width - 1) / width;
    high_at = quads * kGroupedTokens * 4;
    listed_at = 2 * high_at;
    groups_at = listed_at + quads * 4;
    tile_bytes = (groups_at + groups * static_cast<std::int64_t>(sizeof(TileGroup)) + 63) / 64 * 64;
  }
};

std::size_t grouped_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t group) {
  return static_cast<std::size_t>((tokens + kGroupedTokens - 1) / kGroupedTokens * GroupedLayout(inputs, group).tile_bytes);
}

// Inputs [k, k + 16) of a row that has `left` of them from k on; the others 0.
LANES_INLINE Lanes load_part(const float* p, std::int64_t left) { return left >= 16 ? load_lanes(p) : load_some(p, left); }

// The groups' absmax of one token, kept where its scales will be. Returns the largest value that one byte is to hold.
float measure_groups(const float* row, std::int64_t inputs, const GroupedLayout& layout, TileGroup* groups, std::int64_t r) {
  Lanes squares = zeros();
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const std::int64_t begin = g * layout.width, end = begin + layout.width < inputs ? begin + layout.width : inputs;
    Lanes most = zeros();
    for (std::int64_t k = begin; k < end; k += 16) {
      const Lanes x = load_part(row + k, end - k);
      most = maximum(magnitude(x), most);
      squares = fused(x, x, squares);
    }
    groups[g].scales[r] = largest(most);
  }
  float lanes[16], sum = 0;
  store_lanes(lanes, squares);
  for (const float lane : lanes) sum += lane;
  return kOneByteRms * __builtin_sqrtf(sum / static_cast<float>(inputs));
}

// The value of code 127 in a group.
LANES_INLINE float group_top(float absmax, float limit) {
  const float top = absmax < limit ? absmax : limit;
  return top < absmax / 255.0f ? absmax / 255.0f : top;
}

// 16 codes of a token, 4 to each of `quads` places R * 4 bytes apart.
LANES_INLINE void scatter_codes(char* at, Ints codes, std::int64_t quads) {
  char bytes[16];
  store_bytes(bytes, codes);
  for (std::int64_t j = 0; j < quads; ++j) std::memcpy(at + j * kGroupedTokens * 4, bytes + j * 4, 4);
}

// Token r's share of one group: `x` are its inputs, `low` and `high` where its first quad goes. high: nullptr where no token of the tile has any.
LANES_INLINE void quantize_group(const float* x, std::int64_t inputs, float limit, TileGroup& group, std::int64_t r, char* low, char* high) {
  const float absmax = group.scales[r], top = group_top(absmax, limit);
  const bool zero = absmax < 0x1p-100f;
  const Lanes by = splat(zero ? 0 : 127.0f / top);
  Ints sum = splat_int(0);
  for (std::int64_t k = 0; k < inputs; k += 16, low += kGroupedTokens * 16) {
    const std::int64_t quads = inputs - k >= 16 ? 4 : (inputs - k + 7) / 8 * 2;
    Ints q = nearest(multiply(load_part(x + k, inputs - k), by));
    sum = add(sum, q);
    if (high) {
      const Ints top_part = shift_right<8>(add(q, splat_int(128)));
      scatter_codes(high, top_part, quads);
      high += kGroupedTokens * 16;
      q = subtract(q, shift_left<8>(top_part));
    }
    if (quads == 4) scatter_codes(low, q, 4);
    else scatter_codes(low, q, quads);
  }
  group.starts[r] = -8 * total(sum);
  group.scales[r] = zero ? 0 : top / 127.0f;
}

// Tokens [t, t + rows) as one record.
void quantize_tile(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t inputs, const GroupedLayout& layout, char* tile) {
  if (rows < kGroupedTokens) std::memset(tile, 0, static_cast<std::size_t>(layout.tile_bytes));
  auto* groups = reinterpret_cast<TileGroup*>(tile + layout.groups_at);
  float limits[kGroupedTokens];
  for (std::int64_t r = 0; r < rows; ++r) limits[r] = measure_groups(x + r * ldx, inputs, layout, groups, r);
  constexpr std::int64_t kQuadBytes = kGroupedTokens * 4;
  char* high = tile + layout.high_at;
  auto* listed = reinterpret_cast<std::int32_t*>(tile + layout.listed_at);
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const std::int64_t k = g * layout.width, width = inputs - k < layout.width ? inputs - k : layout.width, quads = (width + 7) / 8 * 2;
    bool any = false;
    for (std::int64_t r = 0; r < rows; ++r) any = any || groups[g].scales[r] > group_top(groups[g].scales[r], limits[r]);
    char parts[kMostGroup / 4 * kQuadBytes];
    if (any) std::memset(parts, 0, static_cast<std::size_t>(quads * kQuadBytes));
    for (std::int64_t r = 0; r < rows; ++r)
      quantize_group(x + r * ldx + k, width, limits[r], groups[g], r, tile + k * kGroupedTokens + r * 4, any ? parts + r * 4 : nullptr);
    groups[g].high = 0;
    static constexpr char kNone[kQuadBytes] = {};
    for (std::int64_t j = 0; any && j < quads; ++j) {
      if (std::memcmp(parts + j * kQuadBytes, kNone, kQuadBytes) == 0) continue;
      std::memcpy(high, parts + j * kQuadBytes, kQuadBytes);
      high += kQuadBytes;
      *listed++ = static_cast<std::int32_t>(k / 4 + j);
      ++groups[g].high;
    }
  }
}

void quantize_grouped(const float* x, std::int64_t ldx, std::int64_t, std::int64_t inputs, std::int64_t group, std::int64_t begin, std::int64_t end, void* out) {
  const GroupedLayout layout(inputs, group);
  for (std::int64_t t = begin; t < end; t += kGroupedTokens) {
    const std::int64_t rows = end - t < kGroupedTokens ? end - t : std::int64_t{kGroupedTokens};
    quantize_tile(x + t * ldx, ldx, rows, inputs, layout, static_cast<char*>(out) + t / kGroupedTokens * layout.tile_bytes);
  }
}

struct GroupedTile {
  const std::uint8_t* weights;  // of the first panel
  std::size_t panel_bytes;
  const char* activations;      // the tile's record
  const GroupedLayout* layout;
  std::int64_t inputs, group;   // group 0: per channel
  const char* scales;           // of the first panel
  std::size_t panel_scale_bytes;
  bool scales_fp16;
  const char* ahead;            // weights that later tiles need; this one fetches `lines` lines a group
  std::int64_t lines;
  std::int64_t rows;            // tokens to store
  float* y;
  std::int64_t ldy;
};

// One quad against kPanels panels.
template <int kBits, int kPanels>
LANES_INLINE void dot_quad(const std::uint8_t* weights, std::size_t panel_bytes, std::int64_t quad, const std::int8_t* codes, Ints (&sums)[1][kGroupedTokens][kPanels]) {
  constexpr int kSteps = 8 / kBits;
  for (int p = 0; p < kPanels; ++p) {
    Codes<kBits> q[kSteps];
    load_codes(weights + quad / kSteps * 64 + p * panel_bytes, q);
    const Codes<kBits> half = quad % kSteps == 0 ? q[0] : q[kSteps - 1];
    for (int t = 0; t < kGroupedTokens; ++t) sums[0][t][p] = dot<kBits>(sums[0][t][p], half, splat_activation<kBits>(codes + t * 4));
  }
}

template <int kBits, int kPanels>
[[gnu::noinline]] void grouped_tile(const GroupedTile& given) {
  const GroupedTile tile = given;
  const GroupedLayout layout = *tile.layout;
  constexpr int kSteps = 8 / kBits;  // runs of 4 inputs in a block
  const auto* codes = reinterpret_cast<const std::int8_t*>(tile.activations);
  const auto* high = reinterpret_cast<const std::int8_t*>(tile.activations + layout.high_at);
  const auto* listed = reinterpret_cast<const std::int32_t*>(tile.activations + layout.listed_at);
  const auto* groups = reinterpret_cast<const TileGroup*>(tile.activations + layout.groups_at);
  const std::uint8_t* weights = tile.weights;
  const char* ahead = tile.ahead;
  Lanes acc[kGroupedTokens][kPanels];
  for (int t = 0; t < kGroupedTokens; ++t)
    for (int p = 0; p < kPanels; ++p) acc[t][p] = zeros();
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    for (std::int64_t i = 0; i < tile.lines; ++i, ahead += 64) prefetch(ahead);
    const TileGroup& group = groups[g];
    Ints sums[1][kGroupedTokens][kPanels];
    if (group.high > 0) {
      for (int t = 0; t < kGroupedTokens; ++t)
        for (int p = 0; p < kPanels; ++p) sums[0][t][p] = splat_int(0);
      for (std::int32_t i = 0; i < group.high; ++i, high += kGroupedTokens * 4) dot_quad<kBits, kPanels>(tile.weights, tile.panel_bytes, *listed++, high, sums);
    }
    for (int t = 0; t < kGroupedTokens; ++t) {
      const Ints zero_point = splat_int(group.starts[t]), start = kBits == 4 ? zero_point : shift_left<4>(zero_point);
      for (int p = 0; p < kPanels; ++p) sums[0][t][p] = group.high > 0 ? add(shift_left<8>(sums[0][t][p]), start) : start;
    }
    const std::int64_t k = g * layout.width, left = tile.inputs - k;
    const std::int64_t blocks = ((left < layout.width ? left : layout.width) + 4 * kSteps - 1) / (4 * kSteps);
    for (std::int64_t b = 0; b < blocks; ++b) {
      dot_block<kBits, kGroupedTokens, kPanels, 1>(weights, tile.panel_bytes, codes, 0, sums);
      weights += 64;
      codes += kSteps * kGroupedTokens * 4;
    }
    for (int p = 0; p < kPanels; ++p) {
      if (tile.group == 0) {
        for (int t = 0; t < kGroupedTokens; ++t) acc[t][p] = fused(to_float(sums[0][t][p]), splat(group.scales[t]), acc[t][p]);
      } else {
        const Lanes scale = load_scales(tile.scales + p * tile.panel_scale_bytes, tile.scales_fp16, k / tile.group);
        for (int t = 0; t < kGroupedTokens; ++t) acc[t][p] = fused(to_float(sums[0][t][p]), multiply(scale, splat(group.scales[t])), acc[t][p]);
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    const Lanes scale = tile.group == 0 ? load_scales(tile.scales + p * tile.panel_scale_bytes, tile.scales_fp16, 0) : splat(1.0f);
    for (int t = 0; t < kGroupedTokens; ++t)
      if (t < tile.rows) store_lanes(tile.y + t * tile.ldy + p * 16, multiply(acc[t][p], scale));
  }
}

// A block of tokens stays in L2 and all panels pass, kTilePanels at once; tile by tile fetches its share of the next ones.
constexpr std::int64_t kTokenBlockBytes = 384 * 1024;

template <int kBits>
void gemm_grouped(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const GroupedLayout layout(w.inputs, w.group);
  constexpr std::int64_t kDepth = 32 / kBits;
  GroupedTile tile{};
  tile.panel_bytes = static_cast<std::size_t>((w.inputs + kDepth - 1) / kDepth) * 64;
  tile.layout = &layout;
  tile.inputs = w.inputs;
  tile.group = w.group;
  tile.panel_scale_bytes = static_cast<std::size_t>(groups_of(w)) * (w.scales_fp16 ? 32 : 64);
  tile.scales_fp16 = w.scales_fp16;
  tile.ldy = ldy;
  const std::int64_t fit = kTokenBlockBytes / layout.high_at, block = (fit < 2 ? 2 : fit) * kGroupedTokens;
  for (std::int64_t t0 = 0; t0 < tokens; t0 += block) {
    const std::int64_t t_end = t0 + block < tokens ? t0 + block : tokens;
    const std::int64_t tiles = (t_end - t0 + kGroupedTokens - 1) / kGroupedTokens;
    for (std::int64_t panel = panel_begin, width; panel < panel_end; panel += width) {
      width = panel_end - panel >= kTilePanels ? kTilePanels : 1;
      tile.weights = static_cast<const std::uint8_t*>(w.codes) + panel * static_cast<std::int64_t>(tile.panel_bytes);
      tile.scales = static_cast<const char*>(w.scales) + panel * static_cast<std::int64_t>(tile.panel_scale_bytes);
      tile.ahead = reinterpret_cast<const char*>(tile.weights) + width * static_cast<std::int64_t>(tile.panel_bytes);
      tile.lines = (width * static_cast<std::int64_t>(tile.panel_bytes) / 64 + tiles * layout.groups - 1) / (tiles * layout.groups);
      for (std::int64_t t = t0; t < t_end; t += kGroupedTokens) {
        tile.activations = static_cast<const char*>(activations) + t / kGroupedTokens * layout.tile_bytes;
        tile.rows = t_end - t;
        tile.y = y + t * ldy + panel * 16;
        if (width == kTilePanels) grouped_tile<kBits, kTilePanels>(tile);
        else grouped_tile<kBits, 1>(tile);
        tile.ahead += tile.lines * layout.groups * 64;
      }
    }
  }
}
