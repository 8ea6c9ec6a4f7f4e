// Attention of the chosen ISA over a paged cache, against FP64 written here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

struct Shape {
  std::int64_t head_dim = 64;
  std::int64_t block_size = 16;
  std::int64_t tokens = 100;  // the cache has room for one block more
  bool bf16 = true;
  float scatter = 1;  // deviation of keys, values and queries
};

// One KV head's cache; every byte that no token wrote is NaN. Blocks lie in random order, with unused blocks between them.
class Cache {
 public:
  Cache(const VectorKernels& kernels, const Shape& shape, unsigned seed) : kernels_(kernels), shape_(shape) {
    std::mt19937 engine(seed);
    const std::int64_t blocks = shape.tokens / shape.block_size + 2;
    half_bytes_ = shape.block_size * shape.head_dim * (shape.bf16 ? 2 : 4);
    stride_ = 2 * half_bytes_ + 64;  // keys, values, and a gap
    table_.resize(static_cast<std::size_t>(2 * blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), engine);
    memory_.assign(static_cast<std::size_t>(2 * blocks * stride_), std::byte{0xff});
  }

  void write(std::int64_t position, const std::vector<float>& k, const std::vector<float>& v) {
    std::byte* block = memory_.data() + table_[static_cast<std::size_t>(position / shape_.block_size)] * stride_;
    (shape_.bf16 ? kernels_.store_kv_bf16 : kernels_.store_kv_f32)(k.data(), v.data(), shape_.head_dim, position % shape_.block_size, block, block + half_bytes_);
  }

  // [G, D]. Blocks wholly outside [begin, end) have table entries that lead nowhere.
  std::vector<float> attend(const std::vector<float>& q, std::int64_t begin, std::int64_t end, float scale) const { return attend({q}, begin, end, 0, scale)[0]; }

  // The same for consecutive tokens, the first of which sees [begin, end).
  std::vector<std::vector<float>> attend(const std::vector<std::vector<float>>& queries, std::int64_t begin, std::int64_t end, std::int64_t window, float scale) const {
    std::vector<std::int32_t> table = table_;
    const std::int64_t tokens = static_cast<std::int64_t>(queries.size());
    const std::int64_t first_seen = window > 0 ? std::max(begin, end - window) : begin;
    for (std::size_t b = 0; b < table.size(); ++b) {
      const std::int64_t from = static_cast<std::int64_t>(b) * shape_.block_size;
      if (from + shape_.block_size <= first_seen || from >= end + tokens - 1) table[b] = 0x7fffffff;
    }
    const std::size_t width = queries[0].size(), gap = 5;
    std::vector<float> q;
    for (const auto& query : queries) {
      q.insert(q.end(), query.begin(), query.end());
      q.insert(q.end(), gap, std::numeric_limits<float>::quiet_NaN());
    }
    const std::int64_t heads = static_cast<std::int64_t>(width) / shape_.head_dim;
    const std::int64_t floats = kernels_.attend_scratch(tokens * heads, shape_.head_dim);
    std::vector<float> out(q.size(), -1.0f), scratch(static_cast<std::size_t>(floats + 16), std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> untouched = scratch;
    AttendArgs args;
    args.q = q.data();
    args.heads = heads;
    args.head_dim = shape_.head_dim;
    args.keys = memory_.data();
    args.values = memory_.data() + half_bytes_;
    args.block_stride = stride_;
    args.block_table = table.data();
    args.block_size = shape_.block_size;
    args.begin = begin;
    args.end = end;
    args.tokens = tokens;
    args.window = window;
    args.q_stride = args.out_stride = static_cast<std::int64_t>(width + gap);
    args.scale = scale;
    args.cold = cold;
    args.out = out.data();
    args.scratch = scratch.data();
    (dot ? kernels_.attend_bf16_dot : shape_.bf16 ? kernels_.attend_bf16 : kernels_.attend_f32)(args);
    EXPECT_EQ(std::memcmp(scratch.data() + floats, untouched.data() + floats, 16 * sizeof(float)), 0) << "wrote past the scratch";
    std::vector<std::vector<float>> rows;
    for (std::size_t t = 0; t < queries.size(); ++t) {
      const auto from = out.begin() + static_cast<std::ptrdiff_t>(t * (width + gap)), to = from + static_cast<std::ptrdiff_t>(width);
      rows.emplace_back(from, to);
      EXPECT_EQ(std::count(to, to + static_cast<std::ptrdiff_t>(gap), -1.0f), static_cast<std::ptrdiff_t>(gap)) << "wrote between tokens";
    }
    return rows;
  }

  bool cold = true;
  bool dot = false;  // BF16 arithmetic

 private:
  const VectorKernels& kernels_;
  Shape shape_;
  std::int64_t half_bytes_ = 0, stride_ = 0;
  std::vector<std::int32_t> table_;
  std::vector<std::byte> memory_;
};

using Rows = std::vector<std::vector<float>>;

Rows random_rows(std::int64_t count, std::int64_t width, float deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  Rows rows(static_cast<std::size_t>(count), std::vector<float>(static_cast<std::size_t>(width)));
  for (auto& row : rows)
    for (float& x : row) x = normal(engine);
  return rows;
}

std::vector<double> oracle(const std::vector<float>& q, const Rows& keys, const Rows& values, const Shape& shape, std::int64_t begin, std::int64_t end, double scale) {
  const auto stored = [&](float x) { return static_cast<double>(shape.bf16 ? bf16_to_float(float_to_bf16(x)) : x); };
  const std::size_t width = static_cast<std::size_t>(shape.head_dim), heads = q.size() / width;
  std::vector<double> out(q.size());
  for (std::size_t head = 0; head < heads; ++head) {
    std::vector<double> scores;
    for (std::int64_t j = begin; j < end; ++j) {
      double dot = 0;
      for (std::size_t d = 0; d < width; ++d) dot += q[head * width + d] * stored(keys[static_cast<std::size_t>(j)][d]);
      scores.push_back(dot * scale);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - max);
    for (std::size_t d = 0; d < width; ++d) {
      double sum = 0;
      for (std::size_t j = 0; j < scores.size(); ++j) sum += scores[j] * stored(values[static_cast<std::size_t>(begin) + j][d]);
      out[head * width + d] = sum / total;
    }
  }
  return out;
}

float largest(const Rows& rows) {
  float most = 0;
  for (const auto& row : rows)
    for (const float x : row) most = std::max(most, std::fabs(x));
  return most;
}

class Attention : public testing::Test {
 protected:
  void SetUp() override {
    const auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    kernels_ = (*table)->vector;
  }

  Cache filled(const Shape& shape, const Rows& keys, const Rows& values, std::int64_t upto, unsigned seed = 1) const {
    Cache cache(*kernels_, shape, seed);
    for (std::int64_t j = 0; j < upto; ++j) cache.write(j, keys[static_cast<std::size_t>(j)], values[static_cast<std::size_t>(j)]);
    return cache;
  }

  void expect_oracle(const Shape& shape, std::int64_t heads, const std::vector<std::pair<std::int64_t, std::int64_t>>& windows) const {
    const Rows keys = random_rows(shape.tokens, shape.head_dim, shape.scatter, 11), values = random_rows(shape.tokens, shape.head_dim, shape.scatter, 12);
    const std::vector<float> q = random_rows(1, heads * shape.head_dim, shape.scatter, 13)[0];
    const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    const Cache cache = filled(shape, keys, values, shape.tokens);
    const double tolerance = 2e-6 * largest(values);
    for (const auto& [begin, end] : windows) {
      const std::vector<float> got = cache.attend(q, begin, end, scale);
      const std::vector<double> want = oracle(q, keys, values, shape, begin, end, scale);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], tolerance) << "index " << i << " D " << shape.head_dim << " G " << heads << " block " << shape.block_size << " keys [" << begin << ", " << end << ") "
                                                << (shape.bf16 ? "bf16" : "f32");
      }
    }
  }

  const VectorKernels* kernels_ = nullptr;
};

TEST_F(Attention, MatchesFp64ForEveryHeadCountAndType) {
  for (const bool bf16 : {false, true})
    for (const std::int64_t head_dim : {64, 128})
      for (std::int64_t heads = 1; heads <= 17; ++heads) expect_oracle({.head_dim = head_dim, .tokens = 90, .bf16 = bf16}, heads, {{0, 1}, {0, 64}, {0, 90}, {10, 80}});
}

TEST_F(Attention, MatchesFp64ForEveryHeadDim) {
  for (const bool bf16 : {false, true})
    for (std::int64_t head_dim = 2; head_dim <= 260; head_dim += head_dim < 140 ? 2 : 20)
      expect_oracle({.head_dim = head_dim, .block_size = 32, .tokens = 80, .bf16 = bf16}, 3, {{0, 80}, {33, 71}});
}

TEST_F(Attention, MatchesFp64ForEveryEndAndBlockSize) {
  std::vector<std::pair<std::int64_t, std::int64_t>> windows;
  for (std::int64_t end = 1; end <= 150; ++end) windows.push_back({0, end});
  for (const bool bf16 : {false, true})
    for (const std::int64_t block_size : {16, 32, 48, 64, 128}) expect_oracle({.head_dim = 36, .block_size = block_size, .tokens = 150, .bf16 = bf16}, 2, windows);
}

TEST_F(Attention, MatchesFp64ForSlidingWindows) {
  std::vector<std::pair<std::int64_t, std::int64_t>> windows;
  for (std::int64_t begin = 0; begin < 150; begin += 1)
    for (const std::int64_t length : {1, 7, 16, 63, 64, 100}) windows.push_back({begin, std::min<std::int64_t>(begin + length, 150)});
  for (const bool bf16 : {false, true})
    for (const std::int64_t block_size : {16, 64}) expect_oracle({.head_dim = 24, .block_size = block_size, .tokens = 150, .bf16 = bf16}, 2, windows);
}

TEST_F(Attention, MatchesFp64OverLongContexts) {
  for (const bool bf16 : {false, true}) expect_oracle({.head_dim = 80, .block_size = 64, .tokens = 4101, .bf16 = bf16}, 2, {{0, 4101}, {3000, 4100}});
}

// Sums of one sign grow with the context; their rounding must not.
TEST_F(Attention, HoldsItsErrorOver16kKeysOfPositiveValues) {
  for (const bool bf16 : {false, true}) {
    const Shape shape{.head_dim = 18, .block_size = 64, .tokens = 16411, .bf16 = bf16};
    const Rows keys = random_rows(shape.tokens, 18, 1, 1);
    Rows values = random_rows(shape.tokens, 18, 0.1f, 2);
    for (auto& row : values)
      for (float& x : row) x = 1 + std::fabs(x);
    const std::vector<float> q = random_rows(1, 2 * 18, 0.3f, 3)[0];
    const std::vector<float> got = filled(shape, keys, values, shape.tokens).attend(q, 0, shape.tokens, 0.25f);
    const std::vector<double> want = oracle(q, keys, values, shape, 0, shape.tokens, 0.25);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6 * largest(values)) << i;
  }
}

// Scores of several hundreds: one key takes all the weight, and none of the exponentials may overflow.
TEST_F(Attention, SurvivesLargeScores) {
  for (const bool bf16 : {false, true}) {
    const Shape shape{.head_dim = 64, .tokens = 200, .bf16 = bf16, .scatter = 20};
    const Rows keys = random_rows(200, 64, 20, 1), values = random_rows(200, 64, 1, 2);
    const std::vector<float> q = random_rows(1, 4 * 64, 20, 3)[0];
    const Cache cache = filled(shape, keys, values, 200);
    const std::vector<float> got = cache.attend(q, 0, 200, 0.125f);
    const std::vector<double> want = oracle(q, keys, values, shape, 0, 200, 0.125);
    // A score of 1000 rounds by about 1e-4, and so do the weights.
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3) << i;
  }
}

// Scores of 0, -90 and -200 beside values up to 2^116: a subnormal weight counts, one below the smallest FP32 is nothing at all.
TEST_F(Attention, TinyWeightsAreNeitherLostNorInvented) {
  for (const bool bf16 : {false, true}) {
    const Shape shape{.head_dim = 4, .tokens = 150, .bf16 = bf16};
    Rows keys(150, std::vector<float>{-200, 0, 0, 0}), values(150, std::vector<float>{0x1p116f, -0x1p116f, 0, 1});
    keys[70] = {0, 0, 0, 0};
    values[70] = {0.5f, 0, 0.25f, -1};
    const std::vector<float> q = {1, 7, 7, 7};
    EXPECT_THAT(filled(shape, keys, values, 150).attend(q, 3, 149, 1.0f), testing::ElementsAre(0.5f, 0.0f, 0.25f, -1.0f));
    keys[100] = {-90, 0, 0, 0};
    const Cache cache = filled(shape, keys, values, 150);
    const std::vector<float> got = cache.attend(q, 3, 149, 1.0f);
    EXPECT_THAT(got, testing::Pointwise(testing::FloatNear(1e-7f), oracle(q, keys, values, shape, 3, 149, 1.0)));
    EXPECT_NEAR(got[1], -std::exp(-90.0) * 0x1p116, 1e-9);  // the last place of the weight is worth 2^-33
  }
}

TEST_F(Attention, OneVisibleKeyGivesItsValueExactly) {
  for (const bool bf16 : {false, true}) {
    const Shape shape{.head_dim = 40, .tokens = 140, .bf16 = bf16};
    const Rows keys = random_rows(140, 40, 1, 1), values = random_rows(140, 40, 1, 2);
    const std::vector<float> q = random_rows(1, 2 * 40, 1, 3)[0];
    for (std::int64_t at = 0; at < 140; ++at) {
      Cache cache(*kernels_, shape, 5);  // every other slot is NaN
      cache.write(at, keys[static_cast<std::size_t>(at)], values[static_cast<std::size_t>(at)]);
      const std::vector<float> got = cache.attend(q, at, at + 1, 0.2f);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float value = values[static_cast<std::size_t>(at)][i % 40];
        ASSERT_EQ(got[i], bf16 ? bf16_to_float(float_to_bf16(value)) : value) << at << " " << i;
      }
    }
  }
}

// The cache cut into other blocks, filled no further than needed or to the end, with other garbage, cold or not: the same bits.
TEST_F(Attention, BitsDependOnQueryAndVisibleKeysAlone) {
  for (const bool bf16 : {false, true}) {
    for (const std::int64_t head_dim : {36, 128}) {
      const std::int64_t tokens = 203;
      const Rows keys = random_rows(tokens, head_dim, 1, 1), values = random_rows(tokens, head_dim, 1, 2), queries = random_rows(tokens, 2 * head_dim, 1, 3);
      const Shape whole{.head_dim = head_dim, .block_size = 16, .tokens = tokens, .bf16 = bf16};
      Cache full = filled(whole, keys, values, tokens);
      full.cold = false;
      Cache growing(*kernels_, {.head_dim = head_dim, .block_size = 64, .tokens = tokens, .bf16 = bf16}, 9);
      for (std::int64_t j = 0; j < tokens; ++j) {
        growing.write(j, keys[static_cast<std::size_t>(j)], values[static_cast<std::size_t>(j)]);
        for (const std::int64_t begin : {std::int64_t{0}, std::max<std::int64_t>(0, j - 69)})
          ASSERT_EQ(growing.attend(queries[static_cast<std::size_t>(j)], begin, j + 1, 0.1f), full.attend(queries[static_cast<std::size_t>(j)], begin, j + 1, 0.1f)) << j << " from " << begin;
      }
    }
  }
}

TEST_F(Attention, AHeadAloneHasTheBitsOfAHeadInAGroup) {
  for (const bool bf16 : {false, true}) {
    for (const std::int64_t head_dim : {24, 64, 80, 128, 160}) {
      const Shape shape{.head_dim = head_dim, .tokens = 150, .bf16 = bf16};
      const Rows keys = random_rows(150, head_dim, 1, 1), values = random_rows(150, head_dim, 1, 2), queries = random_rows(16, head_dim, 1, 3);
      const Cache cache = filled(shape, keys, values, 150);
      Rows alone;
      for (const auto& q : queries) alone.push_back(cache.attend(q, 5, 150, 0.15f));
      for (std::size_t heads = 2; heads <= 16; ++heads) {
        std::vector<float> q, want;
        for (std::size_t h = 0; h < heads; ++h) {
          q.insert(q.end(), queries[h].begin(), queries[h].end());
          want.insert(want.end(), alone[h].begin(), alone[h].end());
        }
        ASSERT_EQ(cache.attend(q, 5, 150, 0.15f), want) << heads << " heads of " << head_dim;
      }
    }
  }
}

// Any run of consecutive tokens, with windows and without, in either arithmetic: the bits of each token alone.
TEST_F(Attention, ATokenAloneHasTheBitsOfATokenAmongOthers) {
  struct Kind {
    bool bf16, dot;
  };
  for (const Kind kind : {Kind{false, false}, Kind{true, false}, Kind{true, true}}) {
    if (kind.dot && !kernels_->attend_bf16_dot) continue;
    for (const std::int64_t head_dim : {24, 80, 128}) {
      const Shape shape{.head_dim = head_dim, .tokens = 220, .bf16 = kind.bf16};
      const Rows keys = random_rows(220, head_dim, 1, 1), values = random_rows(220, head_dim, 1, 2);
      for (const std::int64_t heads : {1, 2, 3, 5}) {
        const Rows queries = random_rows(70, heads * head_dim, 1, 3);
        for (const std::int64_t first : {0, 61, 130}) {
          for (const std::int64_t window : {0, 1, 33, 100}) {
            for (const std::int64_t count : {2, 7, 70}) {
              Cache cache = filled(shape, keys, values, first + count);
              cache.dot = kind.dot;
              const Rows together = cache.attend(Rows(queries.begin(), queries.begin() + count), 0, first + 1, window, 0.15f);
              for (std::int64_t t = 0; t < count; t += count > 7 ? 7 : 1) {
                const std::int64_t end = first + t + 1, begin = window > 0 ? std::max<std::int64_t>(0, end - window) : 0;
                ASSERT_EQ(together[static_cast<std::size_t>(t)], cache.attend(queries[static_cast<std::size_t>(t)], begin, end, 0.15f))
                    << "token " << t << " of " << count << " from " << first << ", window " << window << ", " << heads << " heads of " << head_dim << (kind.dot ? ", dot" : "");
              }
            }
          }
        }
      }
    }
  }
}

// Against FP64 on the query as the arithmetic rounds it: what is left is the rounding of weights to 8 bits, 2^-9 each, in the sum and beside it.
TEST_F(Attention, Bf16DotMatchesFp64OnRoundedQueries) {
  if (!kernels_->attend_bf16_dot) GTEST_SKIP() << "no BF16 dot products here";
  for (const std::int64_t head_dim : {2, 6, 30, 32, 34, 64, 80, 96, 128, 130, 256}) {
    for (const std::int64_t block_size : {16, 64}) {
      const Shape shape{.head_dim = head_dim, .block_size = block_size, .tokens = 300};
      const Rows keys = random_rows(300, head_dim, 1, 11), values = random_rows(300, head_dim, 1, 12);
      for (const std::int64_t heads : {1, 2, 3, 4, 7, 8, 13}) {
        const std::vector<float> q = random_rows(1, heads * head_dim, 1, 13)[0];
        const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
        std::vector<float> rounded = q;
        for (float& x : rounded) x = bf16_to_float(float_to_bf16(x * (scale * 0x1.715476p+0f)));
        Cache cache = filled(shape, keys, values, 300);
        cache.dot = true;
        for (const auto& [begin, end] : {std::pair{0, 1}, {0, 64}, {0, 65}, {3, 190}, {77, 79}, {0, 300}}) {
          const std::vector<float> got = cache.attend(q, begin, end, scale);
          const std::vector<double> want = oracle(rounded, keys, values, shape, begin, end, 0.6931471805599453);
          double total = 0, error = 0;
          for (std::size_t i = 0; i < got.size(); ++i) {
            ASSERT_NEAR(got[i], want[i], 0x1p-8 * largest(values)) << i << " D " << head_dim << " G " << heads << " keys [" << begin << ", " << end << ")";
            total += want[i] * want[i];
            error += (got[i] - want[i]) * (got[i] - want[i]);
          }
          EXPECT_LE(std::sqrt(error), 0x1p-8 * std::sqrt(total));
        }
      }
    }
  }
}

// Equal values come out as they are, whatever the weights: the sum beside is that of the rounded weights.
TEST_F(Attention, Bf16DotWeightsSumToOne) {
  if (!kernels_->attend_bf16_dot) GTEST_SKIP() << "no BF16 dot products here";
  const Shape shape{.head_dim = 64, .block_size = 32, .tokens = 1000};
  Cache cache = filled(shape, random_rows(1000, 64, 2, 1), Rows(1000, std::vector<float>(64, 1.25f)), 1000);
  cache.dot = true;
  for (const std::int64_t end : {1, 2, 63, 64, 500, 1000})
    for (const float x : cache.attend(random_rows(1, 3 * 64, 1, 3)[0], 0, end, 0.125f)) ASSERT_NEAR(x, 1.25f, 1e-6f) << end;
}

TEST_F(Attention, Bf16DotSurvivesLargeScoresAndFindsNaN) {
  if (!kernels_->attend_bf16_dot) GTEST_SKIP() << "no BF16 dot products here";
  const Shape shape{.head_dim = 4, .tokens = 150};
  Rows keys(150, std::vector<float>{-512, 0, 0, 0}), values(150, std::vector<float>{0x1p116f, -0x1p116f, 0, 1});
  keys[70] = {512, 0, 0, 0};
  values[70] = {0.5f, 0, 0.25f, -1};
  Cache cache = filled(shape, keys, values, 150);
  cache.dot = true;
  EXPECT_THAT(cache.attend({1, 7, 7, 7}, 3, 149, 1.0f), testing::ElementsAre(0.5f, 0.0f, 0.25f, -1.0f));
  const std::vector<float> out = cache.attend({std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 1, 0, 0, 0}, 3, 149, 1.0f);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i < 4) << i;
}

TEST_F(Attention, ANaNQueryGivesNaN) {
  const Shape shape{.head_dim = 32, .tokens = 70};
  const Rows keys = random_rows(70, 32, 1, 1), values = random_rows(70, 32, 1, 2);
  std::vector<float> q = random_rows(1, 3 * 32, 1, 3)[0];
  q[32 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = filled(shape, keys, values, 70).attend(q, 0, 70, 0.2f);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 32 == 1) << i;
}

// The spec and this ISA agree on the whole, not only each with FP64.
TEST_F(Attention, AgreesWithScalar) {
  const auto scalar = find("scalar");
  ASSERT_TRUE(scalar);
  for (const bool bf16 : {false, true}) {
    const Shape shape{.head_dim = 96, .block_size = 32, .tokens = 300, .bf16 = bf16};
    const Rows keys = random_rows(300, 96, 1, 1), values = random_rows(300, 96, 1, 2);
    const std::vector<float> q = random_rows(1, 5 * 96, 1, 3)[0];
    const Cache mine = filled(shape, keys, values, 300);
    Cache spec(*(*scalar)->vector, shape, 1);
    for (std::size_t j = 0; j < 300; ++j) spec.write(static_cast<std::int64_t>(j), keys[j], values[j]);
    EXPECT_THAT(mine.attend(q, 17, 290, 0.1f), testing::Pointwise(testing::FloatNear(4e-6f * largest(values)), spec.attend(q, 17, 290, 0.1f)));
  }
}

}  // namespace
}  // namespace inflight::kernels
