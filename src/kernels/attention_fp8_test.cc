// Attention over E4M3 codes on the ISA under test: codes and places against the definition, attention against FP64 written here, the scalar table and itself cut into pieces.
#include "kernels/attention_fp8.h"

#include <gmock/gmock.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

using Rows = std::vector<std::vector<float>>;

// The number of a code, from the definition: sign, 4 bits of exponent (bias 7), 3 of mantissa.
double number(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -size : size;
}
const std::vector<double> kNumbers = [] {
  std::vector<double> all;
  for (int code = 0; code < 256; ++code) all.push_back(number(static_cast<std::uint8_t>(code)));
  return all;
}();

// The nearest code up to `bound`, of two the even one.
std::uint8_t nearest(double x, double bound) {
  const std::span<const double> sizes(kNumbers.data(), 0x7f);
  const double size = std::min(std::fabs(x), bound);
  auto code = static_cast<int>(std::lower_bound(sizes.begin(), sizes.end(), size) - sizes.begin());  // the first that is not below
  if (code > 0) {
    const double up = sizes[static_cast<std::size_t>(code)] - size, down = size - sizes[static_cast<std::size_t>(code - 1)];
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}
double rounded(double x, double bound) { return number(nearest(x, bound)); }

// Where the header says that element d of a key lies, written from [block_size/16][D/4][4 quads][2][4 tokens][2].
std::int64_t key_place(std::int64_t head_dim, std::int64_t slot, std::int64_t d) {
  const std::int64_t token = slot % 16;
  return ((((slot / 16 * (head_dim / 4) + d / 4) * 4 + token / 4) * 2 + d / 2 % 2) * 4 + token % 4) * 2 + d % 2;
}

struct Scales {
  float q = 0.01f, k = 0.01f, v = 0.02f, bound = 448;
};

enum class Kind { kPlain, kDot, kFull };

// One KV head's cache; every byte that no token wrote is a NaN code. Blocks lie in random order, with unused blocks between them.
class Cache {
 public:
  Cache(const Fp8AttentionKernels& kernels, std::int64_t head_dim, std::int64_t block_size, std::int64_t tokens, const Scales& scales = {}, unsigned seed = 1)
      : kernels_(kernels), head_dim_(head_dim), block_size_(block_size), half_(block_size * head_dim), stride_(2 * half_ + 64), scales_(scales) {
    const std::int64_t blocks = tokens / block_size + 2;
    table_.resize(static_cast<std::size_t>(2 * blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 engine(seed);
    std::shuffle(table_.begin(), table_.end(), engine);
    memory_.assign(static_cast<std::size_t>(2 * blocks * stride_), std::byte{0xff});
  }

  void write(std::int64_t position, const std::vector<float>& k, const std::vector<float>& v) {
    std::byte* block = memory_.data() + at(position);
    kernels_.store_kv_e4m3(k.data(), v.data(), head_dim_, position % block_size_, block, block + half_, 1 / scales_.k, 1 / scales_.v, scales_.bound);
  }
  void write_all(const Rows& keys, const Rows& values, std::int64_t upto) {
    for (std::int64_t j = 0; j < upto; ++j) write(j, keys[static_cast<std::size_t>(j)], values[static_cast<std::size_t>(j)]);
  }
  std::uint8_t& key(std::int64_t position, std::int64_t d) { return reinterpret_cast<std::uint8_t&>(memory_[static_cast<std::size_t>(at(position) + key_place(head_dim_, position % block_size_, d))]); }
  std::uint8_t& value(std::int64_t position, std::int64_t d) { return reinterpret_cast<std::uint8_t&>(memory_[static_cast<std::size_t>(at(position) + half_ + position % block_size_ * head_dim_ + d)]); }
  double key_number(std::int64_t position, std::int64_t d) const { return kNumbers[const_cast<Cache*>(this)->key(position, d)]; }
  double value_number(std::int64_t position, std::int64_t d) const { return kNumbers[const_cast<Cache*>(this)->value(position, d)]; }

  std::vector<float> attend(Kind kind, const std::vector<float>& q, std::int64_t begin, std::int64_t end, float scale) const { return attend(kind, Rows{q}, begin, end, 0, scale)[0]; }

  // Consecutive tokens, the first of which sees [begin, end). Blocks that none sees have table entries that lead nowhere.
  Rows attend(Kind kind, const Rows& queries, std::int64_t begin, std::int64_t end, std::int64_t window, float scale) const {
    std::vector<std::int32_t> table = table_;
    const auto tokens = static_cast<std::int64_t>(queries.size());
    const std::int64_t first_seen = window > 0 ? std::max(begin, end - window) : begin;
    for (std::size_t b = 0; b < table.size(); ++b) {
      const std::int64_t from = static_cast<std::int64_t>(b) * block_size_;
      if (from + block_size_ <= first_seen || from >= end + tokens - 1) table[b] = 0x7fffffff;
    }
    const std::size_t width = queries[0].size(), gap = 5;
    std::vector<float> q;
    for (const auto& query : queries) {
      q.insert(q.end(), query.begin(), query.end());
      q.insert(q.end(), gap, std::numeric_limits<float>::quiet_NaN());
    }
    const std::int64_t heads = static_cast<std::int64_t>(width) / head_dim_, floats = kernels_.scratch(tokens * heads, head_dim_);
    std::vector<float> out(q.size(), -1.0f), scratch(static_cast<std::size_t>(floats + 16), std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> untouched = scratch;
    const auto stride = static_cast<std::int64_t>(width + gap);
    const Fp8AttendArgs args{.attend = {.q = q.data(), .heads = heads, .head_dim = head_dim_, .keys = memory_.data(), .values = memory_.data() + half_, .block_stride = stride_,
                                        .block_table = table.data(), .block_size = block_size_, .begin = begin, .end = end, .tokens = tokens, .window = window, .q_stride = stride,
                                        .out_stride = stride, .scale = scale, .cold = cold, .out = out.data(), .scratch = scratch.data()},
                             .scale_k = scales_.k, .scale_v = scales_.v, .inverse_q = 1 / scales_.q, .scale_q = scales_.q, .bound = scales_.bound};
    (kind == Kind::kFull ? kernels_.attend_e4m3_full : kind == Kind::kDot ? kernels_.attend_e4m3_dot : kernels_.attend_e4m3)(args);
    EXPECT_EQ(std::memcmp(scratch.data() + floats, untouched.data() + floats, 16 * sizeof(float)), 0) << "wrote past the scratch";
    Rows rows;
    for (std::size_t t = 0; t < queries.size(); ++t) {
      const auto from = out.begin() + static_cast<std::ptrdiff_t>(t * (width + gap)), to = from + static_cast<std::ptrdiff_t>(width);
      rows.emplace_back(from, to);
      EXPECT_EQ(std::count(to, to + static_cast<std::ptrdiff_t>(gap), -1.0f), static_cast<std::ptrdiff_t>(gap)) << "wrote between tokens";
    }
    return rows;
  }

  const Scales& scales() const { return scales_; }
  std::int64_t head_dim() const { return head_dim_; }
  const std::vector<std::byte>& memory() const { return memory_; }
  bool cold = true;

 private:
  std::int64_t at(std::int64_t position) const { return table_[static_cast<std::size_t>(position / block_size_)] * stride_; }

  const Fp8AttentionKernels& kernels_;
  std::int64_t head_dim_, block_size_, half_, stride_;
  Scales scales_;
  std::vector<std::int32_t> table_;
  std::vector<std::byte> memory_;
};

Rows random_rows(std::int64_t count, std::int64_t width, float deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  Rows rows(static_cast<std::size_t>(count), std::vector<float>(static_cast<std::size_t>(width)));
  for (auto& row : rows)
    for (float& x : row) x = normal(engine);
  return rows;
}

struct Wanted {
  std::vector<double> out, tolerance;
};

// Exact attention on the numbers in the cache. full: queries and probabilities rounded to E4M3, and what a rounding of e either way would change is tolerated
// where FP32 sums could not tell which way it goes.
Wanted oracle(const Cache& cache, bool full, const std::vector<float>& q, std::int64_t begin, std::int64_t end, double scale) {
  const auto width = static_cast<std::size_t>(cache.head_dim());
  const Scales& s = cache.scales();
  double most_value = 0;
  for (std::int64_t j = begin; j < end; ++j)
    for (std::size_t d = 0; d < width; ++d) most_value = std::max(most_value, std::fabs(cache.value_number(j, static_cast<std::int64_t>(d))));
  Wanted wanted;
  for (std::size_t from = 0; from < q.size(); from += width) {
    std::vector<double> scores, doubts, queries;
    for (std::size_t d = 0; d < width; ++d) queries.push_back(full ? rounded(static_cast<double>(q[from + d] * (1 / s.q)), s.bound) * s.q : static_cast<double>(q[from + d]));
    for (std::int64_t j = begin; j < end; ++j) {
      double dot = 0, sizes = 0;
      for (std::size_t d = 0; d < width; ++d) {
        const double product = queries[d] * cache.key_number(j, static_cast<std::int64_t>(d)) * s.k;
        dot += product;
        sizes += std::fabs(product);
      }
      scores.push_back(dot * scale);
      doubts.push_back(static_cast<double>(width) / 2 * 0x1p-24 * sizes * std::fabs(scale) + 0x1p-22 * std::fabs(dot * scale));
    }
    const double max = *std::max_element(scores.begin(), scores.end()), doubt = full ? *std::max_element(doubts.begin(), doubts.end()) : 0;
    std::vector<double> sum(width), slack(width);
    double total = 0;
    for (std::size_t j = 0; j < scores.size(); ++j) {
      const double e = std::exp(scores[j] - max), weight = full ? rounded(e * s.bound, s.bound) / s.bound : e;
      const double unsure = 2 * doubt + 1e-6;
      const double either = full ? (rounded(e * (1 + unsure) * s.bound, s.bound) - rounded(e * (1 - unsure) * s.bound, s.bound)) / s.bound : 0;
      total += e;
      for (std::size_t d = 0; d < width; ++d) {
        const double value = cache.value_number(begin + static_cast<std::int64_t>(j), static_cast<std::int64_t>(d)) * s.v;
        sum[d] += weight * value;
        slack[d] += either * std::fabs(value);
      }
    }
    for (std::size_t d = 0; d < width; ++d) {
      wanted.out.push_back(sum[d] / total);
      wanted.tolerance.push_back(slack[d] / total + (2e-6 + 2 * doubt) * most_value * s.v);
    }
  }
  return wanted;
}

class Fp8Attention : public testing::Test {
 protected:
  void SetUp() override {
    const auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    kernels_ = (*table)->fp8_attention;
  }

  std::vector<Kind> kinds() const { return kernels_->attend_e4m3_dot ? std::vector{Kind::kPlain, Kind::kFull, Kind::kDot} : std::vector{Kind::kPlain, Kind::kFull}; }

  static void expect_near(const std::vector<float>& got, const Wanted& want, const std::string& where) {
    ASSERT_EQ(got.size(), want.out.size());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.out[i], want.tolerance[i]) << "index " << i << " " << where;
  }

  void expect_oracle(std::int64_t head_dim, std::int64_t block_size, std::int64_t tokens, std::int64_t heads, const std::vector<std::pair<std::int64_t, std::int64_t>>& windows,
                     const Scales& scales = {}) const {
    Cache cache(*kernels_, head_dim, block_size, tokens, scales);
    cache.write_all(random_rows(tokens, head_dim, 1, 11), random_rows(tokens, head_dim, 1, 12), tokens);
    const std::vector<float> q = random_rows(1, heads * head_dim, 1, 13)[0];
    const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    for (const auto& [begin, end] : windows)
      for (const bool full : {false, true})
        expect_near(cache.attend(full ? Kind::kFull : Kind::kPlain, q, begin, end, scale), oracle(cache, full, q, begin, end, scale),
                    fmt::format("D {} G {} block {} keys [{}, {}) {}", head_dim, heads, block_size, begin, end, full ? "full" : "plain"));
  }

  const Fp8AttentionKernels* kernels_ = nullptr;
};

// ---------------------------------------------------------------- the cache
TEST_F(Fp8Attention, StoresTheNearestCodesWhereTheHeaderSaysAndNothingElse) {
  for (const float bound : {448.0f, 240.0f})
    for (const std::int64_t head_dim : {4, 12, 16, 64, 80, 128, 260}) {
      Rows rows = random_rows(2, head_dim, 4, 3);
      rows[0][0] = 1e30f, rows[0][1] = -std::numeric_limits<float>::infinity(), rows[0][2] = 0x1p-10f, rows[0][3] = -0x1.8p-9f;
      rows[1][0] = 0x1p-6f, rows[1][1] = -0.0f, rows[1][2] = 239, rows[1][3] = 0x1p-140f;
      for (const std::int64_t slot : {0, 1, 6, 15, 16, 31}) {
        std::vector<std::uint8_t> keys(static_cast<std::size_t>(32 * head_dim), 0x55), values = keys, want_keys = keys, want_values = keys;
        kernels_->store_kv_e4m3(rows[0].data(), rows[1].data(), head_dim, slot, keys.data(), values.data(), 2, 0.75f, bound);
        for (std::int64_t d = 0; d < head_dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          want_keys[static_cast<std::size_t>(key_place(head_dim, slot, d))] = nearest(rows[0][at] * 2, bound);
          want_values[static_cast<std::size_t>(slot * head_dim + d)] = nearest(static_cast<double>(rows[1][at] * 0.75f), bound);
        }
        ASSERT_EQ(keys, want_keys) << head_dim << " " << slot;
        ASSERT_EQ(values, want_values) << head_dim << " " << slot;
      }
    }
}

TEST_F(Fp8Attention, NaNStaysNaNInTheCache) {
  Cache cache(*kernels_, 8, 16, 16);
  std::vector<float> nan(8, std::numeric_limits<float>::quiet_NaN());
  cache.write(3, nan, nan);
  for (int d = 0; d < 8; ++d) {
    EXPECT_EQ(cache.key(3, d) & 0x7f, 0x7f);
    EXPECT_EQ(cache.value(3, d) & 0x7f, 0x7f);
  }
}

// ---------------------------------------------------------------- against FP64
TEST_F(Fp8Attention, MatchesFp64ForEveryHeadCount) {
  for (const std::int64_t head_dim : {64, 80, 128})
    for (std::int64_t heads = 1; heads <= 9; ++heads) expect_oracle(head_dim, 16, 90, heads, {{0, 1}, {0, 64}, {0, 90}, {10, 80}});
}

TEST_F(Fp8Attention, MatchesFp64ForEveryHeadDim) {
  for (std::int64_t head_dim = 4; head_dim <= 260; head_dim += head_dim < 140 ? 4 : 20)
    for (const std::int64_t heads : {2, 5}) expect_oracle(head_dim, 32, 80, heads, {{0, 80}, {33, 71}});
}

TEST_F(Fp8Attention, MatchesFp64ForEveryEndAndBlockSize) {
  std::vector<std::pair<std::int64_t, std::int64_t>> windows;
  for (std::int64_t end = 1; end <= 150; ++end) windows.push_back({0, end});
  for (const std::int64_t block_size : {16, 48, 64})
    for (const std::int64_t heads : {1, 5}) expect_oracle(12, block_size, 150, heads, windows);
}

TEST_F(Fp8Attention, MatchesFp64ForSlidingWindows) {
  std::vector<std::pair<std::int64_t, std::int64_t>> windows;
  for (std::int64_t begin = 0; begin < 150; begin += 3)
    for (const std::int64_t length : {1, 7, 16, 63, 64, 100}) windows.push_back({begin, std::min<std::int64_t>(begin + length, 150)});
  for (const std::int64_t block_size : {16, 64}) expect_oracle(8, block_size, 150, 2, windows);
}

TEST_F(Fp8Attention, MatchesFp64OverLongContextsAndWithGaudisBound) {
  expect_oracle(80, 64, 4101, 2, {{0, 4101}, {3000, 4100}});
  expect_oracle(64, 16, 500, 3, {{0, 500}}, {.q = 0.02f, .k = 0.015f, .v = 0.03f, .bound = 240});
}

// Most of what is stored and asked for is cut off at the bound, or below the smallest normal number.
TEST_F(Fp8Attention, MatchesFp64WhereCodesAreSaturatedOrSubnormal) {
  for (const float bound : {448.0f, 240.0f}) {
    expect_oracle(16, 16, 100, 2, {{0, 100}}, {.q = 0x1p-9f, .k = 0x1p-9f, .v = 0x1p-10f, .bound = bound});
    expect_oracle(16, 16, 100, 5, {{0, 100}}, {.q = 200, .k = 300, .v = 1000, .bound = bound});
  }
}

TEST_F(Fp8Attention, EveryCodeMeansItsNumber) {
  for (const std::int64_t heads : {1, 6}) {
    Cache cache(*kernels_, 256, 16, 64, {.q = 1, .k = 1, .v = 1});
    for (std::int64_t j = 0; j < 64; ++j)
      for (int d = 0; d < 256; ++d) cache.key(j, d) = cache.value(j, d) = 0;
    for (int code = 0; code < 256; ++code)
      if ((code & 0x7f) != 0x7f) cache.value(33, code) = static_cast<std::uint8_t>(code);
    for (const Kind kind : kinds()) {
      const std::vector<float> values = cache.attend(kind, std::vector<float>(static_cast<std::size_t>(heads) * 256, 0.5f), 33, 34, 1);
      for (int code = 0; code < 256; ++code)
        if ((code & 0x7f) != 0x7f) ASSERT_EQ(values[static_cast<std::size_t>(code)], number(static_cast<std::uint8_t>(code))) << code;
    }
    // A key that holds this code alone shares the weight with a key of zeros by exp(number * q).
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;
      Cache two(*kernels_, 4, 16, 16, {.q = 1, .k = 1, .v = 1});
      two.write(5, {0, 0, 0, 0}, {0, 0, 0, 0});
      two.write(6, {0, 0, 0, 0}, {1, 0, 0, 0});
      two.key(6, code % 4) = static_cast<std::uint8_t>(code);
      std::vector<float> q(static_cast<std::size_t>(heads) * 4, 7);
      for (std::size_t h = 0; h < q.size(); h += 4) q[h + static_cast<std::size_t>(code % 4)] = 1;
      const double x = number(static_cast<std::uint8_t>(code)) / 64;
      ASSERT_NEAR(two.attend(Kind::kPlain, q, 5, 7, 0x1p-6f)[0], 1 / (1 + std::exp(-x)), 1e-6) << code;
    }
  }
}

// Scores -3 in the first tile and 0 in the second: e8 of exp(-3) is 22 (22.3 rounded in steps of 2) because it is taken against the largest score of all.
TEST_F(Fp8Attention, FullTakesTheLargestScoreOfAllTiles) {
  for (const std::int64_t heads : {1, 5}) {
    Cache cache(*kernels_, 4, 16, 70, {.q = 1, .k = 1, .v = 1});
    for (std::int64_t j = 0; j < 64; ++j) cache.write(j, {-3, 0, 0, 0}, {1, 2, 0, -448});
    cache.write(64, {0, 0, 0, 0}, {0, 0, 1, 0});
    const double e = std::exp(-3.0), total = 64 * e + 1, part = 64 * 22 / 448.0 / total;
    const std::vector<float> got = cache.attend(Kind::kFull, std::vector<float>(static_cast<std::size_t>(heads) * 4, 1), 0, 65, 1);
    for (std::size_t i = 0; i < got.size(); i += 4) {
      EXPECT_NEAR(got[i], part, 1e-6);
      EXPECT_NEAR(got[i + 1], 2 * part, 1e-6);
      EXPECT_NEAR(got[i + 2], 1 / total, 1e-6);
      EXPECT_NEAR(got[i + 3], -448 * part, 5e-4);
    }
  }
}

TEST_F(Fp8Attention, ZeroScalesGiveTheMeanOrNothing) {
  for (const Kind kind : kinds())
    for (const std::int64_t heads : {1, 6}) {
      const std::vector<float> q = random_rows(1, heads * 8, 1, 3)[0];
      Rows keys = random_rows(80, 8, 100, 1), values(80, std::vector<float>(8, 1));
      for (std::size_t j = 0; j < 80; j += 2) values[j][3] = -1;
      Cache cache(*kernels_, 8, 16, 80, {.q = 1, .k = 0, .v = 1});
      for (std::int64_t j = 0; j < 80; ++j) {  // inverse 1 / 0: codes of the bound
        cache.write(j, keys[static_cast<std::size_t>(j)], values[static_cast<std::size_t>(j)]);
      }
      const std::vector<float> mean = cache.attend(kind, q, 0, 80, 1);
      for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(mean[i], i % 8 == 3 ? 0 : 1, 1e-6);
      Cache none(*kernels_, 8, 16, 80, {.q = 1, .k = 1, .v = 0});
      none.write_all(keys, values, 80);
      for (const float x : none.attend(kind, q, 0, 80, 1)) ASSERT_EQ(x, 0.0f);
    }
}

TEST_F(Fp8Attention, OneVisibleKeyGivesItsValueExactly) {
  const Rows keys = random_rows(140, 40, 1, 1), values = random_rows(140, 40, 100, 2);
  const Scales scales{.q = 0.5f, .k = 0.25f, .v = 0.5f};
  for (const Kind kind : kinds())
    for (const std::int64_t heads : {2, 6}) {
      const std::vector<float> q = random_rows(1, heads * 40, 1, 3)[0];
      for (std::int64_t at = 0; at < 140; at += 3) {
        Cache cache(*kernels_, 40, 16, 140, scales, 5);  // every other slot is NaN codes
        cache.write(at, keys[static_cast<std::size_t>(at)], values[static_cast<std::size_t>(at)]);
        const std::vector<float> got = cache.attend(kind, q, at, at + 1, 0.2f);
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], rounded(values[static_cast<std::size_t>(at)][i % 40] * 2, 448) * 0.5) << at << " " << i;
      }
    }
}

// Scores of several hundreds: one key takes all the weight, and none of the exponentials may overflow.
TEST_F(Fp8Attention, SurvivesLargeScores) {
  for (const std::int64_t heads : {1, 5}) {
    Cache cache(*kernels_, 8, 16, 150, {.q = 1, .k = 1, .v = 1});
    for (std::int64_t j = 0; j < 150; ++j) cache.write(j, {-512, 1, 0, 0, 0, 0, 0, 0}, {300, -300, 448, 1, 0, 0, 0, 0});
    cache.write(70, {448, 0, 0, 0, 0, 0, 0, 0}, {0.5f, 0, 0.25f, -1, 2, 4, 8, 16});
    for (const Kind kind : kinds())
      for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
        const std::vector<float> all = cache.attend(kind, std::vector<float>(static_cast<std::size_t>(heads) * 8, 1), 3, 149, 1);
        EXPECT_THAT(std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(h * 8), all.begin() + static_cast<std::ptrdiff_t>(h * 8 + 8)),
                    testing::ElementsAre(0.5f, 0.0f, 0.25f, -1.0f, 2.0f, 4.0f, 8.0f, 16.0f));
      }
  }
}

TEST_F(Fp8Attention, ANaNQueryGivesNaN) {
  Cache cache(*kernels_, 32, 16, 70);
  cache.write_all(random_rows(70, 32, 1, 1), random_rows(70, 32, 1, 2), 70);
  for (const std::int64_t heads : {3, 6}) {
    std::vector<float> q = random_rows(1, heads * 32, 1, 3)[0];
    q[32 + 5] = std::numeric_limits<float>::quiet_NaN();
    for (const Kind kind : kinds()) {
      const std::vector<float> out = cache.attend(kind, q, 0, 70, 0.2f);
      for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 32 == 1) << i;
    }
  }
}

// Against FP64 on the query as the arithmetic rounds it: what is left is the rounding of weights to 8 bits.
TEST_F(Fp8Attention, DotMatchesFp64OnRoundedQueries) {
  if (!kernels_->attend_e4m3_dot) GTEST_SKIP() << "no BF16 dot products here";
  for (const std::int64_t head_dim : {4, 32, 36, 64, 80, 128, 256})
    for (const std::int64_t block_size : {16, 64}) {
      Cache cache(*kernels_, head_dim, block_size, 300);
      const Rows values = random_rows(300, head_dim, 1, 12);
      cache.write_all(random_rows(300, head_dim, 1, 11), values, 300);
      for (const std::int64_t heads : {1, 2, 3, 4, 7, 8, 13}) {
        const std::vector<float> q = random_rows(1, heads * head_dim, 1, 13)[0];
        const float scale = 1 / std::sqrt(static_cast<float>(head_dim)), whole = scale * cache.scales().k * 0x1.715476p+0f;
        std::vector<float> as_rounded = q;
        for (float& x : as_rounded) x = bf16_to_float(float_to_bf16(x * whole));
        for (const auto& [begin, end] : {std::pair{0, 1}, {0, 64}, {0, 65}, {3, 190}, {77, 79}, {0, 300}}) {
          const std::vector<float> got = cache.attend(Kind::kDot, q, begin, end, scale);
          const std::vector<double> want = oracle(cache, false, as_rounded, begin, end, std::log(2.0) / static_cast<double>(cache.scales().k)).out;
          for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 0x1p-8 * 5) << i << " D " << head_dim << " G " << heads << " keys [" << begin << ", " << end << ")";
        }
      }
    }
}

// ---------------------------------------------------------------- the same bits
TEST_F(Fp8Attention, BitsDependOnQueryAndVisibleKeysAlone) {
  for (const Kind kind : kinds())
    for (const std::int64_t head_dim : {36, 128}) {
      const std::int64_t tokens = 203;
      const Rows keys = random_rows(tokens, head_dim, 1, 1), values = random_rows(tokens, head_dim, 1, 2), queries = random_rows(tokens, 2 * head_dim, 1, 3);
      Cache full(*kernels_, head_dim, 16, tokens), growing(*kernels_, head_dim, 64, tokens, {}, 9);
      full.write_all(keys, values, tokens);
      full.cold = false;
      for (std::int64_t j = 0; j < tokens; ++j) {
        growing.write(j, keys[static_cast<std::size_t>(j)], values[static_cast<std::size_t>(j)]);
        for (const std::int64_t begin : {std::int64_t{0}, std::max<std::int64_t>(0, j - 69)})
          ASSERT_EQ(growing.attend(kind, queries[static_cast<std::size_t>(j)], begin, j + 1, 0.1f), full.attend(kind, queries[static_cast<std::size_t>(j)], begin, j + 1, 0.1f)) << j << " from " << begin;
      }
    }
}

TEST_F(Fp8Attention, AHeadAloneHasTheBitsOfAHeadInAGroup) {
  for (const Kind kind : kinds())
    for (const std::int64_t head_dim : {24, 64, 80, 128, 160}) {
      Cache cache(*kernels_, head_dim, 16, 150);
      cache.write_all(random_rows(150, head_dim, 1, 1), random_rows(150, head_dim, 1, 2), 150);
      const Rows queries = random_rows(16, head_dim, 1, 3);
      Rows alone;
      for (const auto& q : queries) alone.push_back(cache.attend(kind, q, 5, 150, 0.15f));
      for (std::size_t heads = 2; heads <= 16; ++heads) {
        std::vector<float> q, want;
        for (std::size_t h = 0; h < heads; ++h) {
          q.insert(q.end(), queries[h].begin(), queries[h].end());
          want.insert(want.end(), alone[h].begin(), alone[h].end());
        }
        ASSERT_EQ(cache.attend(kind, q, 5, 150, 0.15f), want) << heads << " heads of " << head_dim;
      }
    }
}

TEST_F(Fp8Attention, ATokenAloneHasTheBitsOfATokenAmongOthers) {
  for (const Kind kind : kinds())
    for (const std::int64_t head_dim : {24, 80, 128}) {
      Cache cache(*kernels_, head_dim, 16, 220);
      cache.write_all(random_rows(220, head_dim, 1, 1), random_rows(220, head_dim, 1, 2), 220);
      for (const std::int64_t heads : {1, 3, 5}) {
        const Rows queries = random_rows(70, heads * head_dim, 1, 3);
        for (const std::int64_t first : {0, 61, 130})
          for (const std::int64_t window : {0, 1, 33, 100})
            for (const std::int64_t count : {2, 7, 70}) {
              const Rows together = cache.attend(kind, Rows(queries.begin(), queries.begin() + count), 0, first + 1, window, 0.15f);
              for (std::int64_t t = 0; t < count; t += count > 7 ? 11 : 3) {
                const std::int64_t end = first + t + 1, begin = window > 0 ? std::max<std::int64_t>(0, end - window) : 0;
                ASSERT_EQ(together[static_cast<std::size_t>(t)], cache.attend(kind, queries[static_cast<std::size_t>(t)], begin, end, 0.15f))
                    << "token " << t << " of " << count << " from " << first << ", window " << window << ", " << heads << " heads of " << head_dim << " kind " << static_cast<int>(kind);
              }
            }
      }
    }
}

// ---------------------------------------------------------------- the specification
TEST_F(Fp8Attention, AgreesWithScalar) {
  const auto scalar = find("scalar");
  ASSERT_TRUE(scalar);
  for (const std::int64_t head_dim : {64, 80, 128})
    for (const std::int64_t heads : {1, 2, 5}) {
      const Rows keys = random_rows(300, head_dim, 1, 1), values = random_rows(300, head_dim, 1, 2), queries = random_rows(7, heads * head_dim, 1, 3);
      Cache mine(*kernels_, head_dim, 32, 300), spec(*(*scalar)->fp8_attention, head_dim, 32, 300);
      mine.write_all(keys, values, 300);
      spec.write_all(keys, values, 300);
      ASSERT_EQ(mine.memory(), spec.memory());
      for (const std::int64_t window : {0, 100}) {
        const Rows got = mine.attend(Kind::kPlain, queries, 3, 290, window, 0.1f), want = spec.attend(Kind::kPlain, queries, 3, 290, window, 0.1f);
        for (std::size_t t = 0; t < got.size(); ++t) EXPECT_THAT(got[t], testing::Pointwise(testing::FloatNear(2e-5f), want[t]));
        const Rows full = mine.attend(Kind::kFull, queries, 3, 290, window, 0.1f), full_want = spec.attend(Kind::kFull, queries, 3, 290, window, 0.1f);
        for (std::size_t t = 0; t < got.size(); ++t) {
          const std::int64_t end = 290 + static_cast<std::int64_t>(t);
          const Wanted exact = oracle(spec, true, queries[t], window > 0 ? end - window : 3, end, 0.1f);
          for (std::size_t i = 0; i < full[t].size(); ++i) ASSERT_NEAR(full[t][i], full_want[t][i], 2 * exact.tolerance[i]) << t << " " << i;
        }
      }
    }
}

}  // namespace
}  // namespace inflight::kernels
