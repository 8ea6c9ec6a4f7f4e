// The look-up format on the ISA under test: codes against the rule written a second time, products against exact integer sums and the scalar table.
#include "kernels/lut4.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"
#include "kernels/lut4_rule_for_test.h"

namespace inflight::kernels {
namespace {

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<std::byte[], FreeDeleter>;
Aligned aligned(std::size_t bytes) {
  const std::size_t whole = (bytes + 63) / 64 * 64;
  Aligned memory(static_cast<std::byte*>(std::aligned_alloc(64, whole)));
  std::memset(memory.get(), 0, whole);
  return memory;
}

std::int64_t groups_of(std::int64_t inputs) { return (inputs + 15) / 16; }

// Rows of a checkpoint at an odd address, in memory that ends with the last element, and what they widen to.
struct Rows {
  std::vector<float> values;
  std::vector<char> bytes;
  SourceRows source;
  Rows(DType dtype, int rows, std::int64_t inputs, std::int64_t stride, const std::vector<float>& wanted) : values(wanted) {
    const std::int64_t width = dtype == DType::kF32 ? 4 : 2;
    bytes.resize(static_cast<std::size_t>(1 + ((rows - 1) * stride + inputs) * width));
    for (int row = 0; row < rows; ++row)
      for (std::int64_t k = 0; k < inputs; ++k) {
        float& value = values[static_cast<std::size_t>(row * inputs + k)];
        char* at = bytes.data() + 1 + (row * stride + k) * width;
        const std::uint16_t bits = dtype == DType::kBF16 ? float_to_bf16(value) : float_to_fp16(value);
        if (dtype == DType::kF32) std::memcpy(at, &value, 4);
        else std::memcpy(at, &bits, 2);
        if (dtype == DType::kBF16) value = bf16_to_float(bits);
        if (dtype == DType::kF16) value = fp16_to_float(bits);
      }
    source = {.data = bytes.data() + 1, .dtype = dtype, .stride = stride, .rows = rows, .inputs = inputs};
  }
};

enum class Values { kNormal, kZero, kGrid, kTiny, kHuge, kMixed, kOutlier };
constexpr Values kAllValues[] = {Values::kNormal, Values::kZero, Values::kGrid, Values::kTiny, Values::kHuge, Values::kMixed, Values::kOutlier};

std::vector<float> make_values(Values kind, std::int64_t count, DType dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 0.02f);
  std::uniform_int_distribution<int> integer(-128, 128), exponent(-140, 120), sign(0, 1);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    float& v = out[i];
    switch (kind) {
      case Values::kNormal: v = normal(rng); break;
      case Values::kZero: v = sign(rng) ? 0.0f : -0.0f; break;
      case Values::kGrid: v = static_cast<float>(integer(rng)) * 0.5f; break;  // many ties
      case Values::kTiny: v = static_cast<float>(integer(rng)) * 0x1p-149f * (dtype == DType::kF16 ? 0x1p125f : 1); break;
      case Values::kHuge: v = (sign(rng) ? 1.0f : -1.0f) * (dtype == DType::kF16 ? 65504.0f : dtype == DType::kBF16 ? 0x1.fep127f : FLT_MAX) * (sign(rng) ? 1.0f : 0.37f); break;
      case Values::kMixed: v = std::ldexp(normal(rng) * 50, dtype == DType::kF16 ? exponent(rng) / 12 : exponent(rng)); break;
      case Values::kOutlier: v = i % 97 == 5 ? 60.0f : normal(rng); break;
    }
    if (kind == Values::kMixed && i / 16 % 3 == 0) v = 0;  // whole groups of zeros
  }
  return out;
}

class Lut4Test : public testing::Test {
 protected:
  void SetUp() override {
    auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    lut4 = (*table)->lut4;
    linear = (*table)->linear;
    scalar = (*find("scalar"))->lut4;
  }
  const Lut4Kernels* lut4 = nullptr;
  const LinearKernels* linear = nullptr;
  const Lut4Kernels* scalar = nullptr;
  std::mt19937 rng{20240609};
};

TEST_F(Lut4Test, quantize_follows_the_rule_bit_for_bit) {
  constexpr int kRows[][2] = {{0, 16}, {0, 1}, {15, 1}, {3, 5}, {8, 8}};  // lane, rows
  int turn = 0;
  for (const std::int64_t inputs : {1, 2, 15, 16, 17, 31, 32, 48, 63, 64, 65, 96, 100, 127, 128, 129, 200, 300, 517})
    for (const Values kind : kAllValues)
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const auto [lane, rows] = kRows[turn++ % 5];
        const Rows in(dtype, rows, inputs, inputs + 3, make_values(kind, rows * inputs, dtype, rng));
        const std::int64_t groups = groups_of(inputs);
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(groups * 128), 0xa5), steps(static_cast<std::size_t>(groups * 16), 0x5a);
        std::vector<std::uint8_t> exponents(16, 0x77);
        ASSERT_EQ(lut4->quantize(in.source, lane, nullptr, codes.data(), steps.data(), exponents.data()), -1);
        for (int r = 0; r < 16; ++r) {
          const bool ours = r >= lane && r < lane + rows;
          const Lut4Row want = ours ? lut4_by_the_rule(in.values.data() + (r - lane) * inputs, inputs) : Lut4Row{};
          if (ours) {
            ASSERT_EQ(lut4_row_scale(exponents[static_cast<std::size_t>(r)]), want.scale);
          } else {
            ASSERT_EQ(exponents[static_cast<std::size_t>(r)], 0x77);
          }
          for (std::int64_t g = 0; g < groups; ++g) {
            const int s = steps[static_cast<std::size_t>(g * 16 + r)];
            if (!ours) {
              ASSERT_EQ(s, 0x5a) << "lane " << r;
              continue;
            }
            ASSERT_EQ(lut4_signed_step(s % 128, s < 128 ? 1 : -1), want.steps[static_cast<std::size_t>(g)]) << "K " << inputs << " lane " << r << " group " << g << " values " << static_cast<int>(kind);
          }
          for (std::int64_t k = 0; k < groups * 16; ++k) {
            const std::uint8_t byte = codes[static_cast<std::size_t>((k / 8 * 16 + r) * 4 + k % 4)];
            const int nibble = k % 8 < 4 ? byte & 15 : byte >> 4, untouched = k % 8 < 4 ? 5 : 10;
            ASSERT_EQ(nibble, !ours ? untouched : k < inputs ? want.nibbles[static_cast<std::size_t>(k)] : 8)
                << dtype_name(dtype) << " K " << inputs << " lane " << r << " k " << k << " values " << static_cast<int>(kind);
          }
        }
      }
}

TEST_F(Lut4Test, parts_of_rows_have_the_bits_of_whole_rows_where_the_largest_magnitude_is_told) {
  constexpr int kRows = 5, kLane = 3;
  constexpr std::int64_t kInputs = 96, kBegin = 48;  // whole groups
  for (const Values kind : kAllValues)
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const Rows in(dtype, kRows, kInputs, kInputs, make_values(kind, kRows * kInputs, dtype, rng));
      std::vector<std::uint8_t> codes(kInputs / 16 * 128), steps(kInputs), exponents(16), part_codes(codes.size() / 2), part_steps(steps.size() / 2), part_exponents(16);
      ASSERT_EQ(lut4->quantize(in.source, kLane, nullptr, codes.data(), steps.data(), exponents.data()), -1);
      std::vector<float> absmax(kRows, 0.0f), values(kRows * (kInputs - kBegin));
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t k = 0; k < kInputs; ++k) {
          const float value = in.values[r * kInputs + k];
          absmax[r] = std::max(absmax[r], std::fabs(value));
          if (k >= kBegin) values[r * (kInputs - kBegin) + k - kBegin] = value;
        }
      const Rows part(dtype, kRows, kInputs - kBegin, kInputs - kBegin, values);
      ASSERT_EQ(lut4->quantize(part.source, kLane, absmax.data(), part_codes.data(), part_steps.data(), part_exponents.data()), -1);
      EXPECT_EQ(part_exponents, exponents);
      for (std::size_t i = 0; i < part_codes.size(); ++i) ASSERT_EQ(part_codes[i], codes[kBegin / 16 * 128 + i]) << dtype_name(dtype) << " values " << static_cast<int>(kind);
      for (std::size_t i = 0; i < part_steps.size(); ++i) ASSERT_EQ(part_steps[i], steps[kBegin + i]) << dtype_name(dtype) << " values " << static_cast<int>(kind);
    }
}

TEST_F(Lut4Test, zeros_stay_exact_and_nothing_becomes_infinite) {
  for (const Values kind : kAllValues) {
    const std::int64_t inputs = 200;
    const Rows in(DType::kF32, 1, inputs, inputs, make_values(kind, inputs, DType::kF32, rng));
    const Lut4Row row = lut4_by_the_rule(in.values.data(), inputs);
    const std::vector<float> back = lut4_dequantized(row);
    for (std::size_t k = 0; k < back.size(); ++k) {
      ASSERT_TRUE(std::isfinite(back[k]));
      if (in.values[k] == 0) {
        ASSERT_EQ(back[k], 0.0f);
      }
    }
  }
}

TEST_F(Lut4Test, the_first_nan_or_infinity_is_named) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    for (const std::int64_t inputs : {1, 5, 16, 64, 129, 300})
      for (int trial = 0; trial < 6; ++trial) {
        const int rows = trial % 2 ? 16 : 3;
        auto values = make_values(Values::kNormal, rows * inputs, dtype, rng);
        const auto first = std::uniform_int_distribution<std::int64_t>(0, rows * inputs - 1)(rng);
        values[static_cast<std::size_t>(first)] = trial % 3 == 0 ? std::nanf("") : trial % 3 == 1 ? HUGE_VALF : -HUGE_VALF;
        const Rows in(dtype, rows, inputs, inputs, values);
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(groups_of(inputs) * 128)), steps(static_cast<std::size_t>(groups_of(inputs) * 16));
        std::vector<std::uint8_t> exponents(16);
        EXPECT_EQ(lut4->quantize(in.source, 0, nullptr, codes.data(), steps.data(), exponents.data()), first);
      }
}

// A random weight in the layout of lut4.h, and what it means.
struct Packed {
  Lut4Weight weight;
  std::vector<int> values, steps;  // [N][K], [N][groups]
  std::vector<float> scales;       // [N]
  Aligned codes, packed_steps, packed_exponents;

  Packed(std::int64_t outputs, std::int64_t inputs, std::mt19937& rng, bool extreme) {
    const std::int64_t panels = (outputs + 15) / 16, groups = groups_of(inputs);
    codes = aligned(static_cast<std::size_t>(panels * groups * 128));
    packed_steps = aligned(static_cast<std::size_t>(panels * groups * 16));
    packed_exponents = aligned(static_cast<std::size_t>(panels * 16));
    std::memset(codes.get(), 0x88, static_cast<std::size_t>(panels * groups * 128));
    std::uniform_int_distribution<int> nibble(0, 15), step(0, 255), exponent(-30, -10);
    for (std::int64_t n = 0; n < outputs; ++n) {
      const int power = n % 7 == 3 ? 0 : 127 + exponent(rng);
      packed_exponents[static_cast<std::size_t>(n)] = static_cast<std::byte>(power);
      scales.push_back(lut4_row_scale(power));
      for (std::int64_t g = 0; g < groups; ++g) {
        const int s = extreme ? 127 + 128 * static_cast<int>(n % 2) : step(rng);
        packed_steps[static_cast<std::size_t>((n / 16 * groups + g) * 16 + n % 16)] = static_cast<std::byte>(s);
        steps.push_back(lut4_signed_step(s % 128, s < 128 ? 1 : -1));
      }
      for (std::int64_t k = 0; k < inputs; ++k) {
        const int code = extreme ? (n % 3 ? 0 : 15) : nibble(rng);
        values.push_back(lut4_values()[static_cast<std::size_t>(code)]);
        std::byte& byte = codes[static_cast<std::size_t>(((n / 16 * groups * 2 + k / 8) * 16 + n % 16) * 4 + k % 4)];
        byte = k % 8 < 4 ? (byte & std::byte{0xf0}) | static_cast<std::byte>(code) : (byte & std::byte{0x0f}) | static_cast<std::byte>(code << 4);
      }
    }
    weight = {.codes = reinterpret_cast<const std::uint8_t*>(codes.get()), .steps = reinterpret_cast<const std::uint8_t*>(packed_steps.get()),
              .row_exponents = reinterpret_cast<const std::uint8_t*>(packed_exponents.get()), .outputs = outputs, .inputs = inputs};
  }
  std::int64_t value(std::int64_t n, std::int64_t k) const { return values[static_cast<std::size_t>(n * weight.inputs + k)]; }
  int step(std::int64_t n, std::int64_t g) const { return steps[static_cast<std::size_t>(n * groups_of(weight.inputs) + g)]; }
};

struct Shape {
  std::int64_t tokens, outputs, inputs;
};
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (std::int64_t k : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 129, 257}) all.push_back({1 + k % 5, 1 + k % 40, k});
  for (std::int64_t t = 1; t <= 18; ++t) all.push_back({t, 16 + t * 5 % 90, 40 + t * 7 % 120});
  for (std::int64_t n : {1, 15, 17, 33, 48, 65, 112}) all.push_back({1 + n % 3, n, 72});
  all.push_back({67, 40, 300});   // several blocks of tokens
  all.push_back({1, 70, 3001});
  all.push_back({129, 17, 50});
  return all;
}

struct Planes {
  float scale;
  std::vector<int> high, low;
};
Planes planes_of(const float* x, std::int64_t inputs) {
  float most = 0;
  for (std::int64_t k = 0; k < inputs; ++k) most = std::fmax(most, std::fabs(x[k]));
  Planes p{most / 16256.0f, {}, {}};
  for (std::int64_t k = 0; k < inputs; ++k) {
    const float r = p.scale == 0 ? 0 : x[k] / p.scale;
    const int q = static_cast<int>(std::fmin(std::fmax(std::trunc(r + std::copysign(0.5f, r)), -16256.0f), 16256.0f));
    p.high.push_back(static_cast<int>(std::floor((q + 64) / 128.0)));
    p.low.push_back(q - 128 * p.high.back());
  }
  return p;
}

TEST_F(Lut4Test, int8_products_equal_exact_integer_sums_alone_and_together) {
  for (const bool extreme : {false, true})
    for (const Shape& s : shapes()) {
      SCOPED_TRACE(fmt::format("T {} N {} K {} extreme {}", s.tokens, s.outputs, s.inputs, extreme));
      const Packed w(s.outputs, s.inputs, rng, extreme);
      const std::int64_t panels = (s.outputs + 15) / 16, ldx = s.inputs + s.tokens % 3, ldy = panels * 16 + s.tokens % 2 * 5;
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<std::size_t>((s.tokens - 1) * ldx + s.inputs));
      for (float& v : x) v = extreme ? 3.0f : normal(rng);
      if (s.tokens > 2) std::fill_n(x.begin() + ldx, s.inputs, 0.0f);  // a zero token
      const float untouched = -777.0f;
      std::vector<float> y(static_cast<std::size_t>(s.tokens * ldy), untouched), pieces = y;
      const Aligned activations = aligned(lut4->int8_bytes(s.tokens, s.inputs));
      for (std::int64_t t = 0; t < s.tokens; t += 16) lut4->quantize_int8(x.data(), ldx, s.tokens, s.inputs, t, std::min(t + 16, s.tokens), activations.get());
      lut4->gemm_int8(w.weight, activations.get(), s.tokens, 0, panels, y.data(), ldy);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const Planes p = planes_of(x.data() + t * ldx, s.inputs);
        for (std::int64_t n = 0; n < panels * 16; ++n) {
          float acc = 0;
          for (std::int64_t g = 0; n < s.outputs && g < groups_of(s.inputs); ++g) {
            std::int64_t h = 0, l = 0;
            for (std::int64_t k = g * 16; k < std::min(g * 16 + 16, s.inputs); ++k) {
              h += w.value(n, k) * p.high[static_cast<std::size_t>(k)];
              l += w.value(n, k) * p.low[static_cast<std::size_t>(k)];
            }
            acc = std::fma(std::fma(128.0f, static_cast<float>(h), static_cast<float>(l)), static_cast<float>(w.step(n, g)), acc);
          }
          const float expected = n < s.outputs ? acc * (w.scales[static_cast<std::size_t>(n)] * p.scale) : 0;
          ASSERT_EQ(y[static_cast<std::size_t>(t * ldy + n)], expected) << "token " << t << " output " << n;
        }
        for (std::int64_t n = panels * 16; n < ldy; ++n) ASSERT_EQ(y[static_cast<std::size_t>(t * ldy + n)], untouched);
        const Aligned alone = aligned(lut4->int8_bytes(1, s.inputs));
        lut4->quantize_int8(x.data() + t * ldx, ldx, 1, s.inputs, 0, 1, alone.get());
        const std::int64_t middle = panels * (t % 4) / 3 < panels ? panels * (t % 4) / 3 : panels;
        lut4->gemm_int8(w.weight, alone.get(), 1, 0, middle, pieces.data() + t * ldy, ldy);
        lut4->gemm_int8(w.weight, alone.get(), 1, middle, panels, pieces.data() + t * ldy, ldy);
      }
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "alone differs from in a batch";
    }
}

TEST_F(Lut4Test, prompt_products_equal_exact_integer_sums_alone_and_together) {
  const auto quantize = linear->quantize_grouped;
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(fmt::format("T {} N {} K {}", s.tokens, s.outputs, s.inputs));
    const Packed w(s.outputs, s.inputs, rng, false);
    const std::int64_t panels = (s.outputs + 15) / 16, ldx = s.inputs + s.tokens % 3, ldy = panels * 16 + s.tokens % 2 * 5;
    // Half of the values are 127 or -127, the others small: the root mean square is large and every value fits one byte. A few tokens have one value of 127 * 20,
    // which needs 16 bits: codes are then x * 127 / top, top the limit.
    std::vector<float> x(static_cast<std::size_t>((s.tokens - 1) * ldx + s.inputs));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = rng() % 2 ? (rng() % 2 ? 127.0f : -127.0f) : static_cast<float>(static_cast<int>(rng() % 7) - 3);
    for (std::int64_t t = 0; t < s.tokens; ++t) x[static_cast<std::size_t>(t * ldx)] = t % 3 == 1 && s.inputs > 60 ? 127.0f * 20 : 127.0f;
    std::vector<float> y(static_cast<std::size_t>(s.tokens * ldy), -777.0f), pieces = y;
    const Aligned activations = aligned(linear->grouped_bytes(s.tokens, s.inputs, 16));
    for (std::int64_t t = 0; t < s.tokens; t += 16) quantize(x.data(), ldx, s.tokens, s.inputs, 16, t, std::min(t + 16, s.tokens), activations.get());
    lut4->gemm_prompt(w.weight, activations.get(), s.tokens, 0, panels, y.data(), ldy);
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
      const float limit = kOneByteRms * rms(kOutlierRms * rms(INFINITY)), top = std::fmax(std::fmin(row[0], limit), row[0] / 255.0f), scale_x = top / 127.0f;
      for (std::int64_t n = 0; n < panels * 16; ++n) {
        float acc = 0;
        for (std::int64_t g = 0; n < s.outputs && g < groups_of(s.inputs); ++g) {
          std::int64_t v = 0;
          for (std::int64_t k = g * 16; k < std::min(g * 16 + 16, s.inputs); ++k) v += w.value(n, k) * std::lrint(row[k] * (127.0f / top));
          acc = std::fma(static_cast<float>(v), static_cast<float>(w.step(n, g)) * w.scales[static_cast<std::size_t>(n)], acc);
        }
        ASSERT_EQ(y[static_cast<std::size_t>(t * ldy + n)], n < s.outputs ? acc * scale_x : 0) << "token " << t << " output " << n;
      }
      const Aligned alone = aligned(linear->grouped_bytes(1, s.inputs, 16));
      quantize(row, ldx, 1, s.inputs, 16, 0, 1, alone.get());
      const std::int64_t middle = panels * (t % 4) / 3 < panels ? panels * (t % 4) / 3 : panels;
      lut4->gemm_prompt(w.weight, alone.get(), 1, 0, middle, pieces.data() + t * ldy, ldy);
      lut4->gemm_prompt(w.weight, alone.get(), 1, middle, panels, pieces.data() + t * ldy, ldy);
    }
    ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "alone differs from in a batch";
  }
}

TEST_F(Lut4Test, fp32_products_are_within_the_bound_and_equal_scalar) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(fmt::format("T {} N {} K {}", s.tokens, s.outputs, s.inputs));
    const Packed w(s.outputs, s.inputs, rng, false);
    const std::int64_t panels = (s.outputs + 15) / 16, ldx = s.inputs + 1, ldy = panels * 16 + 3;
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>((s.tokens - 1) * ldx + s.inputs));
    for (float& v : x) v = normal(rng);
    std::vector<float> y(static_cast<std::size_t>(s.tokens * ldy), -777.0f), expected = y, pieces = y;
    lut4->gemm(w.weight, x.data(), ldx, s.tokens, 0, panels, y.data(), ldy);
    for (std::int64_t t = 0; t < s.tokens; ++t)
      for (std::int64_t n = 0; n < panels * 16; ++n) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; n < s.outputs && k < s.inputs; ++k) {
          const double term = static_cast<double>(w.value(n, k) * w.step(n, k / 16)) * static_cast<double>(w.scales[static_cast<std::size_t>(n)]) * static_cast<double>(x[static_cast<std::size_t>(t * ldx + k)]);
          sum += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(y[static_cast<std::size_t>(t * ldy + n)], sum, 4 * static_cast<double>(s.inputs + 2) * 0x1p-24 * size) << "token " << t << " output " << n;
      }
    scalar->gemm(w.weight, x.data(), ldx, s.tokens, 0, panels, expected.data(), ldy);
    ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << "differs from scalar";
    for (std::int64_t t = 0; t < s.tokens; ++t) lut4->gemm(w.weight, x.data() + t * ldx, ldx, 1, 0, panels, pieces.data() + t * ldy, ldy);
    ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "alone differs from in a batch";
  }
}

// The error is a sum of squares over the codes kept: below what the best uniform step can do, as the format promises.
TEST_F(Lut4Test, gaussian_weights_lose_less_than_half_a_percent_of_their_energy) {
  const std::int64_t inputs = 4096;
  const Rows in(DType::kF32, 16, inputs, inputs, make_values(Values::kNormal, 16 * inputs, DType::kF32, rng));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(inputs * 8)), steps(static_cast<std::size_t>(inputs));
  std::vector<std::uint8_t> exponents(16);
  ASSERT_EQ(lut4->quantize(in.source, 0, nullptr, codes.data(), steps.data(), exponents.data()), -1);
  double lost = 0, all = 0;
  for (std::int64_t r = 0; r < 16; ++r)
    for (std::int64_t k = 0; k < inputs; ++k) {
      const std::uint8_t byte = codes[static_cast<std::size_t>((k / 8 * 16 + r) * 4 + k % 4)];
      const int s = steps[static_cast<std::size_t>(k / 16 * 16 + r)];
      const double w = static_cast<double>(in.values[static_cast<std::size_t>(r * inputs + k)]);
      const double back = lut4_values()[static_cast<std::size_t>(k % 8 < 4 ? byte & 15 : byte >> 4)] * static_cast<double>(lut4_signed_step(s % 128, s < 128 ? 1 : -1)) * static_cast<double>(lut4_row_scale(exponents[static_cast<std::size_t>(r)]));
      lost += (w - back) * (w - back);
      all += w * w;
    }
  EXPECT_LT(lost / all, 0.0046);
  EXPECT_GT(lost / all, 0.0035);
}

}  // namespace
}  // namespace inflight::kernels
