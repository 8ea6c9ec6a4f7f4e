// FP8 weights on the ISA under test: codes against the definition (base/e4m3.h), products against exact sums, the scalar table and themselves cut into pieces.
#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/e4m3.h"
#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Aligned = std::unique_ptr<T[], FreeDeleter>;
template <class T>
Aligned<T> aligned(std::int64_t count, int fill = 0) {
  const std::size_t whole = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
  Aligned<T> memory(static_cast<T*>(std::aligned_alloc(64, whole)));
  std::memset(memory.get(), fill, whole);
  return memory;
}

// Where the header says that input k of a lane lies, written from the shape [ceil(K/4)][4 quads][2][4 rows][2].
std::int64_t place(std::int64_t k, std::int64_t lane) { return (((k / 4 * 4 + lane / 4) * 2 + k / 2 % 2) * 4 + lane % 4) * 2 + k % 2; }

std::uint8_t any_code(std::mt19937& rng) {
  std::uniform_int_distribution<int> any(0, 255);
  int code = any(rng);
  while ((code & 0x7f) == 0x7f) code = any(rng);
  return static_cast<std::uint8_t>(code);
}

struct Packed {
  Weight weight;
  std::vector<float> values, scales;  // [N][K], [N][groups]
  Aligned<std::uint8_t> codes;
  Aligned<float> packed_scales;

  Packed(std::int64_t outputs, std::int64_t inputs, std::int64_t group, std::mt19937& rng) {
    weight = {.outputs = outputs, .inputs = inputs, .group = group};
    const std::int64_t panels = weight.panels(), groups = weight.groups();
    codes = aligned<std::uint8_t>(panels * e4m3_panel_bytes(inputs));
    packed_scales = aligned<float>(panels * groups * 16);
    std::normal_distribution<float> normal;
    for (std::int64_t n = 0; n < outputs; ++n) {
      for (std::int64_t k = 0; k < inputs; ++k) {
        const std::uint8_t code = any_code(rng);
        codes[static_cast<std::size_t>(n / 16 * e4m3_panel_bytes(inputs) + place(k, n % 16))] = code;
        values.push_back(e4m3_to_float(code));
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        scales.push_back(n % 7 == 3 ? 0 : std::fabs(normal(rng)) * 0.01f);
        packed_scales[static_cast<std::size_t>((n / 16 * groups + g) * 16 + n % 16)] = scales.back();
      }
    }
    weight.codes = codes.get();
    weight.scales = packed_scales.get();
  }
  double value(std::int64_t n, std::int64_t k) const { return values[static_cast<std::size_t>(n * weight.inputs + k)]; }
  double scale(std::int64_t n, std::int64_t g) const { return scales[static_cast<std::size_t>(n * weight.groups() + g)]; }
};

struct Shape {
  std::int64_t tokens, outputs, inputs, group;
};

std::vector<Shape> shapes(std::mt19937& rng) {
  std::vector<Shape> all;
  for (std::int64_t k : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100, 129, 257}) all.push_back({1 + k % 5, 1 + k % 40, k, 0});
  for (std::int64_t t = 1; t <= 33; ++t) all.push_back({t, 16 + t * 5 % 90, 40 + t * 7 % 120, t % 3 == 0 ? 32 : 0});
  for (std::int64_t n : {1, 15, 16, 17, 32, 33, 63, 64, 65, 80, 96, 112, 130}) all.push_back({1 + n % 3, n, 72, 0});
  all.push_back({19, 40, 1500, 0});  // several blocks of K
  all.push_back({1, 70, 3001, 0});
  all.push_back({35, 150, 1333, 0});
  all.push_back({1, 130, 777, 128});
  all.push_back({9, 33, 1030, 128});
  all.push_back({21, 40, 2200, 128});
  all.push_back({300, 20, 900, 128});  // several blocks of tokens
  all.push_back({70, 40, 2202, 128});
  all.push_back({50, 33, 1503, 0});
  for (std::int64_t group : {16, 32, 48, 128, 256}) {
    std::uniform_int_distribution<std::int64_t> tokens(1, 13), outputs(1, 100), inputs(1, 700);
    for (int i = 0; i < 4; ++i) all.push_back({tokens(rng), outputs(rng), inputs(rng), group});
    all.push_back({17, 33, group * 9, group});
  }
  return all;
}

class Fp8Test : public testing::Test {
 protected:
  void SetUp() override {
    auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    fp8 = (*table)->fp8;
    isa = (*table)->isa;
    scalar = (*find("scalar"))->fp8;
  }
  const Fp8Kernels* fp8 = nullptr;
  const Fp8Kernels* scalar = nullptr;
  std::string isa;
  std::mt19937 rng{20241130};

  template <class X>
  using Product = void (*)(const Weight&, const X*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t);

  template <class X>
  void check(Product<X> product, Product<X> reference, double relative, double flat) {
    for (const Shape& s : shapes(rng)) {
      SCOPED_TRACE(fmt::format("T {} N {} K {} group {}", s.tokens, s.outputs, s.inputs, s.group));
      const Packed w(s.outputs, s.inputs, s.group, rng);
      const std::int64_t panels = w.weight.panels(), ldx = s.inputs + s.tokens % 3, ldy = panels * 16 + s.tokens % 2 * 5;
      std::normal_distribution<float> normal;
      std::vector<X> x(static_cast<std::size_t>((s.tokens - 1) * ldx + s.inputs));  // ends with the last element
      for (X& v : x) {
        if constexpr (std::is_same_v<X, float>) v = normal(rng);
        else v = float_to_bf16(normal(rng));
      }
      const auto input = [&](std::int64_t t, std::int64_t k) -> double {
        if constexpr (std::is_same_v<X, float>) return x[static_cast<std::size_t>(t * ldx + k)];
        else return bf16_to_float(x[static_cast<std::size_t>(t * ldx + k)]);
      };
      const float untouched = -777.0f;
      std::vector<float> y(static_cast<std::size_t>(s.tokens * ldy), untouched);
      product(w.weight, x.data(), ldx, s.tokens, 0, panels, y.data(), ldy);
      const std::int64_t width = s.group == 0 ? s.inputs : s.group;
      const bool large = s.tokens * s.outputs * s.inputs > 300'000;  // a sample is compared with the oracle
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        for (std::int64_t n = 0; n < s.outputs; ++n) {
          if (large && (t * 3 + n) % 8 != 0) continue;
          double sum = 0, size = 0;
          for (std::int64_t k = 0; k < s.inputs; ++k) {
            const double term = w.value(n, k) * w.scale(n, k / width) * input(t, k);
            sum += term;
            size += std::fabs(term);
          }
          ASSERT_NEAR(y[static_cast<std::size_t>(t * ldy + n)], sum, relative * static_cast<double>(s.inputs) * 0x1p-24 * size + flat * static_cast<double>(s.inputs)) << "token " << t << " output " << n;
        }
        for (std::int64_t n = s.outputs; n < panels * 16; ++n) ASSERT_EQ(y[static_cast<std::size_t>(t * ldy + n)], 0.0f) << "padding lane " << n;
        for (std::int64_t n = panels * 16; n < ldy; ++n) ASSERT_EQ(y[static_cast<std::size_t>(t * ldy + n)], untouched);
      }
      if (large && isa == "scalar") continue;  // slow, and has no tiles
      if (reference) {
        std::vector<float> expected(y.size(), untouched);
        reference(w.weight, x.data(), ldx, s.tokens, 0, panels, expected.data(), ldy);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << "differs from scalar";
      }
      std::vector<float> pieces(y.size(), untouched);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const std::int64_t cut = panels * (t % 4) / 3, middle = cut < panels ? cut : panels;
        product(w.weight, x.data() + t * ldx, ldx, 1, 0, middle, pieces.data() + t * ldy, ldy);
        product(w.weight, x.data() + t * ldx, ldx, 1, middle, panels, pieces.data() + t * ldy, ldy);
      }
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "alone differs from in a batch";
      std::fill(pieces.begin(), pieces.end(), untouched);
      for (std::int64_t p = 0; p < panels; ++p) product(w.weight, x.data(), ldx, s.tokens, p, p + 1, pieces.data(), ldy);
      ASSERT_EQ(std::memcmp(y.data(), pieces.data(), y.size() * 4), 0) << "a panel alone differs";
    }
  }
};

TEST_F(Fp8Test, fp32_products_are_within_the_bound_and_equal_scalar) { check<float>(fp8->gemm_e4m3, scalar->gemm_e4m3, 4, 0x1p-140); }
TEST_F(Fp8Test, bf16_products_are_within_the_bound) {
  const bool pairs = isa == "avx512_bf16";  // sums two products at once; the others are one chain, as scalar is
  check<std::uint16_t>(fp8->gemm_e4m3_bf16, pairs ? nullptr : scalar->gemm_e4m3_bf16, 8, 0x1p-117);
}

// One input, x = 1, scale 1: y is the number of the code, exactly; subnormal codes too, which a shifted BF16 number would lose.
TEST_F(Fp8Test, every_code_is_decoded_exactly) {
  for (const std::int64_t tokens : {1, 3, 40})
    for (const std::int64_t place_of : {0, 1, 2, 3}) {
      Aligned<std::uint8_t> codes = aligned<std::uint8_t>(16 * 64);
      Aligned<float> scales = aligned<float>(16 * 16);
      for (int n = 0; n < 256; ++n) {
        codes[static_cast<std::size_t>(n / 16 * 64 + place(place_of, n % 16))] = (n & 0x7f) == 0x7f ? 0 : static_cast<std::uint8_t>(n);
        scales[static_cast<std::size_t>(n)] = 1;
      }
      const Weight w{.codes = codes.get(), .scales = scales.get(), .outputs = 256, .inputs = 4};
      const std::vector<float> x(static_cast<std::size_t>(tokens * 4), 1.0f);
      const std::vector<std::uint16_t> x16(x.size(), 0x3f80);
      std::vector<float> y(static_cast<std::size_t>(tokens * 256)), y16(y.size());
      fp8->gemm_e4m3(w, x.data(), 4, tokens, 0, 16, y.data(), 256);
      fp8->gemm_e4m3_bf16(w, x16.data(), 4, tokens, 0, 16, y16.data(), 256);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (int n = 0; n < 256; ++n) {
          const float want = (n & 0x7f) == 0x7f ? 0 : e4m3_to_float(static_cast<std::uint8_t>(n));
          ASSERT_EQ(y[static_cast<std::size_t>(t * 256 + n)], want) << n;
          ASSERT_EQ(y16[static_cast<std::size_t>(t * 256 + n)], want) << n;
        }
    }
}

// ---------------------------------------------------------------- filling panels
constexpr std::int64_t kInputs[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 200, 256, 300, 517};
constexpr int kLanes[][2] = {{0, 16}, {0, 1}, {15, 1}, {3, 5}, {8, 8}};  // lane, rows
constexpr std::uint8_t kUntouched = 0xa5;

TEST_F(Fp8Test, pack_places_every_code_and_names_the_first_nan) {
  for (const std::int64_t inputs : kInputs)
    for (const auto [lane, rows] : kLanes) {
      const std::int64_t stride = inputs + 5;
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(1 + (rows - 1) * stride + inputs));
      for (auto& byte : bytes) byte = any_code(rng);
      const StoredCodes source{.data = bytes.data() + 1, .stride = stride, .rows = rows, .inputs = inputs};
      std::vector<std::uint8_t> panel(static_cast<std::size_t>(e4m3_panel_bytes(inputs)), kUntouched);
      ASSERT_EQ(fp8->pack(source, lane, panel.data()), -1);
      for (std::int64_t k = 0; k < (inputs + 3) / 4 * 4; ++k)
        for (int r = 0; r < 16; ++r) {
          const bool ours = r >= lane && r < lane + rows;
          const std::uint8_t want = !ours ? kUntouched : k < inputs ? bytes[static_cast<std::size_t>(1 + (r - lane) * stride + k)] : std::uint8_t{0};
          ASSERT_EQ(panel[static_cast<std::size_t>(place(k, r))], want) << "K " << inputs << " k " << k << " lane " << r;
        }
      std::uniform_int_distribution<std::int64_t> where(0, rows * inputs - 1);
      const std::int64_t one = where(rng), other = where(rng), first = std::min(one, other);
      for (const std::int64_t at : {one, other}) bytes[static_cast<std::size_t>(1 + at / inputs * stride + at % inputs)] = at % 2 ? 0x7f : 0xff;
      EXPECT_EQ(fp8->pack(source, lane, panel.data()), first);
    }
}

struct Rows {
  std::vector<float> values;  // what the stored elements widen to
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
  float at(std::int64_t row, std::int64_t k) const { return values[static_cast<std::size_t>(row * source.inputs + k)]; }
};

enum class Values { kNormal, kZero, kTies, kTiny, kHuge, kMixed };

std::vector<float> make_values(Values kind, std::int64_t count, DType dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 0.02f);
  std::uniform_int_distribution<int> integer(-508, 508), sign(0, 1), exponent(-140, 120);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& v : out) switch (kind) {
      case Values::kNormal: v = normal(rng); break;
      case Values::kZero: v = sign(rng) ? 0.0f : -0.0f; break;
      case Values::kTies: v = static_cast<float>(integer(rng)) * (sign(rng) ? 0.5f : 0x1p-11f); break;
      case Values::kTiny: v = static_cast<float>(integer(rng)) * 0x1p-149f * (dtype == DType::kF16 ? 0x1p125f : 1); break;
      case Values::kHuge: v = (sign(rng) ? 1.0f : -1.0f) * (dtype == DType::kF16 ? 65504.0f : dtype == DType::kBF16 ? 0x1.fep127f : FLT_MAX) * (sign(rng) ? 1.0f : 0.37f); break;
      case Values::kMixed: v = std::ldexp(normal(rng) * 50, dtype == DType::kF16 ? exponent(rng) / 12 : exponent(rng)); break;
    }
  return out;
}

TEST_F(Fp8Test, quantize_and_absmax_follow_the_rule_bit_for_bit) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    for (const std::int64_t inputs : kInputs)
      for (const std::int64_t group : {0, 16, 32, 48, 128})
        for (const Values kind : {Values::kNormal, Values::kZero, Values::kTies, Values::kTiny, Values::kHuge, Values::kMixed}) {
          const auto [lane, rows] = kLanes[(inputs + group / 16 + static_cast<int>(kind)) % 5];
          const Rows in(dtype, rows, inputs, inputs + 3, make_values(kind, rows * inputs, dtype, rng));
          const std::int64_t width = group == 0 ? inputs : group, groups = (inputs + width - 1) / width;
          std::vector<float> most(static_cast<std::size_t>(rows * groups), -1.0f), scales(static_cast<std::size_t>(groups * 16), 3.0f);
          ASSERT_EQ(fp8->absmax(in.source, group, most.data()), -1);
          for (int r = 0; r < rows; ++r)
            for (std::int64_t g = 0; g < groups; ++g) {
              float want = 0;
              for (std::int64_t k = g * width; k < std::min(inputs, (g + 1) * width); ++k) want = std::fmax(want, std::fabs(in.at(r, k)));
              ASSERT_EQ(most[static_cast<std::size_t>(r * groups + g)], want);
              // As a block of rows would have it: larger than this row needs; smaller: saturates; 0: no code at all.
              scales[static_cast<std::size_t>(g * 16 + lane + r)] = r % 5 == 4 ? 0 : want / 448.0f * (r % 5 == 1 ? 3.7f : r % 5 == 2 ? 0.4f : 1.0f);
            }
          if (kind == Values::kTies)
            for (float& s : scales) s = s == 0 ? 0 : 1;
          std::vector<std::uint8_t> panel(static_cast<std::size_t>(e4m3_panel_bytes(inputs)), kUntouched);
          ASSERT_EQ(fp8->quantize(in.source, lane, group, scales.data(), panel.data()), -1);
          for (std::int64_t k = 0; k < (inputs + 3) / 4 * 4; ++k)
            for (int r = 0; r < 16; ++r) {
              const bool ours = r >= lane && r < lane + rows;
              const float scale = k < inputs ? scales[static_cast<std::size_t>(k / width * 16 + r)] : 0;
              const int want = !ours ? kUntouched : scale == 0 ? 0 : float_to_e4m3(in.at(r - lane, k) / scale);
              ASSERT_EQ(int{panel[static_cast<std::size_t>(place(k, r))]}, want)
                  << dtype_name(dtype) << " K " << inputs << " group " << group << " k " << k << " lane " << r << " values " << static_cast<int>(kind) << " scale " << scale;
            }
        }
}

TEST_F(Fp8Test, the_first_nan_or_infinity_is_named) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    for (const std::int64_t inputs : {1, 5, 16, 33, 64, 129, 300})
      for (int trial = 0; trial < 9; ++trial) {
        const int rows = trial % 3 == 0 ? 16 : 1 + trial;
        std::vector<float> values = make_values(Values::kNormal, rows * inputs, dtype, rng);
        std::uniform_int_distribution<std::int64_t> where(0, rows * inputs - 1);
        const std::int64_t one = where(rng), other = where(rng);
        values[static_cast<std::size_t>(one)] = bad[trial % 3];
        values[static_cast<std::size_t>(other)] = bad[(trial + 1) % 3];
        const Rows in(dtype, rows, inputs, inputs, values);
        std::vector<std::uint8_t> panel(static_cast<std::size_t>(e4m3_panel_bytes(inputs)));
        std::vector<float> scales(static_cast<std::size_t>((inputs + 15) / 16 * 16), 1.0f), most(static_cast<std::size_t>(rows * ((inputs + 31) / 32)));
        for (const std::int64_t group : {0, 32}) {
          EXPECT_EQ(fp8->quantize(in.source, 0, group, scales.data(), panel.data()), std::min(one, other));
          EXPECT_EQ(fp8->absmax(in.source, group, most.data()), std::min(one, other));
        }
      }
}

TEST_F(Fp8Test, activations_round_to_the_numbers_of_codes) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t n : {1, 7, 15, 16, 17, 31, 32, 33, 500})
    for (const float bound : {kE4m3Max, kGaudiE4m3Max})
      for (const float inverse : {1.0f, 0.37f, 1e4f}) {
        std::vector<float> x = make_values(n % 2 ? Values::kMixed : Values::kTies, n, DType::kF32, rng);
        if (n > 20) {
          const float odd[] = {infinity, -infinity, nan, -nan, -0.0f, 1e-45f, 464.0f, -248.0f, 247.9f, 0x1p-10f, 0x1.8p-10f};
          std::copy(std::begin(odd), std::end(odd), x.begin() + 7);
        }
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(n + 1), kUntouched);
        std::vector<std::uint16_t> numbers(static_cast<std::size_t>(n + 1), kUntouched);
        const std::vector<float> exact(x.begin(), x.begin() + n);  // ends with the last element
        fp8->encode(exact.data(), n, inverse, bound, codes.data());
        fp8->encode_bf16(exact.data(), n, inverse, bound, numbers.data());
        for (std::int64_t i = 0; i < n; ++i) {
          const std::uint8_t want = float_to_e4m3(x[static_cast<std::size_t>(i)] * inverse, bound);
          ASSERT_EQ(int{codes[static_cast<std::size_t>(i)]}, int{want}) << x[static_cast<std::size_t>(i)] * inverse;
          const float number = bf16_to_float(numbers[static_cast<std::size_t>(i)]), value = e4m3_to_float(want);
          if (std::isnan(value)) ASSERT_TRUE(std::isnan(number));
          else ASSERT_EQ(std::bit_cast<std::uint32_t>(number), std::bit_cast<std::uint32_t>(value)) << x[static_cast<std::size_t>(i)];
        }
        ASSERT_EQ(codes.back(), kUntouched);
        ASSERT_EQ(numbers.back(), kUntouched);
      }
}

}  // namespace
}  // namespace inflight::kernels
