// Attention over latents of the chosen ISA, against FP64 written here.
#include "kernels/latent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

enum class Kind { kF32, kBf16, kDot };

struct Shape {
  std::int64_t dim = 72;
  std::int64_t value_dim = 64;
  std::int64_t block_size = 16;
  std::int64_t tokens = 150;
  Kind kind = Kind::kF32;
  bool wide() const { return kind == Kind::kF32; }
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

// One layer's cache; every byte that no row wrote is NaN. Blocks lie in random order, with unused blocks between them.
class Cache {
 public:
  Cache(const Shape& shape, const Rows& rows, std::int64_t first, std::int64_t last, unsigned seed) : shape_(shape) {
    std::mt19937 engine(seed);
    const std::int64_t blocks = shape.tokens / shape.block_size + 2;
    stride_ = shape.block_size * shape.dim * (shape.wide() ? 4 : 2) + 64;
    table_.resize(static_cast<std::size_t>(2 * blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), engine);
    memory_.assign(static_cast<std::size_t>(2 * blocks * stride_), std::byte{0xff});
    for (std::int64_t j = first; j < last; ++j)
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        const float value = rows[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)];
        std::byte* block = memory_.data() + table_[static_cast<std::size_t>(j / shape.block_size)] * stride_;
        const std::int64_t at = j % shape.block_size * shape.dim + d;
        const std::uint16_t narrow = float_to_bf16(value);
        if (shape.wide()) std::memcpy(block + at * 4, &value, 4);
        else std::memcpy(block + at * 2, &narrow, 2);
      }
  }

  const std::byte* data() const { return memory_.data(); }
  std::int64_t stride() const { return stride_; }
  // Entries of blocks without a row in [begin, end) lead nowhere.
  std::vector<std::int32_t> table(std::int64_t begin, std::int64_t end) const {
    std::vector<std::int32_t> table = table_;
    for (std::size_t b = 0; b < table.size(); ++b) {
      const std::int64_t from = static_cast<std::int64_t>(b) * shape_.block_size;
      if (from + shape_.block_size <= begin || from >= end) table[b] = 0x7fffffff;
    }
    return table;
  }

  struct Answer {
    Rows out;  // of each token [heads, R]
    std::vector<float> maxima, sums;
    bool operator==(const Answer&) const = default;
  };

  // Consecutive tokens [heads, D], the first of which sees [begin, end).
  Answer attend(const LatentKernels& kernels, const Rows& queries, std::int64_t begin, std::int64_t end, float scale) const {
    const auto tokens = static_cast<std::int64_t>(queries.size()), heads = static_cast<std::int64_t>(queries[0].size()) / shape_.dim, gap = std::int64_t{5};
    const std::vector<std::int32_t> table = this->table(begin, end + tokens - 1);
    std::vector<float> q;
    for (const auto& query : queries) {
      q.insert(q.end(), query.begin(), query.end());
      q.insert(q.end(), static_cast<std::size_t>(gap), std::numeric_limits<float>::quiet_NaN());
    }
    const std::int64_t width = heads * shape_.value_dim, floats = kernels.scratch(tokens, heads, shape_.dim, shape_.value_dim);
    std::vector<float> out(static_cast<std::size_t>(tokens * (width + gap)), -1.0f), scratch(static_cast<std::size_t>(floats + 16), std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> untouched = scratch;
    Answer answer;
    answer.maxima.resize(static_cast<std::size_t>(tokens * heads));
    answer.sums = answer.maxima;
    const LatentArgs args{.q = q.data(), .heads = heads, .dim = shape_.dim, .value_dim = shape_.value_dim, .latents = memory_.data(), .block_stride = stride_, .block_table = table.data(),
                          .block_size = shape_.block_size, .begin = begin, .end = end, .tokens = tokens, .q_stride = heads * shape_.dim + gap, .out_stride = width + gap, .scale = scale,
                          .out = out.data(), .maxima = answer.maxima.data(), .sums = answer.sums.data(), .scratch = scratch.data()};
    (shape_.kind == Kind::kF32 ? kernels.attend_f32 : shape_.kind == Kind::kBf16 ? kernels.attend_bf16 : kernels.attend_bf16_dot)(args);
    EXPECT_EQ(std::memcmp(scratch.data() + floats, untouched.data() + floats, 16 * sizeof(float)), 0) << "wrote past the scratch";
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto from = out.begin() + t * (width + gap), to = from + width;
      answer.out.emplace_back(from, to);
      EXPECT_EQ(std::count(to, to + gap, -1.0f), gap) << "wrote between tokens";
    }
    return answer;
  }

 private:
  Shape shape_;
  std::int64_t stride_ = 0;
  std::vector<std::int32_t> table_;
  std::vector<std::byte> memory_;
};

struct Exact {
  std::vector<double> out, maxima, sums;
};

// Of one token. For the BF16 arithmetic, q is rounded as the contract says; what rounding the weights adds is the tolerance's.
Exact oracle(const Shape& shape, const std::vector<float>& q, const Rows& rows, std::int64_t begin, std::int64_t end, float scale) {
  const auto stored = [&](float x) { return static_cast<double>(shape.wide() ? x : bf16_to_float(float_to_bf16(x))); };
  const std::int64_t heads = static_cast<std::int64_t>(q.size()) / shape.dim;
  Exact exact;
  for (std::int64_t h = 0; h < heads; ++h) {
    std::vector<double> scores;
    for (std::int64_t j = begin; j < end; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        const float x = q[static_cast<std::size_t>(h * shape.dim + d)];
        const double seen = shape.kind == Kind::kDot ? bf16_to_float(float_to_bf16(x * (scale * 0x1.715476p+0f))) * std::log(2.0) : static_cast<double>(x) * scale;
        dot += seen * stored(rows[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)]);
      }
      scores.push_back(dot);
    }
    const double max = *std::ranges::max_element(scores);
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - max);
    for (std::int64_t d = 0; d < shape.value_dim; ++d) {
      double sum = 0;
      for (std::size_t j = 0; j < scores.size(); ++j) sum += scores[j] * stored(rows[static_cast<std::size_t>(begin) + j][static_cast<std::size_t>(d)]);
      exact.out.push_back(sum / total);
    }
    exact.maxima.push_back(max);
    exact.sums.push_back(total);
  }
  return exact;
}

double largest(const Rows& rows) {
  float most = 0;
  for (const auto& row : rows)
    for (const float x : row) most = std::max(most, std::fabs(x));
  return most;
}

class Latent : public testing::Test {
 protected:
  void SetUp() override {
    const auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    kernels_ = (*table)->latent;
  }
  std::vector<Kind> kinds() const { return kernels_->attend_bf16_dot ? std::vector{Kind::kF32, Kind::kBf16, Kind::kDot} : std::vector{Kind::kF32, Kind::kBf16}; }

  void expect_oracle(const Shape& shape, std::int64_t heads, std::int64_t tokens, const std::vector<std::pair<std::int64_t, std::int64_t>>& windows, float deviation = 1) const {
    const Rows rows = random_rows(shape.tokens, shape.dim, deviation, 11), queries = random_rows(tokens, heads * shape.dim, 1, 13);
    const float scale = 1 / std::sqrt(static_cast<float>(shape.dim));
    const Cache cache(shape, rows, 0, shape.tokens, 1);
    const double tolerance = (shape.kind == Kind::kDot ? 0x1p-7 : 2e-6) * largest(rows), loose = shape.kind == Kind::kDot ? 0x1p-7 : 1e-5;
    for (const auto& [begin, end] : windows) {
      const Cache::Answer got = cache.attend(*kernels_, queries, begin, end, scale);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const Exact want = oracle(shape, queries[static_cast<std::size_t>(t)], rows, begin, end + t, scale);
        const auto place = [&](std::size_t i) { return ::testing::Message() << "index " << i << " token " << t << " D " << shape.dim << " R " << shape.value_dim << " heads " << heads << " block " << shape.block_size
                                                                            << " rows [" << begin << ", " << end + t << ") kind " << static_cast<int>(shape.kind); };
        for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out[static_cast<std::size_t>(t)][i], want.out[i], tolerance) << place(i);
        for (std::size_t h = 0; h < want.sums.size(); ++h) {
          ASSERT_NEAR(got.maxima[static_cast<std::size_t>(t * heads) + h], want.maxima[h], loose) << place(h);
          ASSERT_NEAR(got.sums[static_cast<std::size_t>(t * heads) + h], want.sums[h], loose * want.sums[h]) << place(h);
        }
      }
    }
  }

  const LatentKernels* kernels_ = nullptr;
};

TEST_F(Latent, MatchesFp64ForEveryHeadCount) {
  for (const Kind kind : kinds())
    for (const std::int64_t heads : {1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 20, 31, 32, 48, 49, 64, 80, 128})
      expect_oracle({.kind = kind}, heads, 1, {{0, 1}, {0, 64}, {0, 90}, {10, 80}});
}

TEST_F(Latent, MatchesFp64ForEveryDimension) {
  for (const Kind kind : kinds())
    for (const std::int64_t value_dim : {16, 32, 48, 64, 80, 112, 128, 512})
      for (const std::int64_t beside : {0, 2, 8, 30, 64}) expect_oracle({.dim = value_dim + beside, .value_dim = value_dim, .tokens = 80, .kind = kind}, 3, 1, {{0, 80}, {33, 71}});
}

TEST_F(Latent, MatchesFp64ForEveryEndAndBlockSize) {
  std::vector<std::pair<std::int64_t, std::int64_t>> windows;
  for (std::int64_t end = 1; end <= 150; ++end) windows.push_back({0, end});
  for (std::int64_t begin = 1; begin < 150; begin += 3) windows.push_back({begin, std::min<std::int64_t>(begin + 20, 150)});
  for (const Kind kind : kinds())
    for (const std::int64_t block_size : {16, 32, 48, 64, 128}) expect_oracle({.dim = 36, .value_dim = 32, .block_size = block_size, .kind = kind}, 2, 1, windows);
}

TEST_F(Latent, MatchesFp64ForManyTokens) {
  for (const Kind kind : kinds())
    for (const std::int64_t heads : {1, 16, 18})
      for (const std::int64_t tokens : {2, 3, 5, 33}) expect_oracle({.dim = 36, .value_dim = 32, .kind = kind}, heads, tokens, {{0, 1}, {0, 31}, {0, 64}, {0, 100}});
}

TEST_F(Latent, MatchesFp64OverLongContexts) {
  for (const Kind kind : kinds()) expect_oracle({.dim = 40, .value_dim = 32, .block_size = 64, .tokens = 4101, .kind = kind}, 2, 1, {{0, 4101}, {3000, 4100}});
}

// Scores of several hundreds: one row takes all the weight, and none of the exponentials may overflow.
TEST_F(Latent, SurvivesLargeScores) {
  for (const Kind kind : kinds()) {
    const Shape shape{.dim = 64, .value_dim = 48, .tokens = 200, .kind = kind};
    const Rows rows = random_rows(200, 64, 20, 1), queries = random_rows(1, 4 * 64, 20, 3);
    const Cache::Answer got = Cache(shape, rows, 0, 200, 1).attend(*kernels_, queries, 0, 200, 0.125f);
    const Exact want = oracle(shape, queries[0], rows, 0, 200, 0.125f);
    for (std::size_t i = 0; i < want.out.size(); ++i) EXPECT_NEAR(got.out[0][i], want.out[i], kind == Kind::kDot ? 0.3 : 0.02) << i;  // a score of 1000 rounds by about 1e-4
  }
}

TEST_F(Latent, OneVisibleRowIsTheAnswerExactly) {
  for (const Kind kind : kinds()) {
    const Shape shape{.dim = 40, .value_dim = 32, .tokens = 140, .kind = kind};
    const Rows rows = random_rows(140, 40, 1, 1), queries = random_rows(1, 2 * 40, 1, 3);
    for (std::int64_t at = 0; at < 140; ++at) {
      const Cache::Answer got = Cache(shape, rows, at, at + 1, 5).attend(*kernels_, queries, at, at + 1, 0.2f);  // every other slot is NaN
      for (std::size_t i = 0; i < got.out[0].size(); ++i) {
        const float value = rows[static_cast<std::size_t>(at)][i % 32];
        ASSERT_EQ(got.out[0][i], shape.wide() ? value : bf16_to_float(float_to_bf16(value))) << at << " " << i;
      }
      EXPECT_EQ(got.sums, (std::vector<float>{1, 1}));
    }
  }
}

// The plain form of one head: a cache whose rows make keys and values.
struct Head {
  Shape shape;  // dim = R + P, value_dim = R
  std::int64_t nope_dim, value_dim;
  Rows k_b, v_b;  // [R][N], [V][R], already BF16
  bool wide_weights = false;
  std::int64_t rope_dim() const { return shape.dim - shape.value_dim; }
  std::int64_t rank() const { return shape.value_dim; }

  Head(const Shape& s, std::int64_t nope, std::int64_t values, bool wide) : shape(s), nope_dim(nope), value_dim(values), wide_weights(wide) {
    k_b = random_rows(rank(), nope, 1 / std::sqrt(static_cast<float>(rank())), 21);
    v_b = random_rows(values, rank(), 1 / std::sqrt(static_cast<float>(rank())), 22);
    for (Rows* rows : {&k_b, &v_b})
      for (auto& row : *rows)
        for (float& x : row) x = bf16_to_float(float_to_bf16(x));
  }

  // Panels of kernels.h.
  std::vector<std::byte> packed(const Rows& w) const {
    const std::size_t outputs = w.size(), inputs = w[0].size();
    std::vector<std::byte> bytes(outputs * inputs * (wide_weights ? 4 : 2));
    for (std::size_t n = 0; n < outputs; ++n)
      for (std::size_t k = 0; k < inputs; ++k) {
        const std::uint16_t narrow = float_to_bf16(w[n][k]);
        if (wide_weights) std::memcpy(bytes.data() + ((n / 16 * inputs + k) * 16 + n % 16) * 4, &w[n][k], 4);
        else std::memcpy(bytes.data() + (((n / 16 * (inputs / 2) + k / 2) * 16 + n % 16) * 2 + k % 2) * 2, &narrow, 2);
      }
    return bytes;
  }

  Rows attend(const LatentKernels& kernels, const Cache& cache, const Rows& queries, std::int64_t end, float scale) const {
    const auto tokens = static_cast<std::int64_t>(queries.size()), gap = std::int64_t{3};
    const std::vector<std::byte> k = packed(k_b), v = packed(v_b);
    std::vector<float> q;
    for (const auto& query : queries) {
      q.insert(q.end(), query.begin(), query.end());
      q.insert(q.end(), static_cast<std::size_t>(gap), std::numeric_limits<float>::quiet_NaN());
    }
    const std::int64_t floats = kernels.expand_scratch(tokens, nope_dim, rope_dim(), rank(), value_dim);
    std::vector<float> out(static_cast<std::size_t>(tokens * (value_dim + gap)), -1.0f), scratch(static_cast<std::size_t>(floats + 16), std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> untouched = scratch;
    const std::vector<std::int32_t> table = cache.table(0, end + tokens - 1);
    const ExpandArgs args{.q = q.data(), .nope_dim = nope_dim, .rope_dim = rope_dim(), .rank = rank(), .value_dim = value_dim, .k_b = k.data(), .v_b = v.data(), .wide = wide_weights, .latents = cache.data(),
                          .block_stride = cache.stride(), .block_table = table.data(), .block_size = shape.block_size, .end = end, .tokens = tokens, .q_stride = nope_dim + rope_dim() + gap,
                          .out_stride = value_dim + gap, .scale = scale, .out = out.data(), .scratch = scratch.data()};
    (shape.kind == Kind::kF32 ? kernels.expand_f32 : shape.kind == Kind::kBf16 ? kernels.expand_bf16 : kernels.expand_bf16_dot)(args);
    EXPECT_EQ(std::memcmp(scratch.data() + floats, untouched.data() + floats, 16 * sizeof(float)), 0) << "wrote past the scratch";
    Rows rows;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto from = out.begin() + t * (value_dim + gap), to = from + value_dim;
      rows.emplace_back(from, to);
      EXPECT_EQ(std::count(to, to + gap, -1.0f), gap) << "wrote between tokens";
    }
    return rows;
  }

  // Keys [N + P] beside values [V] of every row, rounded as the arithmetic rounds them.
  std::pair<Rows, Rows> made(const Rows& rows) const {
    Rows keys, values;
    const bool rounds = shape.kind == Kind::kDot;
    const auto stored = [&](float x) { return shape.wide() ? x : bf16_to_float(float_to_bf16(x)); };
    const auto kept = [&](double x) { return rounds ? bf16_to_float(float_to_bf16(static_cast<float>(x))) : static_cast<float>(x); };
    for (const auto& row : rows) {
      std::vector<float> key, value;
      for (std::size_t n = 0; n < static_cast<std::size_t>(nope_dim); ++n) {
        double sum = 0;
        for (std::size_t r = 0; r < k_b.size(); ++r) sum += static_cast<double>(k_b[r][n]) * stored(row[r]);
        key.push_back(kept(sum));
      }
      for (std::size_t p = k_b.size(); p < row.size(); ++p) key.push_back(stored(row[p]));
      for (const auto& w : v_b) {
        double sum = 0;
        for (std::size_t r = 0; r < w.size(); ++r) sum += static_cast<double>(w[r]) * stored(row[r]);
        value.push_back(kept(sum));
      }
      keys.push_back(key);
      values.push_back(value);
    }
    return {keys, values};
  }
};

TEST_F(Latent, ExpandedMatchesFp64) {
  for (const Kind kind : kinds())
    for (const auto& [nope, values, beside, rank] : {std::array<std::int64_t, 4>{16, 16, 8, 32}, {32, 48, 2, 16}, {128, 128, 64, 512}, {48, 80, 30, 80}})
      for (const auto& [tokens, end] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 64}, {5, 61}, {16, 1}, {17, 50}, {70, 1}, {33, 100}})
        for (const bool wide : {false, true}) {
          if (rank == 512 && tokens > 17) continue;
          const Shape shape{.dim = rank + beside, .value_dim = rank, .tokens = 150, .kind = kind};
          const Head head(shape, nope, values, wide);
          const Rows rows = random_rows(shape.tokens, shape.dim, 1, 11), queries = random_rows(tokens, nope + beside, 1, 13);
          const auto [keys, made] = head.made(rows);
          const float scale = 1 / std::sqrt(static_cast<float>(nope + beside));
          const Rows got = head.attend(*kernels_, Cache(shape, rows, 0, end + tokens - 1, 1), queries, end, scale);
          const double tolerance = (kind == Kind::kDot ? 0x1p-6 : 4e-6) * largest(made);
          for (std::int64_t t = 0; t < tokens; ++t) {
            std::vector<double> scores;
            for (std::int64_t j = 0; j < end + t; ++j) {
              double dot = 0;
              for (std::size_t d = 0; d < keys[0].size(); ++d) {
                const float x = queries[static_cast<std::size_t>(t)][d];
                dot += (kind == Kind::kDot ? bf16_to_float(float_to_bf16(x * (scale * 0x1.715476p+0f))) * std::log(2.0) : static_cast<double>(x) * scale) * keys[static_cast<std::size_t>(j)][d];
              }
              scores.push_back(dot);
            }
            const double max = *std::ranges::max_element(scores);
            double total = 0;
            for (double& score : scores) total += score = std::exp(score - max);
            for (std::size_t d = 0; d < static_cast<std::size_t>(values); ++d) {
              double sum = 0;
              for (std::size_t j = 0; j < scores.size(); ++j) sum += scores[j] * made[j][d];
              ASSERT_NEAR(got[static_cast<std::size_t>(t)][d], sum / total, tolerance)
                  << "token " << t << " of " << tokens << " d " << d << " end " << end << " N " << nope << " V " << values << " R " << rank << " kind " << static_cast<int>(kind) << " wide " << wide;
            }
          }
        }
}

TEST_F(Latent, ExpandedBitsDependOnQueryAndVisibleRowsAlone) {
  for (const Kind kind : kinds()) {
    const Shape shape{.dim = 40, .value_dim = 32, .tokens = 203, .kind = kind};
    const Head head(shape, 32, 48, false);
    const Rows rows = random_rows(shape.tokens, shape.dim, 1, 1), queries = random_rows(shape.tokens, 40, 1, 3);
    const Cache whole({.dim = 40, .value_dim = 32, .block_size = 16, .tokens = 203, .kind = kind}, rows, 0, shape.tokens, 1);
    const Rows all = head.attend(*kernels_, whole, queries, 1, 0.2f);
    for (const std::int64_t first : {0, 1, 15, 16, 62, 63, 64, 100, 190})
      for (const std::int64_t count : {1, 13, 40}) {
        const std::int64_t tokens = std::min<std::int64_t>(count, 203 - first);
        Head other = head;
        other.shape.block_size = 64;
        const Rows part = other.attend(*kernels_, Cache(other.shape, rows, 0, first + tokens, 9), {queries.begin() + first, queries.begin() + first + tokens}, first + 1, 0.2f);
        for (std::int64_t t = 0; t < tokens; ++t) ASSERT_EQ(part[static_cast<std::size_t>(t)], all[static_cast<std::size_t>(first + t)]) << first << " + " << t;
      }
  }
}

// The cache cut into other blocks, filled no further than needed or to the end, tokens together or alone, heads together or alone: the same bits.
TEST_F(Latent, BitsDependOnQueryAndVisibleRowsAlone) {
  for (const Kind kind : kinds()) {
    const std::int64_t tokens = 203, heads = 18, dim = 72;
    const Rows rows = random_rows(tokens, dim, 1, 1), queries = random_rows(tokens, heads * dim, 1, 3);
    const Cache whole({.block_size = 16, .tokens = tokens, .kind = kind}, rows, 0, tokens, 1);
    for (const std::int64_t first : {0, 1, 62, 63, 64, 100, 190}) {
      const std::int64_t count = std::min<std::int64_t>(13, tokens - first);
      const Cache exact({.block_size = 64, .tokens = tokens, .kind = kind}, rows, 0, first + count, 9);
      const Cache::Answer together = exact.attend(*kernels_, {queries.begin() + first, queries.begin() + first + count}, 0, first + 1, 0.1f);
      for (std::int64_t t = 0; t < count; ++t) {
        const std::vector<float>& query = queries[static_cast<std::size_t>(first + t)];
        const Cache::Answer alone = whole.attend(*kernels_, {query}, 0, first + t + 1, 0.1f);
        ASSERT_EQ(alone.out[0], together.out[static_cast<std::size_t>(t)]) << first + t;
        ASSERT_TRUE(std::equal(alone.sums.begin(), alone.sums.end(), together.sums.begin() + t * heads));
        for (const std::int64_t h : {0, 1, 15, 16, 17}) {
          const Cache::Answer head = whole.attend(*kernels_, {{query.begin() + h * dim, query.begin() + (h + 1) * dim}}, 0, first + t + 1, 0.1f);
          ASSERT_TRUE(std::equal(head.out[0].begin(), head.out[0].end(), alone.out[0].begin() + h * 64)) << first + t << " head " << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace inflight::kernels
