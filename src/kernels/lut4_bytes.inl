// Products of the look-up format with activations of two int8 planes, after lut4.inl: where bytes are multiplied faster than 16-bit integers (AVX2).
//
// Activations, for tiles of R = kTileTokens tokens (fewer in the last one); a tile starts at token t0:
//   codes   int8  [groups * 4][R][2][4]   four inputs of a token, high plane then low plane; zero past K; at t0 * groups * 32 bytes
//   sums    int32 [groups][R]             -64 * (sum of 128 * high + low of a group), for the 64 in the values
//   scales  f32   [tokens]
// one after the other, each starting at a multiple of 64 bytes.
#include "kernels/divisor.inl"

struct Lut4Activations {
  std::int64_t groups, sums_at, scales_at, bytes;
  Lut4Activations(std::int64_t tokens, std::int64_t inputs) {
    groups = lut4_groups(inputs);
    sums_at = (tokens * groups * 32 + 63) / 64 * 64;
    scales_at = sums_at + (tokens * groups * 4 + 63) / 64 * 64;
    bytes = scales_at + (tokens * 4 + 63) / 64 * 64;
  }
};

std::size_t lut4_int8_bytes(std::int64_t tokens, std::int64_t inputs) { return static_cast<std::size_t>(Lut4Activations(tokens, inputs).bytes); }

void lut4_quantize_int8(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t begin, std::int64_t end, void* out) {
  const Lut4Activations layout(tokens, inputs);
  char* base = static_cast<char*>(out);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t t0 = t / kTileTokens * kTileTokens;
    const std::int64_t rows = tokens - t0 < kTileTokens ? tokens - t0 : std::int64_t{kTileTokens};
    char* codes = base + t0 * layout.groups * 32 + (t - t0) * 8;
    char* sums = base + layout.sums_at + t0 * layout.groups * 4 + (t - t0) * 4;
    const float* row = x + t * ldx;
    Lanes most = zeros();
    for (std::int64_t k = 0; k < inputs; k += 16) most = maximum(magnitude(inputs - k >= 16 ? load_lanes(row + k) : load_some(row + k, inputs - k)), most);
    const float scale = largest(most) / 16256.0f;
    std::memcpy(base + layout.scales_at + t * 4, &scale, 4);
    const Lanes by = splat(divisor(scale)), bound = splat(16256.0f);
    for (std::int64_t k = 0; k < inputs; k += 16) {
      const Ints q = quantize_lanes(inputs - k >= 16 ? load_lanes(row + k) : load_some(row + k, inputs - k), by, bound);
      const Ints high = shift_right<7>(add(q, splat_int(64))), low = subtract(q, shift_left<7>(high));
      char planes[2][16];
      store_bytes(planes[0], high);
      store_bytes(planes[1], low);
      for (int j = 0; j < 4; ++j) {
        std::memcpy(codes, planes[0] + j * 4, 4);
        std::memcpy(codes + 4, planes[1] + j * 4, 4);
        codes += rows * 8;
      }
      const std::int32_t offset = -64 * total(q);
      std::memcpy(sums, &offset, sizeof offset);
      sums += rows * 4;
    }
  }
}

struct Lut4Tile {
  const std::uint8_t* codes;   // of the first panel
  const std::uint8_t* steps;
  const std::uint8_t* row_exponents;
  std::int64_t groups;
  const std::int8_t* x;        // of the tile
  const std::int32_t* sums;
  const float* token_scales;   // [kTokens]
  std::size_t ahead;           // bytes that codes are fetched ahead
  float* y;
  std::int64_t ldy;
};

template <int kTokens, int kPanels>
[[gnu::noinline]] void lut4_tile(const Lut4Tile& given) {
  const Lut4Tile tile = given;
  const std::size_t panel_codes = static_cast<std::size_t>(tile.groups) * 128, panel_steps = static_cast<std::size_t>(tile.groups) * 16;
  const Ints table = table16(kLut4Tables.raised);
  Lanes acc[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t)
    for (int p = 0; p < kPanels; ++p) acc[t][p] = zeros();
  const std::uint8_t* codes = tile.codes;
  const std::uint8_t* steps = tile.steps;
  const std::int8_t* x = tile.x;
  const std::int32_t* starts = tile.sums;
  for (std::int64_t g = 0; g < tile.groups; ++g) {
    // 128 * high + low in one chain of integers: below 2^31, and rounded once, as the two sums joined by fma are.
    Ints values[kPanels][2][2], sums[kTokens][kPanels];
    for (int p = 0; p < kPanels; ++p)
      for (int block = 0; block < 2; ++block) {
        prefetch(codes + p * panel_codes + block * 64 + tile.ahead);
        load_values(codes + p * panel_codes + block * 64, table, values[p][block]);
      }
    codes += 128;
    for (int t = 0; t < kTokens; ++t)
      for (int p = 0; p < kPanels; ++p) sums[t][p] = splat_int(0);
    for (int plane = 0; plane < 2; ++plane) {
      if (plane == 1)
        for (int t = 0; t < kTokens; ++t)
          for (int p = 0; p < kPanels; ++p) sums[t][p] = add(shift_left<7>(sums[t][p]), splat_int(starts[t]));
      for (int run = 0; run < 4; ++run)
        for (int t = 0; t < kTokens; ++t) {
          const Activation<4> quad = splat_activation<4>(x + ((run * kTokens + t) * 2 + plane) * 4);
          for (int p = 0; p < kPanels; ++p) sums[t][p] = dot<4>(sums[t][p], values[p][run / 2][run % 2], quad);
        }
    }
    starts += kTokens;
    x += kTokens * 32;
    for (int p = 0; p < kPanels; ++p) {
      if (g % 4 == 0) prefetch(steps + p * panel_steps + tile.ahead / 8);
      const Lanes step = load_steps(steps + p * panel_steps);
      for (int t = 0; t < kTokens; ++t) acc[t][p] = fused(to_float(sums[t][p]), step, acc[t][p]);
    }
    steps += 16;
  }
  for (int p = 0; p < kPanels; ++p) {
    const Lanes scale = load_powers(tile.row_exponents + p * 16);
    for (int t = 0; t < kTokens; ++t) store_lanes(tile.y + t * tile.ldy + p * 16, multiply(acc[t][p], multiply(scale, splat(tile.token_scales[t]))));
  }
}

template <int kPanels, int kTokens = kTileTokens>
void lut4_tokens(const Lut4Tile& tile, std::int64_t tokens) {
  if (tokens == kTokens) return lut4_tile<kTokens, kPanels>(tile);
  if constexpr (kTokens > 1) lut4_tokens<kPanels, kTokens - 1>(tile, tokens);
}

constexpr std::int64_t kLut4TokenBlock = 64;     // activations of a block stay in L2
constexpr std::size_t kLut4PrefetchBytes = 4096; // ahead in one stream of memory

void gemm_lut4_int8(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const Lut4Activations layout(tokens, w.inputs);
  const char* base = static_cast<const char*>(activations);
  for (std::int64_t t0 = 0; t0 < tokens; t0 += kLut4TokenBlock) {
    const std::int64_t t_end = t0 + kLut4TokenBlock < tokens ? t0 + kLut4TokenBlock : tokens;
    std::int64_t panel = panel_begin;
    while (panel < panel_end) {
      const std::int64_t width = tokens > 1 && panel_end - panel >= kTilePanels ? kTilePanels : 1;
      for (std::int64_t t = t0; t < t_end; t += kTileTokens) {
        const Lut4Tile tile{.codes = w.codes + panel * layout.groups * 128,
                            .steps = w.steps + panel * layout.groups * 16,
                            .row_exponents = w.row_exponents + panel * 16,
                            .groups = layout.groups,
                            .x = reinterpret_cast<const std::int8_t*>(base + t * layout.groups * 32),
                            .sums = reinterpret_cast<const std::int32_t*>(base + layout.sums_at + t * layout.groups * 4),
                            .token_scales = reinterpret_cast<const float*>(base + layout.scales_at) + t,
                            // The first tile fetches ahead of itself, or the next panels when others follow.
                            .ahead = t > t0 ? 0 : t_end - t0 > kTileTokens ? static_cast<std::size_t>(width * layout.groups) * 128 : kLut4PrefetchBytes,
                            .y = y + t * ldy + panel * 16,
                            .ldy = ldy};
        if (width == kTilePanels) lut4_tokens<kTilePanels>(tile, t_end - t < kTileTokens ? t_end - t : kTileTokens);
        else lut4_tokens<1>(tile, t_end - t < kTileTokens ? t_end - t : kTileTokens);
      }
      panel += width;
    }
  }
}
