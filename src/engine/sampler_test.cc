#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "kernels/dispatch.h"

namespace inflight::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const kernels::VectorKernels& scalar() { return *kernels::find("scalar").value()->vector; }

struct Case {
  std::vector<float> logits;
  SamplingParams params;
  TokenHistory history;
  std::vector<std::int32_t> banned;

  // One draw; `after`: the row as the sampler left it.
  std::int32_t draw(std::uint64_t seed, std::uint64_t position, std::vector<float>* after = nullptr, const kernels::VectorKernels& kernels = scalar()) const {
    std::vector<float> row = logits;
    row.resize((row.size() + 15) / 16 * 16, std::numeric_limits<float>::quiet_NaN());  // padding must not be looked at
    SampleRow sample_row;
    sample_row.logits = row.data();
    sample_row.vocabulary = static_cast<std::int64_t>(logits.size());
    sample_row.params = &params;
    sample_row.history = &history;
    sample_row.banned = banned;
    sample_row.seed = seed;
    sample_row.position = position;
    SampleScratch scratch;
    const std::int32_t token = sample(sample_row, kernels, scratch);
    row.resize(logits.size());
    if (after != nullptr) *after = row;
    return token;
  }

  std::vector<std::int64_t> count(std::int64_t draws) const {
    std::vector<std::int64_t> counts(logits.size(), 0);
    for (std::int64_t i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(draw(99, static_cast<std::uint64_t>(i)))];
    return counts;
  }

  std::set<std::int32_t> support(std::int64_t draws = 3000) const {
    std::set<std::int32_t> tokens;
    for (std::int64_t i = 0; i < draws; ++i) tokens.insert(draw(7, static_cast<std::uint64_t>(i)));
    return tokens;
  }
};

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3);  // a shift changes nothing
  return logits;
}

// Pearson's chi-square of 20000 draws against `expected` (where 0: never drawn) stays under the 99.9 % point for its degrees of freedom.
void expect_distribution(const Case& c, const std::vector<double>& expected) {
  constexpr double k999[] = {0, 10.828, 13.816, 16.266, 18.467, 20.515, 22.458, 24.322};  // chi-square tables, p = 0.001, df 1..7
  constexpr std::int64_t kDraws = 20000;
  ASSERT_NEAR(std::accumulate(expected.begin(), expected.end(), 0.0), 1, 1e-12);
  const auto counts = c.count(kDraws);
  double chi = 0;
  std::size_t cells = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double mean = expected[i] * kDraws;
    if (mean == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    ++cells;
    chi += (static_cast<double>(counts[i]) - mean) * (static_cast<double>(counts[i]) - mean) / mean;
  }
  ASSERT_GE(cells, 2u);
  EXPECT_LT(chi, k999[cells - 1]) << testing::PrintToString(counts);
}

const std::vector<double> kP{0.40, 0.25, 0.15, 0.10, 0.05, 0.03, 0.02};

TEST(Philox, gives_the_published_answers) {
  // kat_vectors of the Random123 distribution, philox4x32 with 10 rounds.
  const auto words = [](Philox counter, std::uint32_t key0, std::uint32_t key1) {
    const Philox bits = philox4x32(counter, key0, key1);
    return std::vector<std::uint32_t>(bits.word, bits.word + 4);
  };
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0), (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), (std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0), (std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, is_in_range_and_even) {
  double sum = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double u = uniform(i % 7, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 4 * std::sqrt(1.0 / 12 / 10000));
}

TEST(Sampler, draws_from_the_softmax) { expect_distribution({.logits = logs(kP), .params = {}, .history = {}, .banned = {}}, kP); }

TEST(Sampler, temperature_raises_probabilities_to_its_inverse) {
  Case c{.logits = logs({0.64, 0.16, 0.16, 0.04}), .params = {.temperature = 2}, .history = {}, .banned = {}};
  expect_distribution(c, {0.8 / 1.8, 0.4 / 1.8, 0.4 / 1.8, 0.2 / 1.8});  // square roots
  c.params.temperature = 0.5;
  const double sum = 0.64 * 0.64 + 2 * 0.16 * 0.16 + 0.04 * 0.04;
  expect_distribution(c, {0.64 * 0.64 / sum, 0.16 * 0.16 / sum, 0.16 * 0.16 / sum, 0.04 * 0.04 / sum});
}

TEST(Sampler, top_k_top_p_and_min_p_cut_in_this_order) {
  Case c{.logits = logs(kP), .params = {.top_k = 3}, .history = {}, .banned = {}};
  expect_distribution(c, {0.40 / 0.80, 0.25 / 0.80, 0.15 / 0.80, 0, 0, 0, 0});
  c.params = {.top_p = 0.79};  // 0.40 + 0.25 < 0.79 <= 0.80: the token that crosses the line stays
  expect_distribution(c, {0.40 / 0.80, 0.25 / 0.80, 0.15 / 0.80, 0, 0, 0, 0});
  c.params = {.top_p = 0.80};  // reached exactly
  expect_distribution(c, {0.40 / 0.80, 0.25 / 0.80, 0.15 / 0.80, 0, 0, 0, 0});
  c.params = {.top_p = 0.801};
  expect_distribution(c, {0.40 / 0.90, 0.25 / 0.90, 0.15 / 0.90, 0.10 / 0.90, 0, 0, 0});
  c.params = {.min_p = 0.24};  // at least 0.096
  expect_distribution(c, {0.40 / 0.90, 0.25 / 0.90, 0.15 / 0.90, 0.10 / 0.90, 0, 0, 0});
  c.params = {.min_p = 0.26};
  expect_distribution(c, {0.40 / 0.80, 0.25 / 0.80, 0.15 / 0.80, 0, 0, 0, 0});
  // top_p counts what top_k left: 0.40 and 0.25 of 0.80 are 0.8125; of all, 0.65 would need the third.
  c.params = {.top_p = 0.8, .top_k = 3};
  expect_distribution(c, {0.40 / 0.65, 0.25 / 0.65, 0, 0, 0, 0, 0});
  c.params = {.top_p = 0.95, .top_k = 5, .min_p = 0.3};  // top_k 0.95, top_p 0.9025: four; min_p 0.12: three
  expect_distribution(c, {0.40 / 0.80, 0.25 / 0.80, 0.15 / 0.80, 0, 0, 0, 0});
}

TEST(Sampler, bans_and_penalties_come_before_the_cuts) {
  Case c{.logits = logs(kP), .params = {}, .history = {}, .banned = {0, 6}};
  expect_distribution(c, {0, 0.25 / 0.58, 0.15 / 0.58, 0.10 / 0.58, 0.05 / 0.58, 0.03 / 0.58, 0});
  c.params.temperature = 1e300;  // would make every token equal, the banned ones too
  expect_distribution(c, {0, 0.2, 0.2, 0.2, 0.2, 0.2, 0});
  c = {.logits = logs({0.5, 0.3, 0.2}), .params = {.presence_penalty = 1}, .history = {}, .banned = {}};
  c.history.add_output(0);
  const double e = std::exp(-1.0), sum = 0.5 * e + 0.5;
  expect_distribution(c, {0.5 * e / sum, 0.3 / sum, 0.2 / sum});
}

TEST(Sampler, penalties_have_the_published_formulas) {
  Case c;
  c.logits = {2, -2, 1, 0.5f, -1};
  c.params.temperature = 0;
  for (const std::int32_t token : {0, 1, 0, 4}) c.history.add_prompt(token);
  for (const std::int32_t token : {1, 1, 2}) c.history.add_output(token);
  std::vector<float> after;
  c.params.repetition_penalty = 2;  // once per distinct token, prompt and output
  EXPECT_EQ(c.draw(0, 0, &after), 0);
  EXPECT_EQ(after, (std::vector<float>{1, -4, 0.5f, 0.5f, -2}));
  c.params.repetition_penalty = 1;
  c.params.presence_penalty = 0.25;  // output only
  c.draw(0, 0, &after);
  EXPECT_EQ(after, (std::vector<float>{2, -2.25f, 0.75f, 0.5f, -1}));
  c.params.presence_penalty = 0;
  c.params.frequency_penalty = -0.5;  // per occurrence
  c.draw(0, 0, &after);
  EXPECT_EQ(after, (std::vector<float>{2, -1, 1.5f, 0.5f, -1}));
  c.params = {.temperature = 0, .repetition_penalty = 4, .presence_penalty = 0.25, .frequency_penalty = 0.5};
  EXPECT_EQ(c.draw(0, 0, &after), 0);  // 0.5 twice: the lower id
  EXPECT_EQ(after, (std::vector<float>{0.5f, -9.25f, -0.5f, 0.5f, -4}));
  EXPECT_FALSE(has_penalties({}));
  EXPECT_TRUE(has_penalties({.repetition_penalty = 1.1}));
}

TEST(Sampler, is_greedy_at_the_edges) {
  const std::vector<SamplingParams> greedy{{.temperature = 0}, {.temperature = 1e-6}, {.temperature = 0, .top_p = 0.5, .top_k = 40, .min_p = 0.1}, {.top_k = 1}, {.top_p = 0},
                                           {.min_p = 1},       {.top_p = 1e-9},       {.temperature = 1e-5}};
  for (std::size_t i = 0; i < greedy.size(); ++i)
    EXPECT_EQ((Case{.logits = {1, 4, 3.5f, 2, -30}, .params = greedy[i], .history = {}, .banned = {}}.support(200)), (std::set<std::int32_t>{1})) << i;
  // Of equal logits greedy takes the first; min_p 1 keeps all of them.
  EXPECT_EQ((Case{.logits = {1, 4, 4, 0}, .params = greedy[0], .history = {}, .banned = {}}.support(200)), (std::set<std::int32_t>{1}));
  EXPECT_EQ((Case{.logits = {1, 4, 4, 0}, .params = {.min_p = 1}, .history = {}, .banned = {}}.support(200)), (std::set<std::int32_t>{1, 2}));
  EXPECT_EQ((Case{.logits = {1, 4, 4, 3.9f}, .params = {.top_k = 3, .min_p = 1}, .history = {}, .banned = {}}.support(200)), (std::set<std::int32_t>{1, 2}));
  EXPECT_EQ((Case{.logits = {5}, .params = {}, .history = {}, .banned = {}}.support(20)), (std::set<std::int32_t>{0}));
}

TEST(Sampler, extreme_values_stay_defined) {
  const std::vector<double> even(5, 0.2);
  for (const double temperature : {1e9, 1e300}) expect_distribution({.logits = {1, 4, -50, 2, 90}, .params = {.temperature = temperature}, .history = {}, .banned = {}}, even);
  // Logits at both ends of FP32, with every cut: the largest is certain.
  for (const SamplingParams& params : {SamplingParams{}, {.top_p = 0.9}, {.top_k = 3}, {.min_p = 0.1}, {.temperature = 1e-5}, {.temperature = 1e-5, .top_p = 0.99, .top_k = 4}})
    EXPECT_EQ((Case{.logits = {-3e38f, 3e38f, 0, 1, -3e38f}, .params = params, .history = {}, .banned = {}}.support(50)), (std::set<std::int32_t>{1}));
  Case c{.logits = {1e-30f, 3e38f, -3e38f, 0}, .params = {.temperature = 0, .repetition_penalty = 1e-300}, .history = {}, .banned = {}};
  for (const std::int32_t token : {0, 1, 2, 3}) c.history.add_prompt(token);
  std::vector<float> after;
  EXPECT_EQ(c.draw(1, 1, &after), 0);  // 1e270 and 3e338 are both past what is kept apart
  for (const float value : after) EXPECT_TRUE(std::isfinite(value));
  c.params.temperature = 1;
  EXPECT_EQ(c.support(500), (std::set<std::int32_t>{0, 1}));
}

TEST(Sampler, logits_that_are_not_finite_are_refused_before_bans_hide_them) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t at : {std::size_t{0}, std::size_t{600}, std::size_t{1199}}) {
      Case c{.logits = std::vector<float>(1200, 1), .params = {}, .history = {}, .banned = {static_cast<std::int32_t>(at)}};
      c.logits[at] = bad;
      EXPECT_EQ(c.draw(1, 1), -1);
      c.params = {.temperature = 0, .repetition_penalty = 1.5};
      c.history.add_output(static_cast<std::int32_t>(at));
      EXPECT_EQ(c.draw(1, 1), -1);
    }
}

// The inverse of the cumulative distribution, summed in id order in FP64, at the same random number.
TEST(Sampler, a_draw_over_a_large_vocabulary_inverts_the_cumulative_distribution) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (const std::int64_t n : {511, 512, 513, 5000}) {
    Case c;
    for (std::int64_t i = 0; i < n; ++i) c.logits.push_back(normal(random));
    const double max = *std::max_element(c.logits.begin(), c.logits.end());
    double total = 0;
    for (const float x : c.logits) total += std::exp(x - max);
    for (std::uint64_t position = 0; position < 500; ++position) {
      const double target = uniform(11, position) * total;
      double sum = 0;
      std::int32_t expected = 0;
      double margin = 0;  // how near the target is to the border of its token's share
      for (;; ++expected) {
        const double weight = std::exp(c.logits[static_cast<std::size_t>(expected)] - max);
        margin = std::min(target - sum, sum + weight - target);
        sum += weight;
        if (sum > target) break;
      }
      if (margin < 1e-6 * total) continue;  // the scaled logits are rounded to FP32
      ASSERT_EQ(c.draw(11, position), expected) << n << " " << position;
    }
  }
}

// Selection against a full sort, with many ties: nearly uniform draws reach every token kept and no other.
TEST(Sampler, top_k_keeps_exactly_k_and_lower_ids_of_equals) {
  std::mt19937 random(5);
  for (const std::int64_t n : {2, 17, 300}) {
    Case c;
    for (std::int64_t i = 0; i < n; ++i) c.logits.push_back(static_cast<float>(random() % 12));
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      const float x = c.logits[static_cast<std::size_t>(a)], y = c.logits[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    for (const std::int64_t k : {std::int64_t{2}, std::int64_t{5}, n / 2 + 1, n - 1, n, n + 5}) {
      if (k < 2) continue;
      c.params.top_k = k;
      c.params.temperature = 1e8;
      const std::set<std::int32_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(std::min(k, n)));
      EXPECT_EQ(c.support(6000), expected) << n << " " << k;
    }
  }
}

// A flat distribution over a whole vocabulary: top_p must look past its first candidates, to the end if need be.
TEST(Sampler, top_p_of_a_flat_distribution_keeps_its_share_of_the_vocabulary) {
  constexpr std::int32_t kVocabulary = 20000;
  Case c;
  for (std::int32_t i = 0; i < kVocabulary; ++i) c.logits.push_back(static_cast<float>(-i) * 1e-7f);  // descending, all but equal
  for (const double top_p : {0.01, 0.3, 0.9999}) {
    c.params.top_p = top_p;
    std::int32_t largest = 0;
    for (std::uint64_t i = 0; i < 400; ++i) largest = std::max(largest, c.draw(5, i));
    EXPECT_LE(largest, top_p * kVocabulary * 1.002);
    EXPECT_GE(largest, top_p * kVocabulary * 0.97);  // 400 draws miss the last 3 % once in 200000 times
  }
}

TEST(Sampler, every_instruction_set_draws_the_same_where_it_is_not_a_close_call) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0, 2);
  Case c;
  for (int i = 0; i < 3000; ++i) c.logits.push_back(normal(random));
  for (const SamplingParams& params : {SamplingParams{.temperature = 0}, {}, {.temperature = 0.7, .top_p = 0.9}, {.top_k = 50}, {.min_p = 0.02}}) {
    c.params = params;
    for (const std::string_view isa : kernels::available()) {
      int same = 0;
      for (std::uint64_t i = 0; i < 300; ++i) same += c.draw(3, i, nullptr, *kernels::find(isa).value()->vector) == c.draw(3, i) ? 1 : 0;
      EXPECT_GE(same, 299) << isa;
    }
  }
}

TEST(SamplingParams, ranges_are_checked_by_name) {
  const auto message = [](const SamplingParams& params) {
    const auto result = validate(params);
    return result ? std::string() : result.error().message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.temperature = 0, .top_p = 0, .top_k = -1, .min_p = 1, .presence_penalty = -2, .frequency_penalty = 2}), "");
  for (const double bad : {-0.1, nan, HUGE_VAL}) EXPECT_THAT(message({.temperature = bad}), testing::HasSubstr("temperature"));
  for (const double bad : {-0.1, 1.1, nan}) {
    EXPECT_THAT(message({.top_p = bad}), testing::HasSubstr("top_p"));
    EXPECT_THAT(message({.min_p = bad}), testing::HasSubstr("min_p"));
  }
  EXPECT_THAT(message({.top_k = -2}), testing::HasSubstr("top_k -2"));
  for (const double bad : {0.0, -1.0, nan, HUGE_VAL}) EXPECT_THAT(message({.repetition_penalty = bad}), testing::HasSubstr("repetition_penalty"));
  for (const double bad : {-2.1, 2.1, nan}) {
    EXPECT_THAT(message({.presence_penalty = bad}), testing::HasSubstr("presence_penalty"));
    EXPECT_THAT(message({.frequency_penalty = bad}), testing::HasSubstr("frequency_penalty"));
  }
  EXPECT_THAT(message({.max_tokens = -1}), testing::HasSubstr("max_tokens -1"));
  EXPECT_THAT(message({.min_tokens = -1}), testing::HasSubstr("min_tokens -1"));
  EXPECT_THAT(message({.max_tokens = 3, .min_tokens = 4}), testing::AllOf(testing::HasSubstr("min_tokens 4"), testing::HasSubstr("max_tokens 3")));
}

}  // namespace
}  // namespace inflight::engine
