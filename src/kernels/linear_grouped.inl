// Prompt activations and their products with int8 and int4 weights, for every ISA with a vector vocabulary (dot.h).

#include "kernels/prompt_tile.inl"

std::size_t grouped_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t group) {
  return static_cast<std::size_t>((tokens + kGroupedTokens - 1) / kGroupedTokens * PromptLayout(inputs, group).tile_bytes);
}

// Inputs [k, k + 16) of a row that has `left` of them from k on; the others 0.
LANES_INLINE Lanes load_part(const float* p, std::int64_t left) { return left >= 16 ? load_lanes(p) : load_some(p, left); }

LANES_INLINE float mean_root(Lanes squares, std::int64_t inputs) {
  float lanes[16], sum = 0;
  store_lanes(lanes, squares);
  for (const float lane : lanes) sum += lane;
  return __builtin_sqrtf(sum / static_cast<float>(inputs));
}

// The value of code 127 of one token; 0: all its codes are 0.
float prompt_top(const float* row, std::int64_t inputs) {
  Lanes squares = zeros(), most = zeros();
  for (std::int64_t k = 0; k < inputs; k += 16) {
    const Lanes x = load_part(row + k, inputs - k);
    most = maximum(magnitude(x), most);
    squares = fused(x, x, squares);
  }
  const float absmax = largest(most);
  if (absmax < 0x1p-100f) return 0;
  float rms = mean_root(squares, inputs);
  const float bound = kOutlierRms * rms;
  if (absmax > bound) {
    squares = zeros();
    for (std::int64_t k = 0; k < inputs; k += 16) {
      const Lanes x = minimum(magnitude(load_part(row + k, inputs - k)), splat(bound));
      squares = fused(x, x, squares);
    }
    rms = mean_root(squares, inputs);
  }
  const float limit = kOneByteRms * rms, top = absmax < limit ? absmax : limit;
  return top < absmax / 255.0f ? absmax / 255.0f : top;
}

// Tokens [t, t + rows) as one record of kTokens.
template <int kTokens>
void quantize_tile(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t inputs, const PromptLayout& layout, char* tile) {
  const float* row[kTokens];
  Lanes by[kTokens];
  auto* scales = reinterpret_cast<float*>(tile + layout.scales_at);
  for (std::int64_t r = 0; r < kTokens; ++r) {
    row[r] = x + (r < rows ? r : 0) * ldx;
    const float top = r < rows ? prompt_top(row[r], inputs) : 0;
    by[r] = splat(top == 0 ? 0 : 127.0f / top);
    scales[r] = top / 127.0f;
  }
  auto* counts = reinterpret_cast<std::int32_t*>(tile + layout.counts_at);
  auto* sums = reinterpret_cast<std::int32_t*>(tile + layout.sums_at);
  constexpr std::int64_t kQuadBytes = kTokens * 4;
  Ints sum[kTokens];
  for (std::int64_t r = 0; r < kTokens; ++r) sum[r] = splat_int(0);
  for (std::int64_t b = 0; b < layout.blocks; ++b) {
    const std::int64_t begin = b * layout.block, stop = begin + layout.block < inputs ? begin + layout.block : inputs;
    auto* wide = reinterpret_cast<WideQuad*>(tile + layout.wide_at) + begin / 4;
    char* high = tile + layout.high_at + begin * kTokens;
    counts[b] = 0;
    for (std::int64_t g = begin / layout.width, at = begin; at < stop; ++g) {  // a part of one sum
      const std::int64_t group_end = (g + 1) * layout.width, end = group_end < stop ? group_end : stop;
      for (std::int64_t k = at; k < end; k += 16) {
        const std::int64_t n = end - k < 16 ? end - k : 16;
        Ints q[kTokens], wides = splat_int(0);
        for (std::int64_t r = 0; r < kTokens; ++r) {
          q[r] = nearest(multiply(load_part(row[r] + k, n), by[r]));
          wides = either(wides, shift_right<8>(add(q[r], splat_int(128))));
        }
        for (std::int64_t r = 0; r < kTokens; ++r) sum[r] = add(sum[r], q[r]);
        if (any_bit(wides)) {
          Ints top[kTokens];
          for (std::int64_t r = 0; r < kTokens; ++r) {
            top[r] = shift_right<8>(add(q[r], splat_int(128)));
            q[r] = subtract(q[r], shift_left<8>(top[r]));
          }
          char quads[4][kQuadBytes];
          static constexpr char kNone[kQuadBytes] = {};
          store_quads(quads, top);
          for (std::int64_t j = 0; j < 4; ++j) {
            if (std::memcmp(quads[j], kNone, kQuadBytes) == 0) continue;
            std::memcpy(high, quads[j], kQuadBytes);
            high += kQuadBytes;
            *wide++ = {static_cast<std::uint8_t>((k - begin) / 4 + j), static_cast<std::uint8_t>(g - begin / layout.width)};
            ++counts[b];
          }
        }
        char* low = tile + k * kTokens;
        if (n == 16) {
          store_quads(low, q);
        } else {
          char quads[kTokens * 16];
          store_quads(quads, q);
          std::memcpy(low, quads, static_cast<std::size_t>((n + 7) / 8 * 8 * kTokens));
        }
      }
      at = end;
      if (end < group_end && end < inputs) continue;  // the sum goes on in the next block
      for (std::int64_t r = 0; r < kTokens; ++r) {
        sums[g * kTokens + r] = -8 * total(sum[r]);
        sum[r] = splat_int(0);
      }
    }
  }
}

void quantize_grouped(const float* x, std::int64_t ldx, std::int64_t, std::int64_t inputs, std::int64_t group, std::int64_t begin, std::int64_t end, void* out) {
  const PromptLayout layout(inputs, group);
  for (std::int64_t t = begin; t < end; t += kGroupedTokens) {
    const std::int64_t rows = end - t < kGroupedTokens ? end - t : std::int64_t{kGroupedTokens};
    quantize_tile<kGroupedTokens>(x + t * ldx, ldx, rows, inputs, layout, static_cast<char*>(out) + t / kGroupedTokens * layout.tile_bytes);
  }
}

std::size_t prompt_token_bytes(std::int64_t inputs, std::int64_t group) { return static_cast<std::size_t>(PromptLayout(inputs, group, 1).tile_bytes); }

void quantize_token(const float* x, std::int64_t inputs, std::int64_t group, void* token) {
  quantize_tile<1>(x, inputs, 1, inputs, PromptLayout(inputs, group, 1), static_cast<char*>(token));
}

// out [n][kGroupedTokens] of 32 bits: column r is that of row[r], zeros from row `rows` on.
LANES_INLINE void interleave(const char* const (&row)[kGroupedTokens], std::int64_t rows, std::int64_t n, char* out) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Ints from[kGroupedTokens];
    for (std::int64_t r = 0; r < kGroupedTokens; ++r) from[r] = r < rows ? load_ints(row[r] + i * 4) : splat_int(0);
    store_columns(out + i * kGroupedTokens * 4, from);
  }
  for (; i < n; ++i)
    for (std::int64_t r = 0; r < kGroupedTokens; ++r) {
      std::int32_t value = 0;
      if (r < rows) std::memcpy(&value, row[r] + i * 4, 4);
      std::memcpy(out + (i * kGroupedTokens + r) * 4, &value, 4);
    }
}

// The high parts of a block of K that `rows` tokens have, its first quad at `quad` of a record: the quads of any of them. Returns how many those are.
std::int32_t gather_high(const char* const (&token)[kGroupedTokens], std::int64_t rows, const PromptLayout& from, std::int64_t b, std::int64_t quad, char* high, WideQuad* wide) {
  constexpr std::int64_t kQuadBytes = kGroupedTokens * 4, kWords = kPromptBlock / 4 / 64;
  std::uint64_t marks[kWords] = {};
  std::uint8_t group[kPromptBlock / 4];
  const WideQuad* own[kGroupedTokens];
  std::int32_t counts[kGroupedTokens];
  for (std::int64_t r = 0; r < rows; ++r) {
    own[r] = reinterpret_cast<const WideQuad*>(token[r] + from.wide_at) + quad;
    counts[r] = reinterpret_cast<const std::int32_t*>(token[r] + from.counts_at)[b];
    for (std::int32_t i = 0; i < counts[r]; ++i) {
      const WideQuad& at = own[r][i];
      marks[at.quad / 64] |= std::uint64_t{1} << at.quad % 64;
      group[at.quad] = at.group;
    }
  }
  std::uint8_t place[kPromptBlock / 4];
  std::int32_t count = 0;
  for (std::int64_t word = 0; word < kWords; ++word)
    for (std::uint64_t left = marks[word]; left != 0; left &= left - 1) {
      const std::int64_t at = word * 64 + __builtin_ctzll(left);
      wide[count] = {static_cast<std::uint8_t>(at), group[at]};
      place[at] = static_cast<std::uint8_t>(count++);
    }
  std::memset(high, 0, static_cast<std::size_t>(count * kQuadBytes));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int32_t i = 0; i < counts[r]; ++i)
      std::memcpy(high + place[own[r][i].quad] * kQuadBytes + r * 4, token[r] + from.high_at + (quad + i) * 4, 4);
  return count;
}

void gather_grouped(const void* tokens, std::int64_t stride, std::int64_t inputs, std::int64_t group, const std::int32_t* rows, std::int64_t, std::int64_t begin, std::int64_t end, void* out) {
  const PromptLayout from(inputs, group, 1), to(inputs, group);
  for (std::int64_t t = begin; t < end; t += kGroupedTokens) {
    const std::int64_t some = end - t < kGroupedTokens ? end - t : std::int64_t{kGroupedTokens};
    char* tile = static_cast<char*>(out) + t / kGroupedTokens * to.tile_bytes;
    const char *token[kGroupedTokens], *sums[kGroupedTokens];
    auto* scales = reinterpret_cast<float*>(tile + to.scales_at);
    for (std::int64_t r = 0; r < kGroupedTokens; ++r) {
      token[r] = static_cast<const char*>(tokens) + rows[t + (r < some ? r : 0)] * stride;
      sums[r] = token[r] + from.sums_at;
      scales[r] = r < some ? *reinterpret_cast<const float*>(token[r] + from.scales_at) : 0;
    }
    interleave(token, some, from.low_bytes / 4, tile);
    interleave(sums, some, from.groups, tile + to.sums_at);
    auto* counts = reinterpret_cast<std::int32_t*>(tile + to.counts_at);
    for (std::int64_t b = 0; b < to.blocks; ++b) {
      const std::int64_t quad = b * to.block / 4;
      counts[b] = gather_high(token, some, from, b, quad, tile + to.high_at + quad * kGroupedTokens * 4, reinterpret_cast<WideQuad*>(tile + to.wide_at) + quad);
    }
  }
}

// Panels of u8 codes are taken as they lie, those of u4 codes are spread to bytes first.
template <int kBits>
struct LinearPanels {
  static constexpr std::int64_t kDepth = 32 / kBits;
  const Weight& w;
  std::int64_t panel_bytes, panel_scale_bytes;
  std::uint8_t* spread;  // [kTilePanels][kPromptBlock / 4][64], kBits 4

  const char* at(std::int64_t panel, std::int64_t k) const { return static_cast<const char*>(w.codes) + panel * panel_bytes + k / kDepth * 64; }
  static std::int64_t bytes(std::int64_t inputs) { return (inputs + kDepth - 1) / kDepth * 64; }

  void prepare(std::int64_t panel, std::int64_t width, std::int64_t k, std::int64_t inputs, PromptTile& tile) const {
    tile.scales = static_cast<const char*>(w.scales) + panel * panel_scale_bytes + (w.group == 0 ? 0 : k / w.group * (w.scales_fp16 ? 32 : 64));
    tile.panel_scale_bytes = static_cast<std::size_t>(panel_scale_bytes);
    tile.scales_fp16 = w.scales_fp16;
    tile.codes = reinterpret_cast<const std::uint8_t*>(at(panel, k));
    tile.panel_bytes = static_cast<std::size_t>(panel_bytes);
    if constexpr (kBits == 4) {
      for (std::int64_t p = 0; p < width; ++p) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(at(panel + p, k));
        std::uint8_t* to = spread + p * kPromptBlock * 16;
        for (std::int64_t i = 0; i < bytes(inputs); i += 64) {
          Ints codes[2];
          load_codes(from + i, codes);
          store_ints(to + 2 * i, codes[0]);
          store_ints(to + 2 * i + 64, codes[1]);
        }
      }
      tile.codes = spread;
      tile.panel_bytes = kPromptBlock * 16;
    }
  }
};

template <int kBits>
void gemm_grouped(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  alignas(64) std::uint8_t spread[kBits == 4 ? kTilePanels * kPromptBlock * 16 : 64];
  const LinearPanels<kBits> panels{w, LinearPanels<kBits>::bytes(w.inputs), groups_of(w) * (w.scales_fp16 ? 32 : 64), spread};
  constexpr int kZeroPoint = kBits == 8 ? 128 : 8;
  const PromptLayout layout(w.inputs, w.group);
  if (w.group == 0) prompt_product<kBits, kZeroPoint, false>(layout, w.inputs, panels, activations, tokens, panel_begin, panel_end, y, ldy);
  else prompt_product<kBits, kZeroPoint, true>(layout, w.inputs, panels, activations, tokens, panel_begin, panel_end, y, ldy);
}
