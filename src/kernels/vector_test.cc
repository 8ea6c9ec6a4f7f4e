// The vector kernels of the chosen ISA against FP64 written here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = 12345.0f;

class Vector : public testing::Test {
 protected:
  void SetUp() override {
    const auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    kernels_ = (*table)->vector;
  }

  std::vector<float> random(std::int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& value : x) value = normal(engine_);
    return x;
  }

  const VectorKernels* kernels_ = nullptr;
  std::mt19937 engine_{7};
};

std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 0; n <= 70; ++n) all.push_back(n);
  for (const std::int64_t n : {127, 128, 129, 1000, 4101}) all.push_back(n);
  return all;
}

// Room for n elements at a misaligned address, surrounded by guards.
template <class T>
struct Guarded {
  Guarded(std::int64_t n, std::int64_t offset, T guard) : all(static_cast<std::size_t>(n + offset + 40), guard), begin(offset), size(n), fill(guard) {}
  T* data() { return all.data() + begin; }
  bool intact() const {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(all.size()); ++i)
      if ((i < begin || i >= begin + size) && all[static_cast<std::size_t>(i)] != fill) return false;
    return true;
  }
  std::vector<T> all;
  std::int64_t begin, size;
  T fill;
};

void expect_relative(float got, double expected, double relative, std::int64_t n, std::int64_t i) {
  const double error = std::fabs(got - expected);
  EXPECT_LE(error, relative * std::fabs(expected) + 1e-45) << "n " << n << " index " << i << " got " << got << " expected " << expected;
}

TEST_F(Vector, RmsNormIsWithinTwoMillionths) {
  for (const std::int64_t n : lengths()) {
    if (n == 0) continue;
    for (const std::int64_t offset : {0, 1, 3}) {
      for (const float scale : {1e-6f, 1.0f, 1e15f}) {
        Guarded<float> x(n, offset, kGuard), y(n, offset + 2, kGuard);
        const std::vector<float> source = random(n, scale), weight = random(n);
        std::copy(source.begin(), source.end(), x.data());
        double sum = 0;
        for (const float value : source) sum += static_cast<double>(value) * value;
        const double inverse = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-6f);
        kernels_->rms_norm(x.data(), weight.data(), n, 1e-6f, y.data());
        for (std::int64_t i = 0; i < n; ++i) expect_relative(y.data()[i], source[i] * inverse * weight[i], 2e-6, n, i);
        EXPECT_TRUE(y.intact());
        kernels_->rms_norm(x.data(), weight.data(), n, 1e-6f, x.data());  // in place
        EXPECT_EQ(std::memcmp(x.data(), y.data(), static_cast<std::size_t>(n) * sizeof(float)), 0);
        EXPECT_TRUE(x.intact());
      }
    }
  }
}

TEST_F(Vector, RmsNormSurvivesSquaresThatOverflowFloat) {
  const std::vector<float> x(33, 3e30f), weight(33, 2.0f);
  std::vector<float> y(33);
  kernels_->rms_norm(x.data(), weight.data(), 33, 1e-5f, y.data());
  for (const float value : y) EXPECT_NEAR(value, 2.0, 4e-6);
}

TEST_F(Vector, RmsNormOfZerosIsZero) {
  const std::vector<float> x(37, 0.0f), weight(37, 2.0f);
  std::vector<float> y(37, 1.0f);
  kernels_->rms_norm(x.data(), weight.data(), 37, 1e-6f, y.data());
  EXPECT_THAT(y, testing::Each(0.0f));
}

TEST_F(Vector, AddIsExactlyRounded) {
  for (const std::int64_t n : lengths()) {
    for (const std::int64_t offset : {0, 1, 5}) {
      const std::vector<float> x = random(n), start = random(n);
      Guarded<float> y(n, offset, kGuard);
      std::copy(start.begin(), start.end(), y.data());
      kernels_->add(y.data(), x.data(), n);
      for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(y.data()[i], static_cast<float>(static_cast<double>(start[i]) + x[i])) << n << " " << i;
      EXPECT_TRUE(y.intact());
    }
  }
}

double silu_mul(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

// exp may be off by 2e-7, and 1 + e, the division and the product round by 2^-24 each.
constexpr double kSiluError = 2e-7 + 3 * 0x1p-24;

TEST_F(Vector, SiluMulIsWithinItsRoundings) {
  for (const std::int64_t n : lengths()) {
    for (const std::int64_t offset : {0, 1, 7}) {
      const std::vector<float> source = random(n, 4), up = random(n);
      Guarded<float> gate(n, offset, kGuard), y(n, offset, kGuard);
      std::copy(source.begin(), source.end(), gate.data());
      kernels_->silu_mul(gate.data(), up.data(), n, y.data());
      for (std::int64_t i = 0; i < n; ++i) expect_relative(y.data()[i], silu_mul(source[i], up[i]), kSiluError, n, i);
      EXPECT_TRUE(y.intact());
      kernels_->silu_mul(gate.data(), up.data(), n, gate.data());  // in place
      EXPECT_EQ(std::memcmp(gate.data(), y.data(), static_cast<std::size_t>(n) * sizeof(float)), 0);
      EXPECT_TRUE(gate.intact());
    }
  }
}

// For gate << 0, silu is gate * exp(gate): this holds the exponential to its relative error over its whole range.
TEST_F(Vector, ExponentialHoldsItsErrorFromMinus87To88) {
  std::vector<float> gate;
  for (double x = -88; x <= 87; x += 1.0 / 4096) gate.push_back(static_cast<float>(x));
  for (int n = -126; n <= 126; ++n)  // around the halves, where the reduced argument is longest
    for (const double nudge : {-1e-5, 0.0, 1e-5}) gate.push_back(static_cast<float>((n + 0.5) * std::log(2.0) + nudge));
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> y(gate.size());
  kernels_->silu_mul(gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), y.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = silu_mul(gate[i], 1);
    ASSERT_LE(std::fabs(y[i] - expected), kSiluError * std::fabs(expected) + 1e-45) << "gate " << gate[i] << " got " << y[i] << " expected " << expected;
  }
}

TEST_F(Vector, SiluMulSaturatesWithoutNaN) {
  const std::vector<float> gate = {-89, -100, -104, -1000, -3e38f, 89, 1000, 3e38f, kInf, 0.0f, -0.0f};
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> y(gate.size());
  kernels_->silu_mul(gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), y.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    if (gate[i] > 0) {
      EXPECT_EQ(y[i], gate[i]);
    } else {
      EXPECT_NEAR(y[i], 0, 89 * std::exp(-88.0)) << gate[i];
    }
  }
}

TEST_F(Vector, SiluMulKeepsNaN) {
  std::vector<float> gate(21, 1.0f), up(21, 1.0f), y(21);
  gate[2] = gate[19] = kNaN;
  up[5] = kNaN;
  kernels_->silu_mul(gate.data(), up.data(), 21, y.data());
  for (int i = 0; i < 21; ++i) EXPECT_EQ(std::isnan(y[i]), i == 2 || i == 19 || i == 5) << i;
}

TEST_F(Vector, RopeRotatesHalvesAndLeavesTheRest) {
  for (const std::int64_t head_dim : {2, 4, 16, 24, 36, 64, 80, 96, 112, 128, 130}) {
    for (const std::int64_t rotary : {head_dim, head_dim / 2 / 2 * 2, std::int64_t{0}}) {
      for (const std::int64_t heads : {1, 3}) {
        const std::int64_t half = rotary / 2;
        std::vector<float> cosines(static_cast<std::size_t>(half)), sines(static_cast<std::size_t>(half));
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle = 1000 * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
          cosines[i] = static_cast<float>(std::cos(angle));
          sines[i] = static_cast<float>(std::sin(angle));
        }
        const std::vector<float> source = random(heads * head_dim);
        Guarded<float> x(heads * head_dim, 1, kGuard);
        std::copy(source.begin(), source.end(), x.data());
        kernels_->rope_half(x.data(), heads, head_dim, rotary, cosines.data(), sines.data());
        for (std::int64_t head = 0; head < heads; ++head) {
          for (std::int64_t i = 0; i < head_dim; ++i) {
            const double got = x.data()[head * head_dim + i];
            const float* from = source.data() + head * head_dim;
            if (i >= rotary) {
              EXPECT_EQ(got, from[i]);
              continue;
            }
            const std::int64_t at = i < half ? i : i - half;
            const double low = from[at], high = from[at + half], c = cosines[at], s = sines[at];
            const double expected = i < half ? low * c - high * s : high * c + low * s;
            EXPECT_NEAR(got, expected, 0x1p-23 * (std::fabs(low) + std::fabs(high))) << head_dim << " " << rotary << " " << head << " " << i;
          }
        }
        EXPECT_TRUE(x.intact());
      }
    }
  }
}

TEST_F(Vector, RopeOfNeighboursRotatesPairByPairAndLeavesTheRest) {
  for (const std::int64_t head_dim : {2, 6, 16, 64, 128})
    for (std::int64_t rotary = 2; rotary <= head_dim; rotary += 2) {
      const std::int64_t heads = 3, half = rotary / 2;
      const std::vector<float> cosines = random(half), sines = random(half), source = random(heads * head_dim);
      Guarded<float> x(heads * head_dim, 1, kGuard);
      std::copy(source.begin(), source.end(), x.data());
      kernels_->rope_pairs(x.data(), heads, head_dim, rotary, cosines.data(), sines.data());
      for (std::int64_t i = 0; i < heads * head_dim; ++i) {
        const std::int64_t d = i % head_dim;
        if (d >= rotary) {
          EXPECT_EQ(x.data()[i], source[i]);
          continue;
        }
        const double own = source[i], other = source[d % 2 ? i - 1 : i + 1], c = cosines[d / 2], s = sines[d / 2];
        EXPECT_NEAR(x.data()[i], d % 2 ? own * c + other * s : own * c - other * s, 0x1p-23 * (std::fabs(own * c) + std::fabs(other * s))) << head_dim << " " << rotary << " " << i;
      }
      EXPECT_TRUE(x.intact());
    }
}

TEST_F(Vector, AddScaledIsOneFmaEach) {
  for (std::int64_t n = 0; n < 70; ++n) {
    const std::vector<float> x = random(n), before = random(n);
    Guarded<float> y(n, 1, kGuard);
    std::copy(before.begin(), before.end(), y.data());
    kernels_->add_scaled(y.data(), x.data(), 0.37f, n);
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(y.data()[i], std::fma(0.37f, x[i], before[i])) << n << " " << i;
    EXPECT_TRUE(y.intact());
  }
}

// Nearest of the two BF16 neighbours by distance, the even one when they are as near; infinity stands for 2^128.
std::uint16_t nearest_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint16_t low = static_cast<std::uint16_t>(bits >> 16), high = static_cast<std::uint16_t>(low + 1);
  if (std::isinf(x)) return low;
  const auto magnitude = [](std::uint16_t b) { return (b & 0x7fff) == 0x7f80 ? 0x1p128 : std::fabs(static_cast<double>(bf16_to_float(b))); };
  const double to_low = std::fabs(static_cast<double>(x)) - magnitude(low), to_high = magnitude(high) - std::fabs(static_cast<double>(x));
  if (to_low == to_high) return low % 2 == 0 ? low : high;
  return to_low < to_high ? low : high;
}

TEST_F(Vector, Bf16RoundsToNearestEvenOverEveryUpperHalf) {
  std::vector<float> x;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1234u}) x.push_back(std::bit_cast<float>(upper << 16 | lower));
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint16_t> y(x.size());
  std::vector<float> rounded(x.size());
  kernels_->to_bf16(x.data(), n, y.data());
  kernels_->round_bf16(x.data(), n, rounded.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]);
    const std::uint16_t expected = std::isnan(x[i]) ? static_cast<std::uint16_t>(bits >> 16 | 0x40) : nearest_bf16(x[i]);
    ASSERT_EQ(y[i], expected) << std::hex << bits;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[i]), static_cast<std::uint32_t>(expected) << 16) << std::hex << bits;
  }
}

TEST_F(Vector, Bf16TailsWriteNothingElse) {
  for (const std::int64_t n : lengths()) {
    for (const std::int64_t offset : {0, 1, 3}) {
      const std::vector<float> x = random(n);
      Guarded<std::uint16_t> y(n, offset, 0x1234);
      Guarded<float> rounded(n, offset, kGuard);
      kernels_->to_bf16(x.data(), n, y.data());
      std::copy(x.begin(), x.end(), rounded.data());
      kernels_->round_bf16(rounded.data(), n, rounded.data());  // in place
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(y.data()[i], nearest_bf16(x[i]));
        EXPECT_EQ(rounded.data()[i], bf16_to_float(nearest_bf16(x[i])));
      }
      EXPECT_TRUE(y.intact());
      EXPECT_TRUE(rounded.intact());
    }
  }
}

TEST_F(Vector, ArgmaxFindsTheFirstOfEquals) {
  EXPECT_EQ(kernels_->argmax(nullptr, 0), -1);
  for (const std::int64_t n : lengths()) {
    if (n == 0) continue;
    const std::vector<float> noise = random(n);
    EXPECT_EQ(kernels_->argmax(noise.data(), n), std::max_element(noise.begin(), noise.end()) - noise.begin());
    const std::vector<float> equal(static_cast<std::size_t>(n), -2.5f);
    EXPECT_EQ(kernels_->argmax(equal.data(), n), 0);
    const std::vector<float> lowest(static_cast<std::size_t>(n), -std::numeric_limits<float>::max());
    EXPECT_EQ(kernels_->argmax(lowest.data(), n), 0);
    for (std::int64_t first = 0; first < n; first += n > 200 ? 97 : 1) {
      std::vector<float> x = noise;
      for (std::int64_t i = first; i < n; i += 5) x[i] = 100;
      EXPECT_EQ(kernels_->argmax(x.data(), n), first) << n;
    }
  }
}

TEST_F(Vector, ArgmaxTakesZerosOfBothSignsAsEqual) {
  std::vector<float> x(50, -1.0f);
  x[17] = -0.0f;
  x[40] = 0.0f;
  EXPECT_EQ(kernels_->argmax(x.data(), 50), 17);
  x[3] = 0.0f;
  EXPECT_EQ(kernels_->argmax(x.data(), 50), 3);
}

TEST_F(Vector, ArgmaxRefusesNonFiniteAnywhere) {
  for (const std::int64_t n : {1, 7, 16, 33, 64, 101}) {
    for (std::int64_t at = 0; at < n; ++at) {
      for (const float bad : {kNaN, -kNaN, kInf, -kInf}) {
        std::vector<float> x(static_cast<std::size_t>(n), 1.0f);
        x[at] = bad;
        EXPECT_EQ(kernels_->argmax(x.data(), n), -1) << n << " " << at << " " << bad;
      }
    }
  }
}

TEST_F(Vector, LogSumExpMatchesFp64) {
  for (const std::int64_t n : lengths()) {
    if (n == 0) continue;
    for (const float scale : {0.1f, 5.0f, 1000.0f}) {
      const std::vector<float> x = random(n, scale);
      const double max = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const float value : x) sum += std::exp(value - max);
      // The shifted argument rounds by 2^-24 of itself and the exponential by 2e-7, both weighted by their share of the sum: |d| e^d <= 0.37 n.
      EXPECT_NEAR(kernels_->log_sum_exp(x.data() , n), max + std::log(sum), 3e-7 + 0x1p-24 * 8) << n << " " << scale;
    }
  }
}

TEST_F(Vector, LogSumExpOfEqualsAndOfInfinities) {
  const std::vector<float> equal(77, 80.0f);
  EXPECT_NEAR(kernels_->log_sum_exp(equal.data(), 77), 80 + std::log(77.0), 3e-7);
  std::vector<float> masked(20, -kInf);
  EXPECT_EQ(kernels_->log_sum_exp(masked.data(), 20), -kInf);
  EXPECT_EQ(kernels_->log_sum_exp(masked.data(), 0), -kInf);
  masked[18] = -3;
  EXPECT_EQ(kernels_->log_sum_exp(masked.data(), 20), -3);
  masked[0] = kInf;
  EXPECT_EQ(kernels_->log_sum_exp(masked.data(), 20), kInf);
}

template <class Stored>
void check_store(decltype(VectorKernels::store_kv_f32) store, std::int64_t key_inner, std::mt19937& engine) {
  std::normal_distribution<float> normal;
  for (const std::int64_t head_dim : {2, 8, 16, 24, 36, 64, 80, 128, 130, 256}) {
    const std::int64_t block_size = 48;
    const Stored fill = static_cast<Stored>(77);
    std::vector<Stored> keys(static_cast<std::size_t>(block_size * head_dim), fill), values = keys, want_keys = keys, want_values = keys;
    for (const std::int64_t slot : {0, 5, 15, 16, 33, 47}) {
      std::vector<float> k(static_cast<std::size_t>(head_dim)), v(k);
      for (float& x : k) x = normal(engine);
      for (float& x : v) x = normal(engine);
      store(k.data(), v.data(), head_dim, slot, keys.data(), values.data());
      for (std::int64_t d = 0; d < head_dim; ++d) {
        // keys [block_size/16][D/inner][16][inner]
        const std::int64_t at = ((slot / 16 * (head_dim / key_inner) + d / key_inner) * 16 + slot % 16) * key_inner + d % key_inner;
        if constexpr (sizeof(Stored) == 2) {
          want_keys[at] = nearest_bf16(k[d]);
          want_values[slot * head_dim + d] = nearest_bf16(v[d]);
        } else {
          want_keys[at] = k[d];
          want_values[slot * head_dim + d] = v[d];
        }
      }
      EXPECT_EQ(keys, want_keys) << head_dim << " " << slot;
      EXPECT_EQ(values, want_values) << head_dim << " " << slot;
    }
  }
}

TEST_F(Vector, StoreKvWritesItsSlotAndNothingElse) {
  check_store<float>(kernels_->store_kv_f32, 1, engine_);
  check_store<std::uint16_t>(kernels_->store_kv_bf16, 2, engine_);
}

}  // namespace
}  // namespace inflight::kernels
