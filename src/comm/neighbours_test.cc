#include "comm/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

#include "comm/agree.h"
#include "comm/threads.h"

namespace inflight::comm {
namespace {

template <class Body>
void on_ranks(int n, const Body& body) {
  auto ranks = thread_ranks(n);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
}

TEST(Neighbours, a_host_has_a_name_of_36_characters) { EXPECT_THAT(boot_id(), testing::MatchesRegex("[0-9a-f-]{36}")); }

TEST(Neighbours, ranks_that_may_use_other_cpus_do_not_share_them) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one CPU";
  on_ranks(4, [&](Comm& rank) {
    if (rank.rank() == 2) {  // of a thread, for a while
      cpu_set_t one;
      CPU_ZERO(&one);
      for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
      ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    }
    const Neighbours found = neighbours(rank);
    EXPECT_EQ(found.ranks, 4);
    EXPECT_EQ(found.same_cpus, rank.rank() == 2 ? 1 : 3);
    EXPECT_EQ(found.before, (std::vector{0, 1, 0, 2})[static_cast<std::size_t>(rank.rank())]);
    EXPECT_EQ(sum_on_host(rank, 10 + rank.rank()), 46);
  });
}

TEST(FirstError, is_that_of_the_lowest_rank_and_the_group_goes_on) {
  on_ranks(4, [&](Comm& rank) {
    EXPECT_FALSE(first_error(rank, std::nullopt));
    const auto found = first_error(rank, rank.rank() >= 2 ? std::optional(Error{Code::kCorrupt, "of " + std::to_string(rank.rank()) + std::string(2000, '.')}) : std::nullopt);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, 2);
    EXPECT_EQ(found->error.code, Code::kCorrupt);
    EXPECT_THAT(found->error.message, testing::StartsWith("of 2..."));
    EXPECT_EQ(found->error.message.size(), 1023u);
    EXPECT_FALSE(rank.error());
  });
}

}  // namespace
}  // namespace inflight::comm
