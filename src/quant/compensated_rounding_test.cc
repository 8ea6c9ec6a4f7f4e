// Second moments against plain sums; compensated rounding against its rule in FP64, and against rounding to the nearest where that can be told.
#include "quant/compensated_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/e4m3.h"
#include "kernels/dispatch.h"

namespace inflight::quant {
namespace {

const Kernels& kernels_in_use() { return **kernels::choose(); }

// Tokens whose inputs depend on one another: a few directions, and noise of each input's own size.
std::vector<float> correlated(std::int64_t tokens, std::int64_t inputs, unsigned seed) {
  constexpr std::int64_t kDirections = 5;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> directions(static_cast<std::size_t>(kDirections * inputs)), x(static_cast<std::size_t>(tokens * inputs)), sizes(static_cast<std::size_t>(inputs));
  for (float& d : directions) d = normal(random);
  for (float& s : sizes) s = 0.1f * std::exp(normal(random));
  for (std::int64_t t = 0; t < tokens; ++t) {
    float parts[kDirections];
    for (float& part : parts) part = normal(random);
    for (std::int64_t k = 0; k < inputs; ++k) {
      float& value = x[static_cast<std::size_t>(t * inputs + k)];
      value = sizes[static_cast<std::size_t>(k)] * normal(random);
      for (std::int64_t d = 0; d < kDirections; ++d) value += parts[d] * directions[static_cast<std::size_t>(d * inputs + k)];
    }
  }
  return x;
}

std::vector<float> random_weights(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& w : weights) w = normal(random);
  return weights;
}

SecondMoments moments_of(const std::vector<float>& x, std::int64_t inputs, int threads = 2, std::int64_t most = kMostMomentInputs) {
  ThreadPool pool(threads);
  SecondMoments moments = SecondMoments::create(inputs, most).value();
  const auto tokens = static_cast<std::int64_t>(x.size()) / inputs, half = tokens / 2;
  moments.add(x.data(), inputs, half, kernels_in_use(), pool);
  moments.add(x.data() + half * inputs, inputs, tokens - half, kernels_in_use(), pool);
  return moments;
}

struct Rounded {
  std::vector<std::uint8_t> codes;
  std::vector<float> numbers;
};

Rounded round_with(const SecondMoments& moments, const std::vector<float>& w, const std::vector<float>& scales, float bound, float damping = kMomentDamping, int threads = 2) {
  ThreadPool pool(threads);
  const RoundingFactor factor = RoundingFactor::create(moments, damping, kernels_in_use(), pool).value();
  Rounded result{std::vector<std::uint8_t>(w.size()), std::vector<float>(w.size())};
  const std::int64_t inputs = moments.inputs();
  for (std::size_t row = 0; row < scales.size(); row += RoundingFactor::kRows) {
    const auto count = static_cast<int>(std::min<std::size_t>(RoundingFactor::kRows, scales.size() - row));
    const auto at = static_cast<std::ptrdiff_t>(row) * inputs;
    factor.round(w.data() + at, count, scales.data() + row, bound, kernels_in_use(), result.codes.data() + at);
  }
  for (std::size_t i = 0; i < w.size(); ++i) result.numbers[i] = e4m3_to_float(result.codes[i]) * scales[i / static_cast<std::size_t>(inputs)];
  return result;
}

std::vector<float> nearest(const std::vector<float>& w, const std::vector<float>& scales, float bound) {
  std::vector<float> numbers(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float scale = scales[i / (w.size() / scales.size())];
    numbers[i] = e4m3_to_float(float_to_e4m3(w[i] / scale, bound)) * scale;
  }
  return numbers;
}

// The rule in FP64, as GPTQ has it: inputs by falling moment; the error of each, over the diagonal of the inverse's factor, goes to those that are left.
std::vector<float> by_the_rule(const std::vector<double>& h, const std::vector<float>& w, float scale, float bound, double damping) {
  const std::size_t n = w.size();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return std::pair(h[a * n + a], a) > std::pair(h[b * n + b], b); });
  std::vector<std::vector<double>> inverse(n, std::vector<double>(n)), a(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      a[i][j] = h[order[i] * n + order[j]] * (i == j ? 1 + damping : 1);
      inverse[i][j] = i == j;
    }
  for (std::size_t p = 0; p < n; ++p) {  // Gauss-Jordan
    const double pivot = a[p][p];
    for (std::size_t j = 0; j < n; ++j) a[p][j] /= pivot, inverse[p][j] /= pivot;
    for (std::size_t i = 0; i < n; ++i) {
      if (i == p) continue;
      const double factor = a[i][p];
      for (std::size_t j = 0; j < n; ++j) a[i][j] -= factor * a[p][j], inverse[i][j] -= factor * inverse[p][j];
    }
  }
  std::vector<double> left(n);
  for (std::size_t i = 0; i < n; ++i) left[i] = static_cast<double>(w[order[i]]);
  std::vector<float> result(n);
  for (std::size_t i = 0; i < n; ++i) {
    const float q = e4m3_to_float(float_to_e4m3(static_cast<float>(left[i]) / scale, bound)) * scale;
    result[order[i]] = q;
    const double error = (left[i] - static_cast<double>(q)) / inverse[i][i];
    for (std::size_t j = i; j < n; ++j) left[j] -= error * inverse[i][j];
    // What is left of the inverse, without input i.
    for (std::size_t r = i + 1; r < n; ++r)
      for (std::size_t c = i + 1; c < n; ++c) inverse[r][c] -= inverse[r][i] * inverse[i][c] / inverse[i][i];
  }
  return result;
}

// Symmetric, from the lower triangle.
std::vector<double> square_of(const SecondMoments& moments) {
  const auto n = static_cast<std::size_t>(moments.inputs());
  std::vector<double> h(n * n);
  for (const SecondMoments::Block& block : moments.blocks())
    for (std::int64_t i = 0; i < block.inputs; ++i)
      for (std::int64_t j = 0; j <= i; ++j) {
        const auto r = static_cast<std::size_t>(block.first + i), c = static_cast<std::size_t>(block.first + j);
        h[r * n + c] = h[c * n + r] = static_cast<double>(block.sums[i * block.inputs + j]);
      }
  return h;
}

TEST(SecondMoments, are_the_sums_over_tokens_of_mean_square_one) {
  for (const std::int64_t inputs : {1, 15, 16, 100, 203}) {
    std::vector<float> x = correlated(37, inputs, 1);
    std::fill_n(x.begin(), inputs, 0.0f);  // a token of zeros says nothing
    std::vector<double> want(static_cast<std::size_t>(inputs * inputs));
    for (std::int64_t t = 1; t < 37; ++t) {
      const float* token = x.data() + t * inputs;
      double square = 0;
      for (std::int64_t k = 0; k < inputs; ++k) square += static_cast<double>(token[k]) * static_cast<double>(token[k]);
      for (std::int64_t i = 0; i < inputs; ++i)
        for (std::int64_t j = 0; j < inputs; ++j) want[static_cast<std::size_t>(i * inputs + j)] += static_cast<double>(token[i]) * static_cast<double>(token[j]) / (square / static_cast<double>(inputs));
    }
    const SecondMoments moments = moments_of(x, inputs);
    EXPECT_EQ(moments.tokens(), 37);
    const std::vector<double> got = square_of(moments);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5 * 37 * static_cast<double>(inputs)) << inputs << " " << i;
  }
}

TEST(CompensatedRounding, is_what_the_rule_gives) {
  for (const std::int64_t inputs : {1, 16, 40, 150})
    for (const float bound : {kE4m3Max, kGaudiE4m3Max}) {
      const SecondMoments moments = moments_of(correlated(400, inputs, 2), inputs);
      const std::vector<double> h = square_of(moments);
      const std::vector<float> w = random_weights(5 * inputs, 3), scales = {2e-4f, 3e-4f, 5e-4f, 1e-3f, 7e-4f};
      const Rounded got = round_with(moments, w, scales, bound);
      for (std::int64_t row = 0; row < 5; ++row) {
        const std::vector<float> weights(w.begin() + row * inputs, w.begin() + (row + 1) * inputs);
        const std::vector<float> want = by_the_rule(h, weights, scales[static_cast<std::size_t>(row)], bound, static_cast<double>(kMomentDamping));
        for (std::int64_t k = 0; k < inputs; ++k) EXPECT_EQ(got.numbers[static_cast<std::size_t>(row * inputs + k)], want[static_cast<std::size_t>(k)]) << inputs << " " << bound << " " << row << " " << k;
      }
    }
}

TEST(CompensatedRounding, costs_the_outputs_less_than_rounding_to_the_nearest) {
  constexpr std::int64_t kInputs = 300, kOutputs = 40;
  const SecondMoments moments = moments_of(correlated(2000, kInputs, 4), kInputs);
  const std::vector<float> w = random_weights(kOutputs * kInputs, 5), scales(kOutputs, 0.2f / kE4m3Max);
  const std::vector<float> plain = nearest(w, scales, kE4m3Max), better = round_with(moments, w, scales, kE4m3Max).numbers;
  double all_plain = 0, all_better = 0;
  for (std::int64_t row = 0; row < kOutputs; ++row) {
    const double before = rounding_error(moments, w.data() + row * kInputs, plain.data() + row * kInputs), after = rounding_error(moments, w.data() + row * kInputs, better.data() + row * kInputs);
    EXPECT_LT(after, before) << row;
    all_plain += before;
    all_better += after;
  }
  EXPECT_LT(all_better, all_plain / 10);  // five directions hold most of what these inputs do
}

TEST(CompensatedRounding, inputs_that_do_not_act_together_are_rounded_to_the_nearest) {
  constexpr std::int64_t kInputs = 50;
  std::vector<float> x(kInputs * kInputs);
  for (std::int64_t k = 0; k < kInputs; ++k) x[static_cast<std::size_t>(k * kInputs + k)] = k % 7 == 0 ? 0 : static_cast<float>(1 + k);  // one input a token, some never
  const std::vector<float> w = random_weights(3 * kInputs, 6), scales = {1e-4f, 2e-4f, 3e-4f};
  EXPECT_EQ(round_with(moments_of(x, kInputs), w, scales, kGaudiE4m3Max).numbers, nearest(w, scales, kGaudiE4m3Max));
}

TEST(CompensatedRounding, fewer_tokens_than_inputs_and_one_token_give_no_worse_sums) {
  constexpr std::int64_t kInputs = 200;
  for (const std::int64_t tokens : {2, 20}) {
    const SecondMoments moments = moments_of(correlated(tokens, kInputs, 7), kInputs);
    const std::vector<float> w = random_weights(kInputs, 8), scales = {0.2f / kE4m3Max};
    const std::vector<float> plain = nearest(w, scales, kE4m3Max), better = round_with(moments, w, scales, kE4m3Max).numbers;
    EXPECT_LT(rounding_error(moments, w.data(), better.data()), rounding_error(moments, w.data(), plain.data()));
  }
}

TEST(CompensatedRounding, a_scale_of_zero_gives_zeros_and_codes_end_at_the_bound) {
  constexpr std::int64_t kInputs = 64;
  const SecondMoments moments = moments_of(correlated(100, kInputs, 9), kInputs);
  const Rounded got = round_with(moments, random_weights(2 * kInputs, 10), {0.0f, 1e-5f}, kGaudiE4m3Max);
  for (std::int64_t k = 0; k < kInputs; ++k) {
    EXPECT_EQ(got.codes[static_cast<std::size_t>(k)], 0);
    EXPECT_LE(std::abs(got.numbers[static_cast<std::size_t>(kInputs + k)]), 240 * 1e-5f);
  }
}

// Blocks are as matrices of their own.
TEST(CompensatedRounding, blocks_of_inputs_are_rounded_by_themselves) {
  constexpr std::int64_t kInputs = 96;
  const std::vector<float> x = correlated(500, kInputs, 11);
  const SecondMoments whole = moments_of(x, kInputs), blocks = moments_of(x, kInputs, 2, 40);
  ASSERT_EQ(blocks.blocks().size(), 3u);
  EXPECT_EQ(blocks.blocks()[1].first, 32);
  EXPECT_EQ(blocks.blocks()[2].inputs, 32);
  const std::vector<float> w = random_weights(kInputs, 12), scales = {2e-4f};
  const std::vector<float> together = round_with(whole, w, scales, kE4m3Max).numbers, apart = round_with(blocks, w, scales, kE4m3Max).numbers;
  const std::vector<double> h = square_of(blocks);
  for (std::int64_t first = 0; first < kInputs; first += 32) {
    std::vector<double> part;
    for (std::int64_t i = first; i < first + 32; ++i) part.insert(part.end(), h.begin() + i * kInputs + first, h.begin() + i * kInputs + first + 32);
    const std::vector<float> want = by_the_rule(part, {w.begin() + first, w.begin() + first + 32}, 2e-4f, kE4m3Max, static_cast<double>(kMomentDamping));
    EXPECT_TRUE(std::equal(want.begin(), want.end(), apart.begin() + first)) << first;
  }
  EXPECT_LT(rounding_error(whole, w.data(), together.data()), rounding_error(whole, w.data(), apart.data()));
}

TEST(CompensatedRounding, codes_do_not_depend_on_threads) {
  constexpr std::int64_t kInputs = 333;
  const std::vector<float> x = correlated(600, kInputs, 13), w = random_weights(33 * kInputs, 14), scales(33, 3e-4f);
  EXPECT_EQ(round_with(moments_of(x, kInputs, 1), w, scales, kE4m3Max, kMomentDamping, 1).codes, round_with(moments_of(x, kInputs, 3), w, scales, kE4m3Max, kMomentDamping, 3).codes);
}

}  // namespace
}  // namespace inflight::quant
