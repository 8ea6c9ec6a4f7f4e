#include "cli/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace inflight::cli {
namespace {

TEST(Divergence, of_distributions_known_as_fractions) {
  // p = (1, 2, 5) / 8 and reference = (2, 1, 1) / 4, as logits with an offset that must not matter.
  const float logits[] = {std::log(1.0f) + 100, std::log(2.0f) + 100, std::log(5.0f) + 100};
  const float reference[] = {std::log(2.0f) - 50, std::log(1.0f) - 50, std::log(1.0f) - 50};
  const RowScore score = score_row(logits, reference, 3, 1);
  EXPECT_NEAR(score.nats, std::log(4.0), 1e-5);  // logits near 100 are known to 2^-17
  EXPECT_NEAR(score.kl, 0.5 * std::log(4.0) + 0.25 * std::log(1.0) + 0.25 * std::log(0.4), 2e-5);
  EXPECT_FALSE(score.same_top);
}

TEST(Divergence, names_both_first_choices_and_both_losses) {
  // p = (1, 2, 5) / 8, reference = (2, 1, 1) / 4.
  const float logits[] = {std::log(1.0f), std::log(2.0f), std::log(5.0f)}, reference[] = {std::log(2.0f), std::log(1.0f), std::log(1.0f)};
  const RowScore score = score_row(logits, reference, 3, 1);
  EXPECT_EQ(score.top, 2);
  EXPECT_EQ(score.reference_top, 0);
  EXPECT_NEAR(score.top_p, 5.0 / 8, 1e-6);
  EXPECT_NEAR(score.reference_top_p, 0.5, 1e-6);
  EXPECT_NEAR(score.reference_nats, std::log(4.0), 1e-6);
  EXPECT_NEAR(score.nats, std::log(4.0), 1e-6);
}

TEST(Divergence, is_zero_against_itself) {
  const float logits[] = {-3, 0.5f, 2, 2, -700};
  const RowScore score = score_row(logits, logits, 5, 4);
  EXPECT_EQ(score.kl, 0);
  EXPECT_TRUE(score.same_top);
  EXPECT_NEAR(score.nats, 700 + std::log(2 * std::exp(2) + std::exp(0.5) + std::exp(-3)), 1e-9);
}

TEST(Divergence, is_never_quietly_finite_on_bad_logits) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf}) {
    const float logits[] = {0, bad, 1};
    EXPECT_FALSE(std::isfinite(score_row(logits, nullptr, 3, 0).nats)) << bad;
    const float good[] = {0, 1, 2};
    EXPECT_FALSE(std::isfinite(score_row(good, logits, 3, 0).kl)) << bad;
  }
}

TEST(Divergence, percentile_as_numpy_computes_it) {
  EXPECT_DOUBLE_EQ(percentile({3, 1, 2, 5, 4}, 0.99), 4.96);  // np.percentile([1,2,3,4,5], 99)
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(percentile({0, 10}, 0.25), 2.5);
}

WorstToken with(double kl, std::int64_t window, std::int64_t position) { return {.window = window, .position = position, .score = {.kl = kl}}; }

TEST(Worst_tokens, are_the_largest_in_order_and_earlier_ones_of_equals) {
  WorstTokens worst(3);
  for (const WorstToken& token : {with(0.5, 0, 1), with(2, 0, 2), with(0.25, 0, 3), with(2, 0, 1), with(0, 0, 4), with(0.5, 1, 0)}) worst.add(token);
  const std::vector<WorstToken> tokens = worst.sorted();
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0].position, 1);
  EXPECT_EQ(tokens[1].position, 2);
  EXPECT_EQ(tokens[2].score.kl, 0.5);
  EXPECT_EQ(tokens[2].window, 0);
}

TEST(Worst_tokens, without_divergence_are_none) {
  WorstTokens worst(3);
  worst.add(with(0, 0, 1));
  EXPECT_TRUE(worst.sorted().empty());
}

TEST(Noise, is_ten_decades_of_the_ratio_of_sums_over_all_that_was_added) {
  const float reference[] = {3, 4}, x[] = {3, 3};
  Noise noise;
  noise.add(x, reference, 2);
  EXPECT_NEAR(noise.decibels(), 13.979400086720375, 1e-12);  // 10 log10(25 / 1)
  const float more[] = {10, 0}, near[] = {9, 1};
  noise.add(near, more, 2);
  EXPECT_NEAR(noise.decibels(), 16.197887582883939, 1e-12);  // 10 log10(125 / 3)
}

TEST(Noise, of_equal_states_is_none) {
  const float reference[] = {3, -4};
  Noise noise;
  noise.add(reference, reference, 2);
  EXPECT_EQ(noise.decibels(), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace inflight::cli
