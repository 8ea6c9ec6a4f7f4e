// FP32 products, for every ISA with a vector vocabulary (dot.h). Each output lane is one chain of fused multiply-adds, K ascending,
// so tiles and blocks of any shape give the bits of isa/scalar/linear.cc. Sums wait in y between blocks of K.

// What a 64-byte block of a panel holds. A type with kPairs multiplies two inputs in one instruction.
struct F32Block { static constexpr int kDepth = 1; static constexpr bool kScaled = false; };
struct Bf16Block { static constexpr int kDepth = 2; static constexpr bool kScaled = false; };
struct U8Block { static constexpr int kDepth = 4; static constexpr bool kScaled = true; };
struct U4Block { static constexpr int kDepth = 8; static constexpr bool kScaled = true; };

// Not Weight::groups(): an inline function of a shared header would be compiled here with this ISA's flags, for everyone.
LANES_INLINE std::int64_t groups_of(const Weight& w) { return w.group == 0 ? 1 : (w.inputs + w.group - 1) / w.group; }

// One thread's share of a product, cut into tiles.
template <class X>
struct FloatTile {
  const char* weights;         // of this panel, at this block of K
  std::size_t panel_bytes;
  const X* x;                  // of this token, at this block of K
  std::int64_t ldx;
  std::int64_t inputs;         // of this block of K
  std::int64_t group;          // inputs a scale covers
  const char* scales;          // of this panel, at this block's first group
  std::size_t panel_scale_bytes;
  bool scales_fp16;
  bool first, last;            // block of K
  bool channel;                // one scale, applied after the last block
  std::size_t ahead;           // prefetch: bytes ahead of a panel's 64-byte block in work
  std::size_t jump;            // one token: bytes from a panel's end to the same panel of the tile behind, where its last `ahead` bytes fetch
  int fetched;                 // -1: of every panel, else of this one (others than the tile's: none)
  float* y;
  std::int64_t ldy;
};

LANES_INLINE Lanes load_scales(const char* scales, bool fp16, std::int64_t g) {
  return fp16 ? load_fp16(reinterpret_cast<const std::uint16_t*>(scales) + g * 16) : load_lanes(reinterpret_cast<const float*>(scales) + g * 16);
}

template <int kDepth>
LANES_INLINE void splat_inputs(const float* x, Lanes (&out)[kDepth]) {
  for (int j = 0; j < kDepth; ++j) out[j] = splat(x[j]);
}
LANES_INLINE void splat_inputs(const std::uint16_t* x, Lanes (&out)[2]) { splat_pair(x, out); }
LANES_INLINE Lanes splat_input(const float* x) { return splat(*x); }
LANES_INLINE Lanes splat_input(const std::uint16_t* x) {
  const std::uint16_t pair[2] = {*x, 0};
  Lanes out[2];
  splat_pair(pair, out);
  return out[0];
}

template <class Block, class X, int kTokens, int kPanels>
LANES_INLINE void float_block(const FloatTile<X>& tile, const char* weights, const X* x, Lanes (&sums)[kTokens][kPanels]) {
  constexpr int kDepth = Block::kDepth;
  if constexpr (requires { Block::kPairs; }) {
    typename Block::Pairs q[kPanels];
    for (int p = 0; p < kPanels; ++p) q[p] = Block::load(weights + p * tile.panel_bytes);
    for (int t = 0; t < kTokens; ++t) {
      const typename Block::Pairs pair = Block::splat(x + t * tile.ldx);
      for (int p = 0; p < kPanels; ++p) sums[t][p] = Block::dot(sums[t][p], q[p], pair);
    }
  } else if constexpr (kDepth <= 2) {
    Lanes q[kPanels][kDepth];
    for (int p = 0; p < kPanels; ++p) widen_block(weights + p * tile.panel_bytes, q[p]);
    for (int t = 0; t < kTokens; ++t) {
      Lanes inputs[kDepth];
      splat_inputs(x + t * tile.ldx, inputs);
      for (int j = 0; j < kDepth; ++j)
        for (int p = 0; p < kPanels; ++p) sums[t][p] = fused(q[p][j], inputs[j], sums[t][p]);
    }
  } else {  // a panel at a time: its floats fill many registers
    for (int p = 0; p < kPanels; ++p) {
      Lanes q[kDepth];
      widen_block(weights + p * tile.panel_bytes, q);
      for (int j = 0; j < kDepth; ++j)
        for (int t = 0; t < kTokens; ++t) sums[t][p] = fused(q[j], splat_input(x + t * tile.ldx + j), sums[t][p]);
    }
  }
}

template <class Block, class X, int kTokens, int kPanels>
[[gnu::noinline]] void float_tile(const FloatTile<X>& given) {
  const FloatTile<X> tile = given;
  constexpr int kDepth = Block::kDepth;
  Lanes acc[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t)
    for (int p = 0; p < kPanels; ++p) acc[t][p] = tile.first ? zeros() : load_lanes(tile.y + t * tile.ldy + p * 16);
  std::size_t fetch[kPanels];
  for (int p = 0; p < kPanels; ++p) fetch[p] = tile.fetched < 0 || tile.fetched == p ? p * tile.panel_bytes + tile.ahead : 0;
  const char* weights = tile.weights;
  const char* const turn = tile.jump != 0 ? weights + (tile.panel_bytes - tile.ahead) : nullptr;
  const X* x = tile.x;
  std::int64_t left = tile.inputs;
  for (std::int64_t g = 0; left > 0; ++g) {
    Lanes sums[kTokens][kPanels];
    const bool grouped = Block::kScaled && !tile.channel;
    for (int t = 0; t < kTokens; ++t)
      for (int p = 0; p < kPanels; ++p) sums[t][p] = grouped ? zeros() : acc[t][p];
    const std::int64_t now = left < tile.group ? left : tile.group;
    for (std::int64_t k = 0; k + kDepth <= now; k += kDepth) {
      if (kTokens == 1 && weights == turn)
        for (int p = 0; p < kPanels; ++p) fetch[p] += tile.jump;
      for (int p = 0; p < kPanels; ++p) prefetch(weights + fetch[p]);
      float_block<Block>(tile, weights, x, sums);
      weights += 64;
      x += kDepth;
    }
    if constexpr (requires { Block::kPairs; }) {
      if (now % 2 != 0) {
        X last[kTokens][2] = {};
        for (int t = 0; t < kTokens; ++t) last[t][0] = x[t * tile.ldx];
        for (int p = 0; p < kPanels; ++p)
          for (int t = 0; t < kTokens; ++t) sums[t][p] = Block::dot(sums[t][p], Block::load(weights + p * tile.panel_bytes), Block::splat(last[t]));
      }
    } else if constexpr (kDepth > 1) {
      const std::int64_t rest = now % kDepth;
      if (rest != 0) {
        for (int p = 0; p < kPanels; ++p) {
          Lanes q[kDepth];
          widen_block(weights + p * tile.panel_bytes, q);
          for (int j = 0; j < kDepth - 1; ++j) {
            if (j >= rest) break;
            for (int t = 0; t < kTokens; ++t) sums[t][p] = fused(q[j], splat_input(x + t * tile.ldx + j), sums[t][p]);
          }
        }
        weights += 64;
      }
    }
    left -= now;
    for (int p = 0; p < kPanels; ++p) {
      if (grouped) {
        const Lanes scale = load_scales(tile.scales + p * tile.panel_scale_bytes, tile.scales_fp16, g);
        for (int t = 0; t < kTokens; ++t) acc[t][p] = fused(sums[t][p], scale, acc[t][p]);
      } else {
        for (int t = 0; t < kTokens; ++t) acc[t][p] = sums[t][p];
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    if (Block::kScaled && tile.channel && tile.last) {
      const Lanes scale = load_scales(tile.scales + p * tile.panel_scale_bytes, tile.scales_fp16, 0);
      for (int t = 0; t < kTokens; ++t) acc[t][p] = fused(acc[t][p], scale, zeros());
    }
    for (int t = 0; t < kTokens; ++t) store_lanes(tile.y + t * tile.ldy + p * 16, acc[t][p]);
  }
}

template <class Block, class X, int kPanels>
void float_tokens(FloatTile<X> tile, std::int64_t tokens) {
  while (tokens >= kFloatTokens) {
    float_tile<Block, X, kFloatTokens, kPanels>(tile);
    ++tile.fetched;
    tile.x += kFloatTokens * tile.ldx;
    tile.y += kFloatTokens * tile.ldy;
    tokens -= kFloatTokens;
  }
  if (kFloatTokens > 4 && tokens >= 4) {
    float_tile<Block, X, 4, kPanels>(tile);
    tile.x += 4 * tile.ldx;
    tile.y += 4 * tile.ldy;
    tokens -= 4;
  }
  if (tokens == 3) float_tile<Block, X, 3, kPanels>(tile);
  if (tokens == 2) float_tile<Block, X, 2, kPanels>(tile);
  if (tokens == 1) float_tile<Block, X, 1, kPanels>(tile);
}

constexpr std::size_t kFarPrefetchBytes = 128 << 10;
constexpr std::size_t kNearPrefetchBytes = 2048;
constexpr std::int64_t kPanelBlockBytes = 16 << 10;  // of a panel, in L1 while a block of tokens passes
constexpr std::int64_t kInputBlockBytes = 256 << 10; // of x, in L2 while panel after panel passes

// Few tokens take a panel whole: memory is read once, in order. More pass in blocks of K: a block of x stays in L2 for all panels.
template <class Block, class X>
void gemm_float(const Weight& w, const X* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  constexpr int kDepth = Block::kDepth;
  constexpr int kPanels = kDepth >= 4 ? 1 : kFloatPanels;                         // codes as floats fill registers
  const int few_panels = tokens <= (kDepth == 8 ? 3 : 4) ? kFloatPanels : kPanels;  // but few tokens leave them free
  const bool channel = Block::kScaled && w.group == 0;
  const bool whole = tokens <= kFloatTokens;
  const std::size_t scale_bytes = static_cast<std::size_t>(w.scales_fp16 ? 2 : 4) * 16;
  std::int64_t step = w.inputs, token_step = tokens;
  if (!whole) {  // whole groups, whole 64-byte blocks, whole tiles
    const std::int64_t unit = w.group > 0 ? w.group : 8;
    step = (kPanelBlockBytes / 64 * kDepth + unit - 1) / unit * unit;
    const std::int64_t fit = kInputBlockBytes / (step * static_cast<std::int64_t>(sizeof(X))) / kFloatTokens * kFloatTokens;
    token_step = fit > kFloatTokens ? fit : kFloatTokens;
  }
  FloatTile<X> tile{};
  tile.panel_bytes = static_cast<std::size_t>((w.inputs + kDepth - 1) / kDepth) * 64;
  tile.ldx = ldx;
  tile.ldy = ldy;
  tile.group = w.group > 0 ? w.group : w.inputs;
  tile.panel_scale_bytes = static_cast<std::size_t>(groups_of(w)) * scale_bytes;
  tile.scales_fp16 = w.scales_fp16;
  tile.channel = channel;
  for (std::int64_t t = 0; t < tokens; t += token_step) {
    const std::int64_t rows = tokens - t < token_step ? tokens - t : token_step;
    for (std::int64_t k = 0; k < w.inputs; k += step) {
      tile.x = x + t * ldx + k;
      tile.inputs = w.inputs - k < step ? w.inputs - k : step;
      tile.first = k == 0;
      tile.last = k + step >= w.inputs;
      std::int64_t panel = panel_begin;
      while (panel < panel_end) {
        const std::int64_t left = panel_end - panel;
        const int width = tokens == 1 && left >= kAlonePanels ? kAlonePanels : left >= few_panels ? few_panels : left >= kPanels ? kPanels : 1;
        tile.weights = static_cast<const char*>(w.codes) + panel * tile.panel_bytes + static_cast<std::size_t>(k / kDepth) * 64;
        if (Block::kScaled) tile.scales = static_cast<const char*>(w.scales) + panel * tile.panel_scale_bytes + (channel ? 0 : k / tile.group) * scale_bytes;
        tile.y = y + t * ldy + panel * 16;
        // Meanwhile it fetches what it reads next: the panels behind these, or a little ahead where they are long or one token passes. Several tiles fetch a panel each.
        const std::size_t behind = static_cast<std::size_t>(width) * tile.panel_bytes;
        tile.fetched = whole ? -1 : 0;
        tile.ahead = whole && (tokens == 1 || behind > kFarPrefetchBytes) ? kNearPrefetchBytes : behind;
        tile.jump = tokens == 1 && tile.panel_bytes > kNearPrefetchBytes ? behind - tile.panel_bytes : 0;
        if (tokens == 1 && width == kAlonePanels) float_tile<Block, X, 1, kAlonePanels>(tile);
        else if (width == kFloatPanels) float_tokens<Block, X, kFloatPanels>(tile, rows);
        else float_tokens<Block, X, 1>(tile, rows);
        panel += width;
      }
    }
  }
}
