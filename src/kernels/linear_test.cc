// Matrix products against exact sums in double, against the scalar table bit for bit, and against themselves cut into pieces.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

enum class Kind { kF32, kBf16, kU8, kU4 };

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<std::byte[], FreeDeleter>;
Aligned aligned(std::size_t bytes, int fill = 0) {
  const std::size_t whole = (bytes + 63) / 64 * 64;
  Aligned memory(static_cast<std::byte*>(std::aligned_alloc(64, whole)));
  std::memset(memory.get(), fill, whole);
  return memory;
}

// A random weight packed as kernels.h says, and its plain values.
struct Packed {
  Weight weight;
  std::vector<float> values;   // [N][K]: the weight itself, or the integer q
  std::vector<float> scales;   // [N][groups], widened
  Aligned codes, packed_scales;

  float value(std::int64_t n, std::int64_t k) const { return values[n * weight.inputs + k]; }
  float scale(std::int64_t n, std::int64_t g) const { return scales.empty() ? 1 : scales[n * weight.groups() + g]; }

  Packed(Kind kind, std::int64_t outputs, std::int64_t inputs, std::int64_t group, bool fp16, std::mt19937& rng, bool extreme = false) {
    weight.outputs = outputs;
    weight.inputs = inputs;
    weight.group = group;
    weight.scales_fp16 = fp16;
    const std::int64_t panels = weight.panels(), groups = weight.groups();
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> q8(-128, 127), q4(-8, 7);  // all codes: other tools write the lowest too
    values.resize(outputs * inputs);
    const int depth = kind == Kind::kF32 ? 1 : kind == Kind::kBf16 ? 2 : kind == Kind::kU8 ? 4 : 8;
    const std::int64_t blocks = (inputs + depth - 1) / depth;
    codes = aligned(panels * blocks * 64, kind == Kind::kU8 ? 128 : kind == Kind::kU4 ? 0x88 : 0);
    for (std::int64_t n = 0; n < outputs; ++n)
      for (std::int64_t k = 0; k < inputs; ++k) {
        float& v = values[n * inputs + k];
        v = normal(rng);
        if (kind == Kind::kBf16) v = bf16_to_float(float_to_bf16(v));
        if (kind == Kind::kU8) v = extreme ? (n % 2 ? -128 : 127) : static_cast<float>(q8(rng));
        if (kind == Kind::kU4) v = extreme ? (n % 2 ? -8 : 7) : static_cast<float>(q4(rng));
        std::byte* block = codes.get() + (n / 16 * blocks + k / depth) * 64 + n % 16 * 4;
        if (kind == Kind::kF32) std::memcpy(block, &v, 4);
        if (kind == Kind::kBf16) {
          const std::uint16_t bits = float_to_bf16(v);
          std::memcpy(block + k % 2 * 2, &bits, 2);
        }
        if (kind == Kind::kU8) block[k % 4] = static_cast<std::byte>(static_cast<int>(v) + 128);
        if (kind == Kind::kU4) {
          const int other = std::to_integer<int>(block[k % 4]), code = static_cast<int>(v) + 8;
          block[k % 4] = static_cast<std::byte>(k % 8 < 4 ? (other & 0xf0) | code : (other & 0x0f) | code << 4);
        }
      }
    weight.codes = codes.get();
    if (kind == Kind::kF32 || kind == Kind::kBf16) return;
    scales.resize(outputs * groups);
    packed_scales = aligned(panels * groups * 64);
    for (std::int64_t n = 0; n < outputs; ++n)
      for (std::int64_t g = 0; g < groups; ++g) {
        float s = std::fabs(normal(rng)) * 0.01f;
        if (n % 7 == 3) s = 0;
        if (fp16 && n % 5 == 1) s = 0x1p-20f;  // subnormal in FP16
        const std::uint16_t half = float_to_fp16(s);
        if (fp16) s = fp16_to_float(half);
        const std::int64_t at = (n / 16 * groups + g) * 16 + n % 16;
        if (fp16) std::memcpy(packed_scales.get() + at * 2, &half, 2);
        else std::memcpy(packed_scales.get() + at * 4, &s, 4);
        scales[n * groups + g] = s;
      }
    weight.scales = packed_scales.get();
  }
};

struct Shape {
  std::int64_t tokens, outputs, inputs, group;
  bool fp16;
};
std::string describe(const Shape& s) { return fmt::format("T {} N {} K {} group {} fp16 {}", s.tokens, s.outputs, s.inputs, s.group, s.fp16); }

std::vector<Shape> shapes(std::mt19937& rng, bool scaled) {
  std::vector<Shape> all;
  for (std::int64_t k : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100, 129, 257}) all.push_back({1 + k % 5, 1 + k % 40, k, 0, false});
  for (std::int64_t t = 1; t <= 33; ++t) all.push_back({t, 16 + t * 5 % 90, 40 + t * 7 % 120, 0, false});
  for (std::int64_t n : {1, 15, 16, 17, 32, 33, 63, 64, 65, 80, 96, 112, 130}) all.push_back({1 + n % 3, n, 72, 0, false});
  all.push_back({19, 40, 1500, 0, false});  // several blocks of K
  all.push_back({1, 70, 3001, 0, false});
  all.push_back({35, 150, 3333, 0, false});  // several blocks of panels
  all.push_back({70, 20, 4500, 0, false});   // several blocks of tokens
  if (scaled)
    for (std::int64_t group : {8, 16, 32, 64, 128, 256, 512})
      for (bool fp16 : {false, true}) {
        std::uniform_int_distribution<std::int64_t> tokens(1, 13), outputs(1, 100), inputs(1, 700);
        for (int i = 0; i < 5; ++i) all.push_back({tokens(rng), outputs(rng), inputs(rng), group, fp16});
        all.push_back({17, 33, group * 9, group, fp16});
        all.push_back({21, 50, group * 20 + 3, group, fp16});
        all.push_back({1, 81, group * 3, group, fp16});
        if (fp16 == (group == 32)) all.push_back({67, 33, 3200 + group / 2, group, fp16});
      }
  return all;
}

class LinearTest : public testing::Test {
 protected:
  void SetUp() override {
    auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    linear = (*table)->linear;
    isa = (*table)->isa;
    scalar = (*find("scalar"))->linear;
  }
  const LinearKernels* linear = nullptr;
  const LinearKernels* scalar = nullptr;
  std::string isa;
  std::mt19937 rng{20240608};

  template <class X>
  using Product = void (*)(const Weight&, const X*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t);

  // x in memory that ends with the last element, rows ldx apart.
  template <class X>
  std::vector<X> inputs_of(const Shape& s, std::int64_t ldx) {
    std::normal_distribution<float> normal;
    std::vector<X> x((s.tokens - 1) * ldx + s.inputs);
    for (X& v : x) {
      if constexpr (std::is_same_v<X, float>) v = normal(rng);
      else v = float_to_bf16(normal(rng));
    }
    return x;
  }

  // `flat`: the absolute part of the error bound per input.
  template <class X>
  void check_float(Kind kind, Product<X> product, Product<X> reference, double relative, double flat) {
    for (const Shape& s : shapes(rng, kind == Kind::kU8 || kind == Kind::kU4)) {
      SCOPED_TRACE(describe(s));
      const Packed w(kind, s.outputs, s.inputs, s.group, s.fp16, rng);
      const std::int64_t panels = w.weight.panels(), ldx = s.inputs + s.tokens % 3, ldy = panels * 16 + s.tokens % 2 * 5;
      const std::vector<X> x = inputs_of<X>(s, ldx);
      const float untouched = -777.0f;
      std::vector<float> y(s.tokens * ldy, untouched);
      product(w.weight, x.data(), ldx, s.tokens, 0, panels, y.data(), ldy);
      const auto input = [&](std::int64_t t, std::int64_t k) {
        if constexpr (std::is_same_v<X, float>) return x[t * ldx + k];
        else return bf16_to_float(x[t * ldx + k]);
      };
      const std::int64_t width = s.group == 0 ? s.inputs : s.group;
      const bool large = s.tokens * s.outputs * s.inputs > 300'000;  // a sample is compared with the oracle
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        for (std::int64_t n = 0; n < s.outputs; ++n) {
          if (large && (t * 3 + n) % 8 != 0) continue;
          double sum = 0, size = 0;
          for (std::int64_t k = 0; k < s.inputs; ++k) {
            const double term = double{w.value(n, k)} * w.scale(n, k / width) * input(t, k);
            sum += term;
            size += std::fabs(term);
          }
          ASSERT_NEAR(y[t * ldy + n], sum, relative * s.inputs * 0x1p-24 * size + flat * s.inputs) << "token " << t << " output " << n;
        }
        for (std::int64_t n = s.outputs; n < panels * 16; ++n) ASSERT_EQ(y[t * ldy + n], 0.0f) << "padding lane " << n;
        for (std::int64_t n = panels * 16; n < ldy; ++n) ASSERT_EQ(y[t * ldy + n], untouched);
      }
      if (large && isa == "scalar") continue;  // slow, and has no tiles
      if (reference) {
        std::vector<float> expected(s.tokens * ldy, untouched);
        reference(w.weight, x.data(), ldx, s.tokens, 0, panels, expected.data(), ldy);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << "differs from scalar";
      }
      // Token by token, panel ranges cut anywhere: the same bits.
      std::vector<float> pieces(s.tokens * ldy, untouched);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const std::int64_t cut = panels * (t % 4) / 3;
        const std::int64_t middle = cut < panels ? cut : panels;
        product(w.weight, x.data() + t * ldx, ldx, 1, 0, middle, pieces.data() + t * ldy, ldy);
        product(w.weight, x.data() + t * ldx, ldx, 1, middle, panels, pieces.data() + t * ldy, ldy);
      }
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "alone differs from in a batch";
      std::fill(pieces.begin(), pieces.end(), untouched);
      for (std::int64_t p = 0; p < panels; ++p) product(w.weight, x.data(), ldx, s.tokens, p, p + 1, pieces.data(), ldy);
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "a panel alone differs";
    }
  }

  using Int8Product = void (*)(const Weight&, const void*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t);

  enum class Form { kPlanes, kGrouped };

  Aligned quantized(Form form, const std::vector<float>& x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t group) const {
    const bool grouped = form == Form::kGrouped;
    Aligned out = aligned((grouped ? linear->grouped_bytes : linear->int8_bytes)(tokens, inputs, group), 0x33);
    // In ranges of 16 tokens, last first, as threads might.
    for (std::int64_t begin = (tokens - 1) / 16 * 16; begin >= 0; begin -= 16)
      (grouped ? linear->quantize_grouped : linear->quantize_int8)(x.data(), ldx, tokens, inputs, group, begin, std::min(begin + 16, tokens), out.get());
    return out;
  }

  // The entry's arithmetic once more, exactly.
  static std::vector<float> expected_int8(const Packed& w, const std::vector<float>& x, std::int64_t ldx, const Shape& s) {
    std::vector<float> y(s.tokens * s.outputs);
    const std::int64_t width = s.group == 0 ? s.inputs : s.group;
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      float absmax = 0;
      for (std::int64_t k = 0; k < s.inputs; ++k) absmax = std::fmax(absmax, std::fabs(x[t * ldx + k]));
      const float scale_x = absmax / 16256.0f;
      std::vector<std::int64_t> high(s.inputs), low(s.inputs);
      for (std::int64_t k = 0; k < s.inputs; ++k) {
        float r = 0;
        if (scale_x != 0) {
          r = x[t * ldx + k] / scale_x;
          r = std::fmin(std::fmax(std::trunc(r + std::copysign(0.5f, r)), -16256.0f), 16256.0f);
        }
        const int q = static_cast<int>(r);
        high[k] = static_cast<int>(std::floor((q + 64) / 128.0));
        low[k] = q - 128 * high[k];
        EXPECT_TRUE(high[k] >= -127 && high[k] <= 127 && low[k] >= -64 && low[k] <= 63);
      }
      for (std::int64_t n = 0; n < s.outputs; ++n) {
        float acc = 0;
        for (std::int64_t g = 0; g < w.weight.groups(); ++g) {
          std::int64_t h = 0, l = 0;
          for (std::int64_t k = g * width; k < std::min((g + 1) * width, s.inputs); ++k) {
            h += static_cast<std::int64_t>(w.value(n, k)) * high[k];
            l += static_cast<std::int64_t>(w.value(n, k)) * low[k];
          }
          const float v = std::fma(128.0f, static_cast<float>(h), static_cast<float>(l));
          acc = s.group == 0 ? v * (w.scale(n, 0) * scale_x) : std::fma(v, w.scale(n, g), acc);
        }
        y[t * s.outputs + n] = s.group == 0 ? acc : acc * scale_x;
      }
    }
    return y;
  }

  // The prompt entries' arithmetic once more, exactly; and how far it may be from x itself: half a step of the codes, and FP32 sums.
  static std::vector<float> expected_grouped(const Packed& w, const std::vector<float>& x, std::int64_t ldx, const Shape& s) {
    std::vector<float> y(s.tokens * s.outputs);
    const std::int64_t width = s.group == 0 ? s.inputs : s.group;
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const float* row = x.data() + t * ldx;
      const auto rms = [&](float bound) {
        float squares[16] = {}, sum = 0;
        for (std::int64_t k = 0; k < s.inputs; ++k) {
          const float v = std::fmin(std::fabs(row[k]), bound);
          squares[k % 16] = std::fma(v, v, squares[k % 16]);
        }
        for (const float lane : squares) sum += lane;
        return std::sqrt(sum / static_cast<float>(s.inputs));
      };
      float a = 0;
      for (std::int64_t k = 0; k < s.inputs; ++k) a = std::fmax(a, std::fabs(row[k]));
      const float limit = kOneByteRms * rms(kOutlierRms * rms(INFINITY)), top = std::fmax(std::fmin(a, limit), a / 255.0f);
      const bool none = a < 0x1p-100f;
      const float scale_x = none ? 0 : top / 127.0f;
      std::vector<std::int64_t> codes(s.inputs);
      for (std::int64_t k = 0; k < s.inputs && !none; ++k) {
        codes[k] = std::lrint(row[k] * (127.0f / top));
        EXPECT_LE(std::abs(codes[k]), a <= limit ? 127 : 127 * 255);
      }
      for (std::int64_t n = 0; n < s.outputs; ++n) {
        float acc = 0;
        double exact = 0, size = 0, rounding = 0;
        for (std::int64_t g = 0; g < w.weight.groups(); ++g) {
          std::int64_t v = 0;
          for (std::int64_t k = g * width; k < std::min((g + 1) * width, s.inputs); ++k) {
            const auto q = static_cast<std::int64_t>(w.value(n, k));
            v += q * codes[k];
            const double weight = static_cast<double>(q) * w.scale(n, g), term = weight * row[k];
            exact += term;
            size += std::fabs(term);
            rounding += std::fabs(weight) * (none ? a * 2.0 : scale_x) * 0.5001;
          }
          acc = s.group == 0 ? static_cast<float>(v) * (w.scale(n, 0) * scale_x) : std::fma(static_cast<float>(v), w.scale(n, g), acc);
        }
        const float result = s.group == 0 ? acc : acc * scale_x;
        EXPECT_NEAR(result, exact, rounding + (size + rounding) * 4 * (w.weight.groups() + 2) * 0x1p-24 + 0x1p-126) << "token " << t << " output " << n;
        y[t * s.outputs + n] = result;
      }
    }
    return y;
  }

  void check_int8(Kind kind, Form form, const std::vector<Shape>& all, bool extreme = false) {
    const bool grouped = form == Form::kGrouped;
    const Int8Product product = grouped ? (kind == Kind::kU8 ? linear->gemm_u8_grouped : linear->gemm_u4_grouped) : kind == Kind::kU8 ? linear->gemm_u8_int8 : linear->gemm_u4_int8;
    for (const Shape& s : all) {
      SCOPED_TRACE(describe(s));
      const Packed w(kind, s.outputs, s.inputs, s.group, s.fp16, rng, extreme);
      const std::int64_t panels = w.weight.panels(), ldx = s.inputs + s.tokens % 3, ldy = panels * 16 + s.tokens % 2 * 5;
      std::vector<float> x = inputs_of<float>(s, ldx);
      for (std::int64_t t = 0; t < s.tokens && extreme; ++t) std::fill_n(x.begin() + t * ldx, s.inputs, t % 2 ? -3.0f : 3.0f);
      // Channels that stand out: one in three tokens of five, so that tiles mix groups with and without large values, and one in a few tokens only.
      for (std::int64_t t = 0; t < s.tokens && !extreme; ++t)
        for (const std::int64_t k : {s.inputs / 3, s.inputs - 1})
          if ((k != s.inputs - 1 && t % 5 < 3) || t % 11 == 6) x[t * ldx + k] *= 40;
      if (s.tokens > 2) std::fill_n(x.begin() + ldx, s.inputs, 0.0f);                                               // a zero token
      if (s.tokens > 3) std::fill_n(x.begin() + 2 * ldx, s.inputs, std::numeric_limits<float>::denorm_min() * 5);  // its scale underflows
      const float untouched = -777.0f;
      std::vector<float> y(s.tokens * ldy, untouched);
      const Aligned activations = quantized(form, x, ldx, s.tokens, s.inputs, s.group);
      product(w.weight, activations.get(), s.tokens, 0, panels, y.data(), ldy);
      const std::vector<float> expected = grouped ? expected_grouped(w, x, ldx, s) : expected_int8(w, x, ldx, s);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        for (std::int64_t n = 0; n < s.outputs; ++n) ASSERT_EQ(y[t * ldy + n], expected[t * s.outputs + n]) << "token " << t << " output " << n;
        for (std::int64_t n = s.outputs; n < panels * 16; ++n) ASSERT_EQ(y[t * ldy + n], 0.0f) << "padding lane " << n;
        for (std::int64_t n = panels * 16; n < ldy; ++n) ASSERT_EQ(y[t * ldy + n], untouched);
      }
      if (isa == "scalar" && s.tokens * s.outputs * s.inputs > 300'000) continue;  // slow, and has no tiles
      std::vector<float> pieces(s.tokens * ldy, untouched);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const std::vector<float> row(x.begin() + t * ldx, x.begin() + t * ldx + s.inputs);
        const Aligned alone = quantized(form, row, s.inputs, 1, s.inputs, s.group);
        const std::int64_t middle = panels * (t % 4) / 3 < panels ? panels * (t % 4) / 3 : panels;
        product(w.weight, alone.get(), 1, 0, middle, pieces.data() + t * ldy, ldy);
        product(w.weight, alone.get(), 1, middle, panels, pieces.data() + t * ldy, ldy);
      }
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "alone differs from in a batch";
      std::fill(pieces.begin(), pieces.end(), untouched);
      for (std::int64_t p = 0; p < panels; ++p) product(w.weight, activations.get(), s.tokens, p, p + 1, pieces.data(), ldy);
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "a panel alone differs";
    }
  }
};

TEST_F(LinearTest, f32_is_within_the_bound_and_equals_scalar) { check_float<float>(Kind::kF32, linear->gemm_f32, scalar->gemm_f32, 4, 0); }
TEST_F(LinearTest, bf16_is_within_the_bound_and_equals_scalar) { check_float<float>(Kind::kBf16, linear->gemm_bf16, scalar->gemm_bf16, 4, 0); }
TEST_F(LinearTest, u8_is_within_the_bound_and_equals_scalar) { check_float<float>(Kind::kU8, linear->gemm_u8, scalar->gemm_u8, 4, 0); }
TEST_F(LinearTest, u4_is_within_the_bound_and_equals_scalar) { check_float<float>(Kind::kU4, linear->gemm_u4, scalar->gemm_u4, 4, 0); }
TEST_F(LinearTest, bf16_bf16_is_within_the_bound) {
  const bool pairs = isa == "avx512_bf16";  // sums two products at once; the others are one chain, as scalar is
  check_float<std::uint16_t>(Kind::kBf16, linear->gemm_bf16_bf16, pairs ? nullptr : scalar->gemm_bf16_bf16, 8, 0x1p-126);
}

TEST_F(LinearTest, u8_int8_equals_exact_integer_sums) { check_int8(Kind::kU8, Form::kPlanes, shapes(rng, true)); }
TEST_F(LinearTest, u4_int8_equals_exact_integer_sums) { check_int8(Kind::kU4, Form::kPlanes, shapes(rng, true)); }
TEST_F(LinearTest, u8_grouped_equals_exact_integer_sums_within_half_a_step) { check_int8(Kind::kU8, Form::kGrouped, shapes(rng, true)); }
TEST_F(LinearTest, u4_grouped_equals_exact_integer_sums_within_half_a_step) { check_int8(Kind::kU4, Form::kGrouped, shapes(rng, true)); }
// All codes at their ends, sums near the end of int32: no step saturates.
TEST_F(LinearTest, int8_products_do_not_saturate) {
  const std::vector<Shape> large = {{1, 17, 66000, 0, false}, {5, 33, 66000, 0, false}, {4, 32, 20001, 0, false}, {6, 40, 1024, 128, true}, {1, 64, 1024, 512, false}, {3, 18, 130, 32, true}};
  for (const Form form : {Form::kPlanes, Form::kGrouped})
    for (const Kind kind : {Kind::kU8, Kind::kU4}) check_int8(kind, form, large, true);
}

// Tokens quantized apart and gathered, some of them more than once, are the rows quantized together: the same memory, bytes that neither writes included.
TEST_F(LinearTest, gathered_prompt_tokens_have_the_memory_of_quantized_rows) {
  constexpr std::int64_t kTokens = 37;
  for (const auto& [inputs, group] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 0}, {8, 0}, {63, 0}, {64, 0}, {136, 0}, {1500, 0}, {2048, 0}, {3333, 0}, {40, 8}, {129, 16}, {2048, 16}, {100, 24}, {1025, 128}, {2048, 128}, {3210, 512}}) {
    SCOPED_TRACE(fmt::format("K {} group {}", inputs, group));
    const std::int64_t ldx = inputs + 3;
    std::vector<float> x = inputs_of<float>({.tokens = kTokens, .outputs = 0, .inputs = inputs, .group = group, .fp16 = false}, ldx);
    for (std::int64_t t = 0; t < kTokens; ++t) {  // values that stand out: none, in a place that tokens share, in places of their own, many
      float* row = x.data() + t * ldx;
      if (t % 5 == 1) row[inputs / 3] *= 60;
      if (t % 5 == 2) row[t * 101 % inputs] = 50;
      for (std::int64_t k = t % 11; k < inputs && t % 5 == 3; k += 11 + t) row[k] *= 9;
      if (t == 9) std::fill_n(row, inputs, 0.0f);
    }
    const auto stride = static_cast<std::int64_t>(linear->token_bytes(inputs, group)) + 64;
    const Aligned tokens = aligned(static_cast<std::size_t>(stride * kTokens), 0x77);
    for (std::int64_t t = 0; t < kTokens; ++t) linear->quantize_token(x.data() + t * ldx, inputs, group, tokens.get() + t * stride);
    for (std::int64_t count = 1; count <= 70; count += inputs > 1000 && count > 10 ? 7 : 1) {
      std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
      std::vector<float> gathered(static_cast<std::size_t>(count * inputs));
      for (std::int64_t r = 0; r < count; ++r) {
        rows[r] = static_cast<std::int32_t>(rng() % kTokens);
        std::copy_n(x.begin() + rows[r] * ldx, inputs, gathered.begin() + r * inputs);
      }
      const Aligned expected = quantized(Form::kGrouped, gathered, inputs, count, inputs, group);
      const std::size_t bytes = linear->grouped_bytes(count, inputs, group);
      const Aligned actual = aligned(bytes, 0x33);
      for (std::int64_t begin = (count - 1) / 16 * 16; begin >= 0; begin -= 16)
        linear->gather_grouped(tokens.get(), stride, inputs, group, rows.data(), count, begin, std::min(begin + 16, count), actual.get());
      ASSERT_EQ(std::memcmp(actual.get(), expected.get(), bytes), 0) << count << " rows";
    }
  }
}

}  // namespace
}  // namespace inflight::kernels
