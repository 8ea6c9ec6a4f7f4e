// Products of FP8 weights (fp8.h), for every ISA with a vector vocabulary (dot.h) and its isa/<name>/fp8.h. Few tokens decode in registers as codes
// arrive; more pass in blocks of K that are decoded once for all of them. Sums and scales wait in y between blocks and groups.

// A road says what 4 inputs of a panel become: kParts operands of 16 lanes, one input or a pair each. Its sums are in units of 1 / kUnit.
//   Raw fetch(const char*)   the operands of a block of kBytes, not yet apart       Lanes|Pairs part(raw, j)
//   splat(const Input*)      one part's inputs of a token in all lanes              Lanes step(sum, part, splat)

struct DecodedFloats {  // f32 [K][16]
  static constexpr int kBytes = 256, kParts = 4;
  static const char* fetch(const char* block) { return block; }
  LANES_INLINE static Lanes part(const char* block, int j) { return load_lanes(reinterpret_cast<const float*>(block) + j * 16); }
};

LANES_INLINE Lanes fp8_splat(const float* x) { return splat(*x); }
LANES_INLINE Lanes fp8_splat(const std::uint16_t* x) {
  const std::uint32_t bits = std::uint32_t{*x} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return splat(value);
}

// FP32 arithmetic on codes or on what is decoded of them.
template <class Weights, class X>
struct FloatRoad : Weights {
  using Input = X;
  static constexpr float kUnit = kE4m3Unit;
  LANES_INLINE static Lanes splat(const X* x) { return fp8_splat(x); }
  LANES_INLINE static Lanes step(Lanes sum, Lanes w, Lanes x) { return fused(w, x, sum); }
};

template <class X>
struct Fp8Tile {
  const char* weights;         // of this panel, at this block of K
  std::size_t panel_bytes;
  const X* x;                  // of this token, at this block of K
  std::int64_t ldx;
  std::int64_t inputs;         // of this block of K; a multiple of 4, except in the last
  std::int64_t group;          // inputs a scale covers
  const float* scales;         // of this panel, at this block's first group
  std::size_t panel_scales;    // floats
  bool first, last;            // block of K
  bool channel;                // one scale, applied after the last block
  const char* fetch;           // codes to bring near meanwhile, 64 bytes of each panel for each 4 inputs; nullptr: none
  std::size_t fetch_panel;     // bytes from one panel of them to the next
  std::size_t ahead;           // one token: `fetch` is so many bytes on in this tile's own panels
  std::size_t jump;            // and where these end, so many bytes further, in those of the tile behind
  float* y;
  std::int64_t ldy;
};

template <class Road, class X, int kTokens, int kPanels>
LANES_INLINE void fp8_block(const char* weights, std::size_t panel_bytes, const X* x, std::int64_t ldx, Lanes (&sums)[kTokens][kPanels]) {
  constexpr int kStep = 4 / Road::kParts;
  decltype(Road::fetch(weights)) raw[kPanels];
  for (int p = 0; p < kPanels; ++p) raw[p] = Road::fetch(weights + p * panel_bytes);
  for (int j = 0; j < Road::kParts; ++j) {
    decltype(Road::part(raw[0], 0)) w[kPanels];
    for (int p = 0; p < kPanels; ++p) w[p] = Road::part(raw[p], j);
    for (int t = 0; t < kTokens; ++t) {
      const auto input = Road::splat(x + t * ldx + j * kStep);
      for (int p = 0; p < kPanels; ++p) sums[t][p] = Road::step(sums[t][p], w[p], input);
    }
  }
}

template <class Road, int kTokens, int kPanels>
[[gnu::noinline]] void fp8_tile(const Fp8Tile<typename Road::Input>& given) {
  using X = typename Road::Input;
  const Fp8Tile<X> tile = given;
  const char* weights = tile.weights;
  const char* const turn = tile.jump != 0 ? weights + (tile.panel_bytes - tile.ahead) : nullptr;
  const char* fetch = tile.fetch;
  const X* x = tile.x;
  std::int64_t left = tile.inputs;
  for (std::int64_t g = 0; left > 0; ++g) {
    Lanes sums[kTokens][kPanels];
    for (int t = 0; t < kTokens; ++t)
      for (int p = 0; p < kPanels; ++p) sums[t][p] = tile.channel && !tile.first ? load_lanes(tile.y + t * tile.ldy + p * 16) : zeros();
    const std::int64_t now = left < tile.group ? left : tile.group;
    for (std::int64_t k = 0; k + 4 <= now; k += 4) {
      if (kTokens == 1 && weights == turn) fetch += tile.jump;
      if (fetch) {
        for (int p = 0; p < kPanels; ++p) prefetch(fetch + p * tile.fetch_panel);
        fetch += 64;
      }
      fp8_block<Road>(weights, tile.panel_bytes, x, tile.ldx, sums);
      weights += Road::kBytes;
      x += 4;
    }
    if (now % 4 != 0) {  // codes past K are 0
      X end[kTokens][4] = {};
      for (int t = 0; t < kTokens; ++t)
        for (int j = 0; j < now % 4; ++j) end[t][j] = x[t * tile.ldx + j];
      fp8_block<Road>(weights, tile.panel_bytes, end[0], 4, sums);
    }
    left -= now;
    for (int p = 0; p < kPanels; ++p) {
      if (tile.channel && !tile.last) {
        for (int t = 0; t < kTokens; ++t) store_lanes(tile.y + t * tile.ldy + p * 16, sums[t][p]);
        continue;
      }
      const Lanes scale = load_lanes(tile.scales + p * tile.panel_scales + g * 16);
      for (int t = 0; t < kTokens; ++t) {
        float* y = tile.y + t * tile.ldy + p * 16;
        const Lanes sum = Road::kUnit == 1 ? sums[t][p] : multiply(sums[t][p], splat(Road::kUnit));
        store_lanes(y, fused(sum, scale, tile.channel || (tile.first && g == 0) ? zeros() : load_lanes(y)));
      }
    }
  }
}

template <class Road, int kPanels>
void fp8_tokens(Fp8Tile<typename Road::Input> tile, std::int64_t tokens) {
  const auto next = [&](std::int64_t done) {
    tile.x += done * tile.ldx;
    tile.y += done * tile.ldy;
    tile.fetch = nullptr;  // the first tile fetched
    tokens -= done;
  };
  while (tokens >= kFloatTokens) {
    fp8_tile<Road, kFloatTokens, kPanels>(tile);
    next(kFloatTokens);
  }
  if (kFloatTokens > 4 && tokens >= 4) {
    fp8_tile<Road, 4, kPanels>(tile);
    next(4);
  }
  if (tokens == 3) fp8_tile<Road, 3, kPanels>(tile);
  if (tokens == 2) fp8_tile<Road, 2, kPanels>(tile);
  if (tokens == 1) fp8_tile<Road, 1, kPanels>(tile);
}

// Codes of `blocks` blocks of 4 inputs become what Decoded reads.
template <class Direct, class Decoded>
LANES_INLINE void fp8_decode(const char* codes, std::int64_t blocks, char* out) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto raw = Direct::fetch(codes);
    for (int j = 0; j < Direct::kParts; ++j) store_part(out + j * 64, Direct::part(raw, j));
    codes += Direct::kBytes;
    out += Decoded::kBytes;
  }
}

constexpr std::int64_t kFp8PanelBlockBytes = 16 << 10;   // of a decoded panel, in L1 while a block of tokens passes
constexpr std::int64_t kFp8InputBlockBytes = 256 << 10;  // of x, in L2 while panel after panel passes
constexpr std::size_t kFp8FarBytes = 128 << 10, kFp8NearBytes = 2048;
constexpr std::int64_t kFp8FewTokens = 4 * kFloatTokens;  // up to so many decode their codes again for each tile of tokens: less work than memory out of order

template <class Direct, class Decoded>
void gemm_fp8(const Weight& w, const typename Direct::Input* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  using X = typename Direct::Input;
  static_assert(Direct::kParts == Decoded::kParts && Direct::kUnit == Decoded::kUnit);
  const bool channel = w.group == 0;
  const std::size_t panel_bytes = static_cast<std::size_t>((w.inputs + 3) / 4) * 64;
  Fp8Tile<X> tile{};
  tile.ldx = ldx;
  tile.ldy = ldy;
  tile.group = channel ? w.inputs : w.group;
  tile.panel_scales = static_cast<std::size_t>(channel ? 1 : (w.inputs + w.group - 1) / w.group) * 16;
  tile.channel = channel;
  const auto scales_at = [&](std::int64_t panel, std::int64_t k) { return static_cast<const float*>(w.scales) + panel * tile.panel_scales + (channel ? 0 : k / w.group) * 16; };
  if (tokens <= kFp8FewTokens) {  // panels whole: memory is read once, in order
    tile.panel_bytes = tile.fetch_panel = panel_bytes;
    tile.x = x;
    tile.inputs = w.inputs;
    tile.first = tile.last = true;
    for (std::int64_t panel = panel_begin; panel < panel_end;) {
      const std::int64_t left = panel_end - panel;
      const int width = tokens == 1 && left >= kAlonePanels ? kAlonePanels : left >= kFloatPanels ? kFloatPanels : 1;
      const std::size_t behind = static_cast<std::size_t>(width) * panel_bytes;
      tile.weights = static_cast<const char*>(w.codes) + panel * panel_bytes;
      tile.scales = scales_at(panel, 0);
      tile.y = y + panel * 16;
      tile.ahead = tokens == 1 || behind > kFp8FarBytes ? kFp8NearBytes : behind;
      tile.fetch = tile.weights + tile.ahead;
      tile.jump = tokens == 1 && panel_bytes > kFp8NearBytes ? behind - panel_bytes : 0;
      if (tokens == 1 && width == kAlonePanels) fp8_tile<Direct, 1, kAlonePanels>(tile);
      else if (width == kFloatPanels) fp8_tokens<Direct, kFloatPanels>(tile, tokens);
      else fp8_tokens<Direct, 1>(tile, tokens);
      panel += width;
    }
    return;
  }
  alignas(64) char decoded[kFloatPanels * kFp8PanelBlockBytes];
  const std::int64_t most = kFp8PanelBlockBytes / Decoded::kBytes * 4, step = channel ? most : most / w.group * w.group;
  const std::int64_t fit = kFp8InputBlockBytes / (step * static_cast<std::int64_t>(sizeof(X))) / kFloatTokens * kFloatTokens, token_step = fit > kFloatTokens ? fit : kFloatTokens;
  tile.panel_bytes = kFp8PanelBlockBytes;
  tile.fetch_panel = panel_bytes;
  tile.weights = decoded;
  const auto codes_at = [&](std::int64_t panel, std::int64_t k) { return static_cast<const char*>(w.codes) + panel * panel_bytes + static_cast<std::size_t>(k / 4) * 64; };
  for (std::int64_t t = 0; t < tokens; t += token_step) {
    const std::int64_t rows = tokens - t < token_step ? tokens - t : token_step;
    for (std::int64_t k = 0; k < w.inputs; k += step) {
      tile.x = x + t * ldx + k;
      tile.inputs = w.inputs - k < step ? w.inputs - k : step;
      tile.first = k == 0;
      tile.last = k + step >= w.inputs;
      for (std::int64_t panel = panel_begin; panel < panel_end;) {
        const int width = panel_end - panel >= kFloatPanels ? kFloatPanels : 1;
        for (int p = 0; p < width; ++p)
          fp8_decode<Direct, Decoded>(codes_at(panel + p, k), (tile.inputs + 3) / 4, decoded + p * kFp8PanelBlockBytes);
        tile.fetch = panel + width < panel_end ? codes_at(panel + width, k) : codes_at(panel_begin, k + step);
        tile.scales = scales_at(panel, k);
        tile.y = y + t * ldy + panel * 16;
        if (width == kFloatPanels) fp8_tokens<Decoded, kFloatPanels>(tile, rows);
        else fp8_tokens<Decoded, 1>(tile, rows);
        panel += width;
      }
    }
  }
}
