// Int8 products, for every ISA with a vector vocabulary (dot.h).
//
// Activations, for tiles of R = kTileTokens tokens (fewer in the last one); a tile starts at token t0:
//   codes   int8  [ceil(K/8)*2][R][2][4]   four inputs of a token, high plane then low plane; zero past K; at t0 * 2 * ceil(K/8)*8 bytes
//   sums    int32 [groups][R][2]           -8 * (sum of the codes of a group): a sum's start for zero point 8, times 16 for 128
//   scales  f32   [tokens]
// one after the other, each starting at a multiple of 64 bytes.

#include "kernels/divisor.inl"

struct Activations {
  std::int64_t token_codes;   // bytes of a token's codes, both planes
  std::int64_t token_sums;    // int32s of a token's sums, both planes
  std::int64_t sums_at, scales_at, bytes;

  Activations(std::int64_t tokens, std::int64_t inputs, std::int64_t group) {
    token_codes = (inputs + 7) / 8 * 16;
    token_sums = (group == 0 ? 1 : (inputs + group - 1) / group) * 2;
    sums_at = (tokens * token_codes + 63) / 64 * 64;
    scales_at = sums_at + (tokens * token_sums * 4 + 63) / 64 * 64;
    bytes = scales_at + (tokens * 4 + 63) / 64 * 64;
  }
};

std::size_t int8_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t group) { return static_cast<std::size_t>(Activations(tokens, inputs, group).bytes); }

void quantize_int8(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t group, std::int64_t begin, std::int64_t end, void* out) {
  const Activations layout(tokens, inputs, group);
  const std::int64_t width = group == 0 ? inputs : group;
  char* base = static_cast<char*>(out);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t t0 = t / kTileTokens * kTileTokens;
    const std::int64_t rows = tokens - t0 < kTileTokens ? tokens - t0 : std::int64_t{kTileTokens};
    char* codes = base + t0 * layout.token_codes + (t - t0) * 8;
    char* sums = base + layout.sums_at + (t0 * layout.token_sums + (t - t0) * 2) * 4;
    const float* row = x + t * ldx;

    Lanes most = zeros();
    std::int64_t k = 0;
    for (; k + 16 <= inputs; k += 16) most = maximum(magnitude(load_lanes(row + k)), most);
    if (k < inputs) most = maximum(magnitude(load_some(row + k, inputs - k)), most);
    const float scale = largest(most) / 16256.0f;
    std::memcpy(base + layout.scales_at + t * 4, &scale, 4);

    const Lanes by = splat(divisor(scale)), bound = splat(16256.0f);
    for (std::int64_t at = 0; at < inputs; at += width) {
      const std::int64_t stop = at + width < inputs ? at + width : inputs;
      Ints high_sum = splat_int(0), low_sum = splat_int(0);
      for (k = at; k < stop; k += 16) {
        const std::int64_t n = stop - k < 16 ? stop - k : 16;
        const Ints q = quantize_lanes(n == 16 ? load_lanes(row + k) : load_some(row + k, n), by, bound);
        const Ints high = shift_right<7>(add(q, splat_int(64))), low = subtract(q, shift_left<7>(high));
        high_sum = add(high_sum, high);
        low_sum = add(low_sum, low);
        char planes[2][16];
        store_bytes(planes[0], high);
        store_bytes(planes[1], low);
        const std::int64_t quads = (n + 7) / 8 * 2;
        for (std::int64_t j = 0; j < quads; ++j) {
          std::memcpy(codes, planes[0] + j * 4, 4);
          std::memcpy(codes + 4, planes[1] + j * 4, 4);
          codes += rows * 8;
        }
      }
      const std::int32_t starts[2] = {static_cast<std::int32_t>(-8 * static_cast<std::int64_t>(total(high_sum))), static_cast<std::int32_t>(-8 * static_cast<std::int64_t>(total(low_sum)))};
      std::memcpy(sums, starts, sizeof starts);
      sums += rows * 8;
    }
  }
}

// Many tokens pass in blocks of K. What waits between them: with groups, y itself holds acc; per channel, the integer sums are kept apart.
constexpr std::int64_t kTokenBlock = 64;   // x (256 KB at most) stays in L2
constexpr std::int64_t kInputBlock = 2048;
constexpr std::int64_t kSumPanels = 8;     // panels whose sums are kept, 64 KB of stack

struct DotTile {
  const std::uint8_t* weights;  // of the first panel, at this block of K
  std::size_t panel_bytes;
  const std::int8_t* codes;     // of the tile, at this block of K
  const std::int32_t* sums;     // of the tile, at this block's first group
  const float* token_scales;    // [kTokens]
  std::int64_t inputs, group;   // of this block of K; inputs a sum runs over
  const char* scales;           // of the first panel, at this block's first group
  std::size_t panel_scale_bytes;
  bool scales_fp16;
  bool channel;
  bool first, last;             // block of K
  std::int32_t* kept;           // channel, unless first and last: [panels][kTokenBlock][2][16], of this panel and token
  std::size_t prefetch[2];      // bytes ahead of the block in work; the second with two panels only
  float* y;
  std::int64_t ldy;
};

// The next 64-byte block of kPanels panels against kRows rows of activations: planes of tokens. Steps of 4 inputs go to sums in turn, from sum `first` on.
template <int kBits, int kRows, int kPanels, int kSums>
LANES_INLINE void dot_block(const std::uint8_t* weights, std::size_t panel_bytes, const std::int8_t* codes, int first, Ints (&sums)[kSums][kRows][kPanels]) {
  constexpr int kSteps = 8 / kBits;
  Codes<kBits> q[kPanels][kSteps];
  for (int p = 0; p < kPanels; ++p) load_codes(weights + p * panel_bytes, q[p]);
  for (int step = 0; step < kSteps; ++step)
    for (int r = 0; r < kRows; ++r) {
      const Activation<kBits> x = splat_activation<kBits>(codes + (step * kRows + r) * 4);
      for (int p = 0; p < kPanels; ++p) {
        Ints& sum = sums[(first + step) % kSums][r][p];
        sum = dot<kBits>(sum, q[p][step], x);
      }
    }
}

template <int kBits, int kTokens, int kPanels>
[[gnu::noinline]] void dot_tile(const DotTile& given) {
  const DotTile tile = given;
  constexpr int kSteps = 8 / kBits;  // runs of 4 inputs in a block
  // Few tokens on one panel: several sums an output, added at the end, hide the latency of a dot product. Integers: the same result.
  constexpr int kSums = kTokens * kPanels * 2 > kAloneSums ? 1 : kAloneSums / (kTokens * kPanels);
  constexpr int kBlocks = kSums > kSteps ? kSums / kSteps : 1;
  Lanes acc[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t)
    for (int p = 0; p < kPanels; ++p) acc[t][p] = tile.first || tile.channel ? zeros() : load_lanes(tile.y + t * tile.ldy + p * 16);
  const std::uint8_t* weights = tile.weights;
  const std::int8_t* codes = tile.codes;
  const std::int32_t* starts = tile.sums;
  std::int64_t left = tile.inputs;
  for (std::int64_t g = 0; left > 0; ++g) {
    Ints sums[kSums][kTokens * 2][kPanels];  // of both planes of a token
    for (int i = 0; i < kSums; ++i)
      for (int t = 0; t < kTokens; ++t)
        for (int plane = 0; plane < 2; ++plane) {
          const Ints start = i > 0 ? splat_int(0) : kBits == 4 ? splat_int(starts[t * 2 + plane]) : shift_left<4>(splat_int(starts[t * 2 + plane]));
          for (int p = 0; p < kPanels; ++p) sums[i][t * 2 + plane][p] = start;
        }
    if (!tile.first && tile.channel)
      for (int t = 0; t < kTokens; ++t)
        for (int plane = 0; plane < 2; ++plane)
          for (int p = 0; p < kPanels; ++p) sums[0][t * 2 + plane][p] = load_ints(tile.kept + p * kTokenBlock * 32 + (t * 2 + plane) * 16);
    starts += kTokens * 2;
    const std::int64_t now = left < tile.group ? left : tile.group;
    left -= now;
    std::int64_t blocks = (now + 4 * kSteps - 1) / (4 * kSteps);
    for (; blocks >= kBlocks; blocks -= kBlocks) {
      for (int i = 0; i < kBlocks; ++i) {
        prefetch(weights + i * 64 + tile.prefetch[0]);
        if (kPanels > 1) prefetch(weights + i * 64 + tile.prefetch[1]);
        dot_block<kBits, kTokens * 2, kPanels, kSums>(weights + i * 64, tile.panel_bytes, codes + i * kSteps * kTokens * 8, i * kSteps, sums);
      }
      weights += kBlocks * 64;
      codes += kBlocks * kSteps * kTokens * 8;
    }
    if constexpr (kBlocks > 1)
      for (; blocks > 0; --blocks) {
        dot_block<kBits, kTokens * 2, kPanels, kSums>(weights, tile.panel_bytes, codes, 0, sums);
        weights += 64;
        codes += kSteps * kTokens * 8;
      }
    for (int p = 0; p < kPanels; ++p) {
      const Lanes scale = load_scales(tile.scales + p * tile.panel_scale_bytes, tile.scales_fp16, g);
      for (int t = 0; t < kTokens; ++t) {
        Ints high = sums[0][t * 2][p], low = sums[0][t * 2 + 1][p];
        for (int i = 1; i < kSums; ++i) {
          high = add(high, sums[i][t * 2][p]);
          low = add(low, sums[i][t * 2 + 1][p]);
        }
        if (!tile.last && tile.channel) {
          store_ints(tile.kept + p * kTokenBlock * 32 + t * 32, high);
          store_ints(tile.kept + p * kTokenBlock * 32 + t * 32 + 16, low);
          continue;
        }
        const Lanes v = fused(splat(128.0f), to_float(high), to_float(low));
        acc[t][p] = tile.channel ? multiply(v, multiply(scale, splat(tile.token_scales[t]))) : fused(v, scale, acc[t][p]);
      }
    }
  }
  if (!tile.last && tile.channel) return;
  for (int t = 0; t < kTokens; ++t)
    for (int p = 0; p < kPanels; ++p) store_lanes(tile.y + t * tile.ldy + p * 16, tile.channel || !tile.last ? acc[t][p] : multiply(acc[t][p], splat(tile.token_scales[t])));
}

template <int kBits, int kPanels, int kTokens = kTileTokens>
void dot_tokens(const DotTile& tile, std::int64_t tokens) {
  if (tokens == kTokens) return dot_tile<kBits, kTokens, kPanels>(tile);
  if constexpr (kTokens > 1) dot_tokens<kBits, kPanels, kTokens - 1>(tile, tokens);
}

// Ahead of the block in work when memory is one stream: what the hardware does not fetch by itself.
constexpr std::size_t kPrefetchBytes = 4096;
// From here on two panels at once pay.
constexpr std::int64_t kPairTokens = 2;
// Where a product is: what a tile of it needs to know.
struct DotPlace {
  const Weight& w;
  const Activations& layout;
  const char* base;    // activations
  std::int64_t tokens;
  float* y;
};

// The tile that starts at token t, times `width` panels, over inputs [k, k + tile.inputs).
template <int kBits>
LANES_INLINE void dot_panels(DotTile& tile, const DotPlace& at, std::int64_t t, std::int64_t k, std::int64_t panel, std::int64_t width) {
  const std::int64_t rows = at.tokens - t < kTileTokens ? at.tokens - t : std::int64_t{kTileTokens};
  const std::int64_t g = tile.channel ? 0 : k / tile.group;
  tile.weights = static_cast<const std::uint8_t*>(at.w.codes) + panel * tile.panel_bytes + k / (32 / kBits) * 64;
  tile.scales = static_cast<const char*>(at.w.scales) + panel * tile.panel_scale_bytes + g * (tile.scales_fp16 ? 32 : 64);
  tile.codes = reinterpret_cast<const std::int8_t*>(at.base + t * at.layout.token_codes + k / 4 * rows * 8);
  tile.sums = reinterpret_cast<const std::int32_t*>(at.base + at.layout.sums_at) + t * at.layout.token_sums + g * rows * 2;
  tile.token_scales = reinterpret_cast<const float*>(at.base + at.layout.scales_at) + t;
  tile.y = at.y + t * tile.ldy + panel * 16;
  if (width == kTilePanels) dot_tokens<kBits, kTilePanels>(tile, rows);
  else dot_tokens<kBits, 1>(tile, rows);
}

// Few tokens take panels whole: memory is read once. One token passes panel after panel, a single stream;
// more work on panels that stay in L2 and fetch the next ones meanwhile.
template <int kBits>
void gemm_whole(DotTile tile, const DotPlace& at, std::int64_t panel_begin, std::int64_t panel_end) {
  tile.inputs = at.w.inputs;
  tile.first = tile.last = true;
  std::int64_t panel = panel_begin;
  while (panel < panel_end) {
    const std::int64_t width = at.tokens >= kPairTokens && panel_end - panel >= kTilePanels ? kTilePanels : 1;
    for (std::int64_t t = 0; t < at.tokens; t += kTileTokens) {
      const std::int64_t ahead = t / kTileTokens;  // this tile fetches the panel that is `ahead` behind these
      if (at.tokens <= kTileTokens && width == 1) tile.prefetch[0] = kPrefetchBytes;
      else tile.prefetch[0] = ahead < width ? static_cast<std::size_t>(width + ahead) * tile.panel_bytes : 0;
      tile.prefetch[1] = tile.prefetch[0] + (at.tokens <= kTileTokens ? tile.panel_bytes : 0);
      dot_panels<kBits>(tile, at, t, 0, panel, width);
    }
    panel += width;
  }
}

// Many tokens: a block of them stays in L2 over a block of K, and all panels pass.
template <int kBits>
void gemm_blocks(DotTile tile, const DotPlace& at, std::int64_t panel_begin, std::int64_t panel_end) {
  const std::int64_t unit = at.w.group > 0 ? at.w.group : 8;
  const std::int64_t step = at.w.inputs <= kInputBlock * 3 / 2 ? at.w.inputs : (kInputBlock + unit - 1) / unit * unit;
  const bool split = tile.channel && step < at.w.inputs;  // only then do integer sums wait in `kept` between blocks of K
  const std::int64_t panel_step = split ? kSumPanels : panel_end - panel_begin;
  alignas(64) std::int32_t kept[kSumPanels * kTokenBlock * 32];
  for (std::int64_t t0 = 0; t0 < at.tokens; t0 += kTokenBlock) {
    const std::int64_t t_end = t0 + kTokenBlock < at.tokens ? t0 + kTokenBlock : at.tokens;
    for (std::int64_t p0 = panel_begin; p0 < panel_end; p0 += panel_step) {
      const std::int64_t p_end = p0 + panel_step < panel_end ? p0 + panel_step : panel_end;
      for (std::int64_t k = 0; k < at.w.inputs; k += step) {
        tile.inputs = at.w.inputs - k < step ? at.w.inputs - k : step;
        tile.first = k == 0;
        tile.last = k + step >= at.w.inputs;
        std::int64_t panel = p0;
        while (panel < p_end) {
          const std::int64_t width = p_end - panel >= kTilePanels ? kTilePanels : 1;
          for (std::int64_t t = t0; t < t_end; t += kTileTokens) {
            const std::int64_t ahead = (t - t0) / kTileTokens;
            tile.prefetch[0] = tile.prefetch[1] = ahead < width ? static_cast<std::size_t>(width + ahead) * tile.panel_bytes : 0;
            tile.kept = split ? kept + ((panel - p0) * kTokenBlock + t - t0) * 32 : kept;
            dot_panels<kBits>(tile, at, t, k, panel, width);
          }
          panel += width;
        }
      }
    }
  }
}

template <int kBits>
void gemm_int8(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const Activations layout(tokens, w.inputs, w.group);
  constexpr std::int64_t kDepth = 32 / kBits;
  DotTile tile{};
  tile.panel_bytes = static_cast<std::size_t>((w.inputs + kDepth - 1) / kDepth) * 64;
  tile.group = w.group == 0 ? w.inputs : w.group;
  tile.channel = w.group == 0;
  tile.panel_scale_bytes = static_cast<std::size_t>(groups_of(w)) * (w.scales_fp16 ? 32 : 64);
  tile.scales_fp16 = w.scales_fp16;
  tile.ldy = ldy;
  const DotPlace at{w, layout, static_cast<const char*>(activations), tokens, y};
  if (tokens <= kTokenBlock / 2) gemm_whole<kBits>(tile, at, panel_begin, panel_end);
  else gemm_blocks<kBits>(tile, at, panel_begin, panel_end);
}
