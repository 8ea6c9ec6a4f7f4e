// The look-up format (lut4.h), for every ISA with its vocabulary (dot.h and lut4.h of its folder).

struct Lut4Tables {
  std::uint8_t values[16];  // signed
  std::uint8_t raised[16];  // values + 64
};
constexpr Lut4Tables make_lut4_tables() {
  Lut4Tables t{};
  for (int i = 0; i < 16; ++i) {
    t.values[i] = static_cast<std::uint8_t>(kLut4Values[i]);
    t.raised[i] = static_cast<std::uint8_t>(kLut4Values[i] + 64);
  }
  return t;
}
constexpr Lut4Tables kLut4Tables = make_lut4_tables();

// ---------------------------------------------------------------- products
LANES_INLINE std::int64_t lut4_groups(std::int64_t inputs) { return (inputs + 15) / 16; }

// Step bytes of 16 rows as floats: the sign, and above it four mantissa and three exponent bits, moved to their places.
LANES_INLINE Lanes load_steps(const std::uint8_t* p) {
  return floats_of(add(both_bits(shift_up_19(widen_signed(p)), splat_int(static_cast<int>(0x83f80000u))), splat_int(131 << 23)));
}

// Scales of 16 rows from their exponent bytes.
LANES_INLINE Lanes load_powers(const std::uint8_t* p) { return floats_of(shift_left<23>(both_bits(widen_signed(p), splat_int(255)))); }

// The next 64-byte block as values + 64 or as signed values: inputs 0 to 3, then 4 to 7.
LANES_INLINE void load_values(const std::uint8_t* block, Ints table, Ints (&values)[2]) {
  const Ints v = load_ints(block);
  values[0] = look_up(table, nibbles_low(v));
  values[1] = look_up(table, nibbles_high(v));
}

constexpr std::int64_t kLut4FloatTokens = 4;

// FP32: tokens t < kTokens against one panel, all of K.
template <int kTokens>
[[gnu::noinline]] void lut4_float_tile(const Lut4Weight& w, std::int64_t panel, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) {
  const std::int64_t groups = lut4_groups(w.inputs);
  const std::uint8_t* codes = w.codes + panel * groups * 128;
  const std::uint8_t* steps = w.steps + panel * groups * 16;
  const Ints table = table16(kLut4Tables.raised);
  Lanes acc[kTokens];
  for (int t = 0; t < kTokens; ++t) acc[t] = zeros();
  for (std::int64_t k = 0; k < w.inputs; k += 16) {
    Lanes sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = zeros();
    const std::int64_t n = w.inputs - k < 16 ? w.inputs - k : 16;
    for (std::int64_t at = 0; at < n; at += 4) {
      Ints values[2];
      load_values(codes + at / 8 * 64, table, values);
      alignas(64) std::uint8_t bytes[64];
      store_ints(bytes, add(values[at / 4 % 2], splat_int(0x40404040)));  // value + 128, as u8 codes are
      Lanes q[4];
      widen_block(bytes, q);
      for (std::int64_t j = 0; j < 4; ++j) {
        if (at + j >= n) break;
        for (int t = 0; t < kTokens; ++t) sums[t] = fused(q[j], splat(x[t * ldx + k + at + j]), sums[t]);
      }
    }
    const Lanes step = load_steps(steps);
    for (int t = 0; t < kTokens; ++t) acc[t] = fused(sums[t], step, acc[t]);
    codes += 128;
    steps += 16;
  }
  const Lanes scale = load_powers(w.row_exponents + panel * 16);
  for (int t = 0; t < kTokens; ++t) store_lanes(y + t * ldy + panel * 16, multiply(acc[t], scale));
}

void gemm_lut4(const Lut4Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
    for (std::int64_t t = 0; t < tokens; t += kLut4FloatTokens) {
      const float* xs = x + t * ldx;
      float* ys = y + t * ldy;
      if (tokens - t >= 4) lut4_float_tile<4>(w, panel, xs, ldx, ys, ldy);
      else if (tokens - t == 3) lut4_float_tile<3>(w, panel, xs, ldx, ys, ldy);
      else if (tokens - t == 2) lut4_float_tile<2>(w, panel, xs, ldx, ys, ldy);
      else lut4_float_tile<1>(w, panel, xs, ldx, ys, ldy);
    }
}
