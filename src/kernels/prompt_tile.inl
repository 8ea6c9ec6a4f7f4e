// Products of prompt activations (linear_grouped.inl) with one panel's codes as bytes, for every ISA with a vector vocabulary (dot.h).
//
// Tokens pass in tiles of R = kGroupedTokens, the last one filled up with zeros: prompts only, where a tile's arithmetic costs less than the
// reading of weights. Activations are integers of 16 bits, x = 256 * high + low with low in [-128, 127]. K passes in blocks, so that the weights of
// a block stay in the first-level cache while the tiles pass. One record a tile, at a multiple of 64 bytes:
//   low     int8  [ceil(K/8)*2][R][4]       four inputs of a token (a quad) lie together; zero past K
//   high    int8  [ceil(K/8)*2][R][4]       of a block of K, from its first quad's place on: the quads where a token of the tile has a high part that is not 0
//   wide    WideQuad [ceil(K/8)*2]          which ones, likewise
//   counts  int32 [blocks]                  how many those are
//   sums    int32 [groups][R]               -8 * (sum of a token's integers in a group of the weights, or of all)
//   scales  f32   [R]
// A token that is quantized by itself, to be copied into such records, is one with R = 1.
struct WideQuad {
  std::uint8_t quad, group;  // quad and weights' group within the block of K
};

struct PromptLayout {
  std::int64_t width;  // inputs a sum covers
  std::int64_t block, blocks, groups;
  std::int64_t low_bytes, high_at, wide_at, counts_at, sums_at, scales_at, tile_bytes;

  PromptLayout(std::int64_t inputs, std::int64_t group, std::int64_t tokens = kGroupedTokens) {
    const std::int64_t quads = (inputs + 7) / 8 * 2;
    width = group == 0 ? inputs : group;
    block = group == 0 ? kPromptBlock : kPromptBlock / group * group;
    blocks = (inputs + block - 1) / block;
    groups = (inputs + width - 1) / width;
    low_bytes = quads * tokens * 4;
    high_at = low_bytes;
    wide_at = 2 * low_bytes;
    counts_at = (wide_at + quads * static_cast<std::int64_t>(sizeof(WideQuad)) + 3) / 4 * 4;
    sums_at = counts_at + blocks * 4;
    scales_at = sums_at + groups * tokens * 4;
    tile_bytes = (scales_at + tokens * 4 + 63) / 64 * 64;
  }
};

struct PromptTile {
  const std::uint8_t* codes;   // of the first panel, at this block of K: a quad's 16 rows are 64 bytes
  std::size_t panel_bytes;     // between panels
  const std::int8_t* x;        // low parts, at this block of K
  const std::int8_t* high;
  const WideQuad* wide;
  std::int32_t wides;
  const std::int32_t* sums;    // at this block's first group
  const float* token_scales;
  std::int64_t inputs, width;  // of this block of K; inputs a group covers
  const char* scales;          // of the first panel, at this block's first group
  std::size_t panel_scale_bytes;
  bool scales_fp16;
  bool first, last;            // block of K; between blocks y holds what was summed
  const char* ahead;           // weights that later tiles need; this one fetches `lines` lines
  std::int64_t lines;
  std::int64_t rows;           // tokens to store
  float* y;
  std::int64_t ldy;
};

LANES_INLINE Lanes prompt_scales(const char* scales, bool fp16, std::int64_t g) {
  return fp16 ? load_fp16(reinterpret_cast<const std::uint16_t*>(scales) + g * 16) : load_lanes(reinterpret_cast<const float*>(scales) + g * 16);
}

template <int kBits>
LANES_INLINE Codes<kBits> load_quad(const std::uint8_t* p) {
  if constexpr (kBits == 8) {
    Codes<8> q[1];
    load_codes(p, q);
    return q[0];
  } else {
    return load_ints(p);  // codes of at most 7 bits
  }
}

// A tile of tokens against kPanels panels over one block of K. kGroups: the weights have a scale for each group of inputs, and y waits in FP32;
// else the whole sum is an integer and waits as its bits.
template <int kBits, int kZeroPoint, int kPanels, bool kGroups>
[[gnu::noinline]] void prompt_tile(const PromptTile& tile) {
  // Read field by field: a copy would be made with wide loads, which wait until all stores before them, those of the last tile's y too, have reached memory.
  const std::size_t panel_bytes = tile.panel_bytes, panel_scale_bytes = tile.panel_scale_bytes;
  const std::int64_t inputs = tile.inputs, width = tile.width, rows = tile.rows, ldy = tile.ldy;
  const std::int32_t wides = tile.wides;
  const bool first = tile.first, last = tile.last, scales_fp16 = tile.scales_fp16;
  const char* scales = tile.scales;
  float* const y = tile.y;
  constexpr int kZeroShift = kZeroPoint == 8 ? 0 : kZeroPoint == 64 ? 3 : 4;  // sums are made for zero point 8
  for (std::int64_t i = 0; i < tile.lines; ++i) __builtin_prefetch(tile.ahead + i * 64, 0, 2);
  const bool waiting = !first;
  const std::uint8_t* codes = tile.codes;
  const std::int8_t* x = tile.x;
  Ints sums[kGroupedTokens][kPanels];
  // One quad against the panels.
  const auto add_quad = [&](const std::uint8_t* at, const std::int8_t* values) __attribute__((always_inline)) {
    Codes<kBits> q[kPanels];
    for (int p = 0; p < kPanels; ++p) q[p] = load_quad<kBits>(at + p * panel_bytes);
    for (int t = 0; t < kGroupedTokens; ++t) {
      const Activation<kBits> value = splat_activation<kBits>(values + t * 4);
      for (int p = 0; p < kPanels; ++p) sums[t][p] = dot<kBits>(sums[t][p], q[p], value);
    }
  };
  const auto add_quads = [&](std::int64_t quads) __attribute__((always_inline)) {
    constexpr std::int64_t kShort = kShortQuads<kBits, kZeroPoint>;
    if constexpr (kShort > 1) {
      const auto add_nibbles = [&]<int kNibble>(std::int64_t run) __attribute__((always_inline)) {
        ShortSums parts[kGroupedTokens][kPanels] = {};
        for (std::int64_t i = 0; i < run; ++i) {
          Ints q[kPanels][2];
          for (int p = 0; p < kPanels; ++p) {
            if constexpr (kBits == 4) q[p][0] = load_ints(codes + p * panel_bytes + i * 64);
            else load_codes(codes + p * panel_bytes + i * 64, q[p]);
          }
          for (int t = 0; t < kGroupedTokens; ++t) {
            const Activation<4> value = splat_activation<4>(x + (i * kGroupedTokens + t) * 4);
            for (int p = 0; p < kPanels; ++p) parts[t][p] = short_dot(parts[t][p], q[p][kNibble], value);
          }
        }
        for (int t = 0; t < kGroupedTokens; ++t)
          for (int p = 0; p < kPanels; ++p) sums[t][p] = add_short(sums[t][p], parts[t][p], kNibble == 0 ? 1 : 16);
      };
      for (; quads > 0; quads -= kShort) {
        const std::int64_t run = quads < kShort ? quads : kShort;
        add_nibbles.template operator()<0>(run);
        if constexpr (kBits == 8) add_nibbles.template operator()<1>(run);
        codes += run * 64;
        x += run * kGroupedTokens * 4;
      }
      return;
    }
    for (std::int64_t i = 0; i < quads; ++i) {
      add_quad(codes, x);
      codes += 64;
      x += kGroupedTokens * 4;
    }
  };
  // sums = 256 * (the high parts of the listed quads from `at` on that are wanted) + start(t, p).
  const std::int8_t* high = tile.high;
  const auto add_high = [&](std::int32_t& at, auto wanted, auto start) __attribute__((always_inline)) {
    if (at >= wides || !wanted(tile.wide[at])) {
      for (int t = 0; t < kGroupedTokens; ++t)
        for (int p = 0; p < kPanels; ++p) sums[t][p] = start(t, p);
      return;
    }
    for (int t = 0; t < kGroupedTokens; ++t)
      for (int p = 0; p < kPanels; ++p) sums[t][p] = splat_int(0);
    for (; at < wides && wanted(tile.wide[at]); ++at, high += kGroupedTokens * 4) add_quad(tile.codes + tile.wide[at].quad * 64, high);
    for (int t = 0; t < kGroupedTokens; ++t)
      for (int p = 0; p < kPanels; ++p) sums[t][p] = add(shift_left<8>(sums[t][p]), start(t, p));
  };
  if constexpr (kGroups) {
    Lanes acc[kGroupedTokens][kPanels];
    for (int t = 0; t < kGroupedTokens; ++t)
      for (int p = 0; p < kPanels; ++p) acc[t][p] = waiting && t < rows ? load_lanes(y + t * ldy + p * 16) : zeros();
    std::int32_t at = 0;
    const std::int32_t* starts = tile.sums;
    std::int64_t left = inputs;
    for (std::int64_t g = 0; left > 0; ++g, left -= width, starts += kGroupedTokens) {
      add_high(at, [&](const WideQuad& wide) __attribute__((always_inline)) { return wide.group == g; },
               [&](int t, int) __attribute__((always_inline)) { return shift_left<kZeroShift>(splat_int(starts[t])); });
      add_quads(((left < width ? left : width) + 3) / 4);
      for (int p = 0; p < kPanels; ++p) {
        const Lanes scale = prompt_scales(scales + p * panel_scale_bytes, scales_fp16, g);
        for (int t = 0; t < kGroupedTokens; ++t) acc[t][p] = fused(to_float(sums[t][p]), scale, acc[t][p]);
      }
    }
    for (int t = 0; t < kGroupedTokens; ++t) {
      if (t >= rows) break;
      for (int p = 0; p < kPanels; ++p) store_lanes(y + t * ldy + p * 16, last ? multiply(acc[t][p], splat(tile.token_scales[t])) : acc[t][p]);
    }
  } else {
    std::int32_t at = 0;
    add_high(at, [](const WideQuad&) __attribute__((always_inline)) { return true; },
             [&](int t, int p) __attribute__((always_inline)) {
               return first ? shift_left<kZeroShift>(splat_int(tile.sums[t])) : t < rows ? load_ints(y + t * ldy + p * 16) : splat_int(0);
             });
    add_quads((inputs + 3) / 4);
    for (int t = 0; t < kGroupedTokens; ++t) {
      if (t >= rows) break;
      for (int p = 0; p < kPanels; ++p) {
        float* to = y + t * ldy + p * 16;
        if (!last) {
          store_ints(to, sums[t][p]);
          continue;
        }
        const Lanes scale = prompt_scales(scales + p * panel_scale_bytes, scales_fp16, 0);
        store_lanes(to, multiply(to_float(sums[t][p]), multiply(scale, splat(tile.token_scales[t]))));
      }
    }
  }
}

// Tokens whose low parts of a block of K, beside what waits for kPanelSet panels, stay in the second-level cache.
constexpr std::int64_t kPromptTokens = 256;
constexpr std::int64_t kPanelSet = 8;

// A product's panels as the tiles take them. Panels: prepare(panel, width, k, inputs, tile) sets codes and scales for `width` panels from `panel` on
// over `inputs` inputs from k on; ahead(panel, k) is where weights lie and bytes(inputs) how many of them a panel takes.
template <int kBits, int kZeroPoint, bool kGroups, class Panels>
LANES_INLINE void prompt_product(const PromptLayout& layout, std::int64_t inputs, const Panels& panels, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end,
                                 float* y, std::int64_t ldy) {
  for (std::int64_t t0 = 0; t0 < tokens; t0 += kPromptTokens) {
    const std::int64_t t_end = t0 + kPromptTokens < tokens ? t0 + kPromptTokens : tokens;
    const std::int64_t tiles = (t_end - t0 + kGroupedTokens - 1) / kGroupedTokens;
    for (std::int64_t set = panel_begin; set < panel_end; set += kPanelSet) {
      const std::int64_t set_end = set + kPanelSet < panel_end ? set + kPanelSet : panel_end;
      for (std::int64_t b = 0; b < layout.blocks; ++b) {
        const std::int64_t k = b * layout.block;
        PromptTile tile{};
        tile.inputs = inputs - k < layout.block ? inputs - k : layout.block;
        tile.width = layout.width;
        tile.first = b == 0;
        tile.last = b + 1 == layout.blocks;
        tile.ldy = ldy;
        for (std::int64_t panel = set, width; panel < set_end; panel += width) {
          width = set_end - panel >= kTilePanels ? kTilePanels : 1;
          panels.prepare(panel, width, k, tile.inputs, tile);
          // What comes next: the next panels of the set, or its next block of K, or the next set.
          const bool more = panel + width < set_end;
          const std::int64_t next_panel = more ? panel + width : tile.last ? set_end : set, next_k = more ? k : tile.last ? 0 : k + layout.block;
          const std::int64_t next_width = panel_end - next_panel < kTilePanels ? panel_end - next_panel : std::int64_t{kTilePanels};
          const std::int64_t next_inputs = inputs - next_k < layout.block ? inputs - next_k : layout.block;
          const std::int64_t panel_lines = panels.bytes(next_inputs) / 64, lines = next_width * panel_lines, share = panel_lines / tiles * 2 + 2;
          std::int64_t line = 0;
          for (std::int64_t t = t0; t < t_end; t += kGroupedTokens) {
            const char* record = static_cast<const char*>(activations) + t / kGroupedTokens * layout.tile_bytes;
            tile.x = reinterpret_cast<const std::int8_t*>(record) + k * kGroupedTokens;
            tile.high = reinterpret_cast<const std::int8_t*>(record + layout.high_at) + k * kGroupedTokens;
            tile.wide = reinterpret_cast<const WideQuad*>(record + layout.wide_at) + k / 4;
            tile.wides = reinterpret_cast<const std::int32_t*>(record + layout.counts_at)[b];
            tile.sums = reinterpret_cast<const std::int32_t*>(record + layout.sums_at) + (kGroups ? k / layout.width * kGroupedTokens : 0);
            tile.token_scales = reinterpret_cast<const float*>(record + layout.scales_at);
            tile.rows = t_end - t;
            tile.y = y + t * ldy + panel * 16;
            tile.lines = 0;
            if (line < lines) {
              const std::int64_t at = line % panel_lines;
              tile.ahead = panels.at(next_panel + line / panel_lines, next_k) + at * 64;
              tile.lines = panel_lines - at < share ? panel_lines - at : share;
              line += tile.lines;
            }
            if (width == kTilePanels) prompt_tile<kBits, kZeroPoint, kTilePanels, kGroups>(tile);
            else prompt_tile<kBits, kZeroPoint, 1, kGroups>(tile);
          }
        }
      }
    }
  }
}
