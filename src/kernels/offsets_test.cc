// Sums of groups and what offsets add, on the ISA under test: against exact sums, against the entry's arithmetic bit for bit, and cut into pieces.
#include "kernels/offsets.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/dispatch.h"

namespace inflight::kernels {
namespace {

class OffsetsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    offsets = (*table)->offsets;
  }
  std::vector<float> numbers(std::int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& v : x) v = normal(rng);
    return x;
  }
  const OffsetKernels* offsets = nullptr;
  std::mt19937 rng{20261130};
};

TEST_F(OffsetsTest, group_sums_add_in_the_order_that_is_written) {
  for (const std::int64_t group : {0, 16, 32, 128, 512})
    for (const std::int64_t inputs : {1, 15, 16, 17, 31, 48, 100, 128, 129, 1000, 4099}) {
      const std::int64_t width = group == 0 ? inputs : group, groups = (inputs + width - 1) / width;
      const std::vector<float> x = numbers(inputs);  // memory ends with the last element
      std::vector<float> sums(static_cast<std::size_t>(groups + 1), -777);
      offsets->group_sums(x.data(), inputs, group, sums.data());
      EXPECT_EQ(sums.back(), -777);
      for (std::int64_t g = 0; g < groups; ++g) {
        float lanes[16] = {}, sum = 0;
        double exact = 0, size = 0;
        for (std::int64_t k = g * width; k < std::min((g + 1) * width, inputs); ++k) {
          const float value = x[static_cast<std::size_t>(k)];
          lanes[k % 16] += value;
          exact += value;
          size += std::fabs(value);
        }
        for (const float lane : lanes) sum += lane;
        ASSERT_EQ(sums[static_cast<std::size_t>(g)], sum) << group << " " << inputs << " " << g;
        ASSERT_NEAR(sum, exact, static_cast<double>(width / 16 + 17) * 0x1p-24 * size);
      }
    }
}

TEST_F(OffsetsTest, each_output_is_one_chain_of_groups_whatever_the_tokens_and_panels) {
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 9, 16})
    for (const std::int64_t panels : {1, 2, 4, 5, 9})
      for (const std::int64_t groups : {1, 2, 7, 32}) {
        const std::int64_t ldy = panels * 16 + 5;
        const std::vector<float> table = numbers(panels * groups * 16), sums = numbers(tokens * groups), before = numbers(tokens * ldy);
        std::vector<float> expected = before, y = before, pieces = before;
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t n = 0; n < panels * 16; ++n)
            for (std::int64_t g = 0; g < groups; ++g) {
              float& acc = expected[static_cast<std::size_t>(t * ldy + n)];
              acc = std::fma(table[static_cast<std::size_t>((n / 16 * groups + g) * 16 + n % 16)], sums[static_cast<std::size_t>(t * groups + g)], acc);
            }
        offsets->add_offsets(table.data(), groups, sums.data(), tokens, 0, panels, y.data(), ldy);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << tokens << " " << panels << " " << groups;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::int64_t middle = panels * (t % 4) / 3 < panels ? panels * (t % 4) / 3 : panels;
          offsets->add_offsets(table.data(), groups, sums.data() + t * groups, 1, 0, middle, pieces.data() + t * ldy, ldy);
          offsets->add_offsets(table.data(), groups, sums.data() + t * groups, 1, middle, panels, pieces.data() + t * ldy, ldy);
        }
        ASSERT_EQ(std::memcmp(pieces.data(), expected.data(), pieces.size() * 4), 0) << "alone differs from in a batch";
      }
}

}  // namespace
}  // namespace inflight::kernels
