// Products of the look-up format with 15-bit activations as words, after lut4.inl: where a table of 16-bit values is looked up at once (AVX-512).
// Values and activations are multiplied as 16-bit integers, two inputs at a time: one exact sum a group, |sum| <= 16 * 64 * 16256, where bytes would need
// two planes to be joined. It is the integer 128 * h + l of lut4.h, so its float is fma(128, float(h), float(l)): h and l are exact as floats.
//
// Activations, for tiles of R = kLut4Tokens tokens (fewer in the last one); a tile starts at token t0:
//   codes   int16 [groups * 2][R][8]   inputs 8b + 0, 2, 4, 6, 1, 3, 5, 7 of a token; zero past K; at t0 * groups * 32 bytes
//   scales  f32   [tokens]             at the next multiple of 64 bytes
#include "kernels/divisor.inl"

struct Lut4Activations {
  std::int64_t groups, scales_at, bytes;
  Lut4Activations(std::int64_t tokens, std::int64_t inputs) {
    groups = lut4_groups(inputs);
    scales_at = (tokens * groups * 32 + 63) / 64 * 64;
    bytes = scales_at + (tokens * 4 + 63) / 64 * 64;
  }
};

std::size_t lut4_int8_bytes(std::int64_t tokens, std::int64_t inputs) { return static_cast<std::size_t>(Lut4Activations(tokens, inputs).bytes); }

void lut4_quantize_int8(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t begin, std::int64_t end, void* out) {
  const Lut4Activations layout(tokens, inputs);
  char* base = static_cast<char*>(out);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t t0 = t / kLut4Tokens * kLut4Tokens;
    const std::int64_t rows = tokens - t0 < kLut4Tokens ? tokens - t0 : std::int64_t{kLut4Tokens};
    char* codes = base + t0 * layout.groups * 32 + (t - t0) * 16;
    const float* row = x + t * ldx;
    Lanes most = zeros();
    for (std::int64_t k = 0; k < inputs; k += 16) most = maximum(magnitude(inputs - k >= 16 ? load_lanes(row + k) : load_some(row + k, inputs - k)), most);
    const float scale = largest(most) / 16256.0f;
    std::memcpy(base + layout.scales_at + t * 4, &scale, 4);
    const Lanes by = splat(divisor(scale)), bound = splat(16256.0f);
    for (std::int64_t k = 0; k < inputs; k += 16) {
      store_pairs(codes, codes + rows * 16, quantize_lanes(inputs - k >= 16 ? load_lanes(row + k) : load_some(row + k, inputs - k), by, bound));
      codes += rows * 32;
    }
  }
}

struct Lut4Tile {
  const std::uint8_t* codes;  // of the panel
  const std::uint8_t* steps;
  const std::uint8_t* row_exponents;
  std::int64_t groups;
  const char* x;              // of the tile
  const float* token_scales;  // [kTokens]
  std::size_t ahead;          // bytes that codes are fetched ahead
  float* y;
  std::int64_t ldy;
};

template <int kTokens>
[[gnu::noinline]] void lut4_tile(const Lut4Tile& given) {
  const Lut4Tile tile = given;
  const PairTable table = pair_table(kLut4Tables.values);
  Lanes acc[kTokens];
  for (int t = 0; t < kTokens; ++t) acc[t] = zeros();
  const std::uint8_t* codes = tile.codes;
  const std::uint8_t* steps = tile.steps;
  const char* x = tile.x;
  for (std::int64_t g = 0; g < tile.groups; ++g) {
    Ints sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = splat_int(0);
    for (int block = 0; block < 2; ++block) {
      prefetch(codes + tile.ahead);
      Ints pairs[4];
      load_pairs(codes, table, pairs);
      for (int i = 0; i < 4; ++i)
        for (int t = 0; t < kTokens; ++t) sums[t] = dot_pairs(sums[t], pairs[i], x + t * 16 + i * 4);
      codes += 64;
      x += kTokens * 16;
    }
    if (g % 4 == 0) prefetch(steps + tile.ahead / 8);
    const Lanes step = load_steps(steps);
    for (int t = 0; t < kTokens; ++t) acc[t] = fused(to_float(sums[t]), step, acc[t]);
    steps += 16;
  }
  const Lanes scale = load_powers(tile.row_exponents);
  for (int t = 0; t < kTokens; ++t) store_lanes(tile.y + t * tile.ldy, multiply(acc[t], multiply(scale, splat(tile.token_scales[t]))));
}

template <int kTokens = kLut4Tokens>
void lut4_tokens(const Lut4Tile& tile, std::int64_t tokens) {
  if (tokens == kTokens) return lut4_tile<kTokens>(tile);
  if constexpr (kTokens > 1) lut4_tokens<kTokens - 1>(tile, tokens);
}

constexpr std::int64_t kLut4TokenBlock = 64;      // activations of a block stay in L2
constexpr std::size_t kLut4PrefetchBytes = 8192;  // ahead in one stream of memory

void gemm_lut4_int8(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const Lut4Activations layout(tokens, w.inputs);
  const char* base = static_cast<const char*>(activations);
  for (std::int64_t t0 = 0; t0 < tokens; t0 += kLut4TokenBlock) {
    const std::int64_t t_end = t0 + kLut4TokenBlock < tokens ? t0 + kLut4TokenBlock : tokens;
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (std::int64_t t = t0; t < t_end; t += kLut4Tokens) {
        const Lut4Tile tile{.codes = w.codes + panel * layout.groups * 128,
                            .steps = w.steps + panel * layout.groups * 16,
                            .row_exponents = w.row_exponents + panel * 16,
                            .groups = layout.groups,
                            .x = base + t * layout.groups * 32,
                            .token_scales = reinterpret_cast<const float*>(base + layout.scales_at) + t,
                            // The first tile fetches ahead of itself, or the next panel when others follow.
                            .ahead = t > t0 ? 0 : t_end - t0 > kLut4Tokens ? static_cast<std::size_t>(layout.groups) * 128 : kLut4PrefetchBytes,
                            .y = y + t * ldy + panel * 16,
                            .ldy = ldy};
        lut4_tokens(tile, t_end - t < kLut4Tokens ? t_end - t : kLut4Tokens);
      }
  }
}
