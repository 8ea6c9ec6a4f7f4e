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

}  // namespace
}  // namespace inflight::cli
