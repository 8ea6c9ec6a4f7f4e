// Products of grouped int8 activations, for every ISA with a vector vocabulary (dot.h). Tokens pass in tiles of R = kGroupedTokens, the last
// one filled up with zeros: prefill only, where a tile's arithmetic costs less than the reading of weights.
//
// Activations, one record a tile, at a multiple of 64 bytes:
//   codes   int8  [2][ceil(K/8)*2][R][4]   high plane, low plane; four inputs of a token lie together; zero past K. Of the low plane only
//                                          the groups that some token of the tile needs are written and read
//   groups  TileGroup [groups]
struct TileGroup {
  std::int32_t starts[2][kGroupedTokens];  // -8 * (sum of the codes): a sum's start for zero point 8, times 16 for 128
  float scales[2][kGroupedTokens];
  std::int32_t planes;                     // 2 where a token of the tile has a low plane, else 1
};

struct GroupedLayout {
  std::int64_t width;       // inputs an activation group covers
  std::int64_t groups;
  std::int64_t plane;       // bytes of a tile's plane
  std::int64_t tile_bytes;

  GroupedLayout(std::int64_t inputs, std::int64_t group) {
    width = group % kActivationGroup == 0 ? kActivationGroup : group;
    groups = (inputs + width - 1) / width;
    plane = (inputs + 7) / 8 * 8 * kGroupedTokens;
    tile_bytes = (2 * plane + groups * static_cast<std::int64_t>(sizeof(TileGroup)) + 63) / 64 * 64;
  }
};

std::size_t grouped_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t group) {
  return static_cast<std::size_t>((tokens + kGroupedTokens - 1) / kGroupedTokens * GroupedLayout(inputs, group).tile_bytes);
}

// Inputs [k, k + 16) of a row that has `left` of them from k on; the others 0.
LANES_INLINE Lanes load_part(const float* p, std::int64_t left) { return left >= 16 ? load_lanes(p) : load_some(p, left); }

// The groups' absmax of one token, kept where its scales will be. Returns the largest absmax that needs no low plane.
float measure_groups(const float* row, std::int64_t inputs, const GroupedLayout& layout, TileGroup* groups, std::int64_t r) {
  float sum = 0;
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const std::int64_t begin = g * layout.width, end = begin + layout.width < inputs ? begin + layout.width : inputs;
    Lanes most = zeros();
    for (std::int64_t k = begin; k < end; k += 16) most = maximum(magnitude(load_part(row + k, end - k)), most);
    groups[g].scales[0][r] = largest(most);
    sum += groups[g].scales[0][r];
  }
  return sum * (kLowPlaneFrom / static_cast<float>(layout.groups));
}

// 16 codes of a token, 4 to each of `quads` places R * 4 bytes apart.
LANES_INLINE void scatter_codes(char* at, Ints codes, std::int64_t quads) {
  char bytes[16];
  store_bytes(bytes, codes);
  for (std::int64_t j = 0; j < quads; ++j) std::memcpy(at + j * kGroupedTokens * 4, bytes + j * 4, 4);
}

// Codes, starts and scales of token r of a tile, for one group: `x` are its inputs, `codes` where the token's high plane goes.
LANES_INLINE void quantize_group(const float* x, std::int64_t inputs, float limit, TileGroup& group, std::int64_t r, char* codes, std::int64_t plane) {
  const float absmax = group.scales[0][r];
  const bool fine = absmax > limit, zero = absmax < 0x1p-100f;
  const float steps = fine ? 16256.0f : 127.0f, scale = zero ? 0 : absmax / steps;
  const Lanes by = splat(zero ? 0 : steps / absmax);
  Ints high_sum = splat_int(0), low_sum = splat_int(0);
  for (std::int64_t k = 0; k < inputs; k += 16, codes += kGroupedTokens * 16) {
    const std::int64_t quads = inputs - k >= 16 ? 4 : (inputs - k + 7) / 8 * 2;
    Ints high = nearest(multiply(load_part(x + k, inputs - k), by));
    if (group.planes == 2) {
      Ints low = splat_int(0);
      if (fine) {
        const Ints q = high;
        high = shift_right<7>(add(q, splat_int(64)));
        low = subtract(q, shift_left<7>(high));
        low_sum = add(low_sum, low);
      }
      scatter_codes(codes + plane, low, quads);
    }
    high_sum = add(high_sum, high);
    if (quads == 4) scatter_codes(codes, high, 4);
    else scatter_codes(codes, high, quads);
  }
  group.starts[0][r] = -8 * total(high_sum);
  group.starts[1][r] = -8 * total(low_sum);
  group.scales[0][r] = fine ? 128 * scale : scale;
  group.scales[1][r] = fine ? scale : 0;
}

void quantize_grouped(const float* x, std::int64_t ldx, std::int64_t, std::int64_t inputs, std::int64_t group, std::int64_t begin, std::int64_t end, void* out) {
  const GroupedLayout layout(inputs, group);
  for (std::int64_t t = begin; t < end; t += kGroupedTokens) {
    const std::int64_t rows = end - t < kGroupedTokens ? end - t : std::int64_t{kGroupedTokens};
    char* tile = static_cast<char*>(out) + t / kGroupedTokens * layout.tile_bytes;
    if (rows < kGroupedTokens) std::memset(tile, 0, static_cast<std::size_t>(layout.tile_bytes));
    auto* groups = reinterpret_cast<TileGroup*>(tile + 2 * layout.plane);
    float limits[kGroupedTokens];
    for (std::int64_t r = 0; r < rows; ++r) limits[r] = measure_groups(x + (t + r) * ldx, inputs, layout, groups, r);
    for (std::int64_t g = 0; g < layout.groups; ++g) {
      groups[g].planes = 1;
      for (std::int64_t r = 0; r < rows; ++r)
        if (groups[g].scales[0][r] > limits[r]) groups[g].planes = 2;
      const std::int64_t k = g * layout.width, width = inputs - k < layout.width ? inputs - k : layout.width;
      for (std::int64_t r = 0; r < rows; ++r)
        quantize_group(x + (t + r) * ldx + k, width, limits[r], groups[g], r, tile + k * kGroupedTokens + r * 4, layout.plane);
    }
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

template <int kBits, int kPanels>
[[gnu::noinline]] void grouped_tile(const GroupedTile& given) {
  const GroupedTile tile = given;
  const GroupedLayout layout = *tile.layout;
  constexpr int kSteps = 8 / kBits;  // runs of 4 inputs in a block
  const auto* groups = reinterpret_cast<const TileGroup*>(tile.activations + 2 * layout.plane);
  Lanes acc[kGroupedTokens][kPanels];
  for (int t = 0; t < kGroupedTokens; ++t)
    for (int p = 0; p < kPanels; ++p) acc[t][p] = zeros();
  const char* ahead = tile.ahead;
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    for (std::int64_t i = 0; i < tile.lines; ++i, ahead += 64) prefetch(ahead);
    const std::int64_t k = g * layout.width, left = tile.inputs - k;
    const std::int64_t blocks = ((left < layout.width ? left : layout.width) + 4 * kSteps - 1) / (4 * kSteps);
    for (int plane = 0; plane < groups[g].planes; ++plane) {
      Ints sums[1][kGroupedTokens][kPanels];
      for (int t = 0; t < kGroupedTokens; ++t) {
        const Ints start = splat_int(groups[g].starts[plane][t]);
        for (int p = 0; p < kPanels; ++p) sums[0][t][p] = kBits == 4 ? start : shift_left<4>(start);
      }
      const std::uint8_t* weights = tile.weights + k / (4 * kSteps) * 64;
      const auto* codes = reinterpret_cast<const std::int8_t*>(tile.activations + plane * layout.plane + k * kGroupedTokens);
      for (std::int64_t b = 0; b < blocks; ++b) {
        dot_block<kBits, kGroupedTokens, kPanels, 1>(weights, tile.panel_bytes, codes, 0, sums);
        weights += 64;
        codes += kSteps * kGroupedTokens * 4;
      }
      for (int p = 0; p < kPanels; ++p) {
        if (tile.group == 0) {
          for (int t = 0; t < kGroupedTokens; ++t) acc[t][p] = fused(to_float(sums[0][t][p]), splat(groups[g].scales[plane][t]), acc[t][p]);
        } else {
          const Lanes scale = load_scales(tile.scales + p * tile.panel_scale_bytes, tile.scales_fp16, k / tile.group);
          for (int t = 0; t < kGroupedTokens; ++t) acc[t][p] = fused(to_float(sums[0][t][p]), multiply(scale, splat(groups[g].scales[plane][t])), acc[t][p]);
        }
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
  const std::int64_t fit = kTokenBlockBytes / layout.plane, block = (fit < 2 ? 2 : fit) * kGroupedTokens;
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
