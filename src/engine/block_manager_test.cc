#include "engine/block_manager.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace inflight::engine {
namespace {

TEST(BlockTable, takes_blocks_as_tokens_come_and_gives_them_back_when_it_dies) {
  BlockPool pool(4, 16);
  {
    BlockTable table(pool);
    EXPECT_TRUE(table.reserve(1));
    EXPECT_TRUE(table.reserve(16));
    EXPECT_EQ(table.size(), 1);
    EXPECT_EQ(table.data()[0], 0);  // from the start of the cache
    EXPECT_TRUE(table.reserve(17));
    EXPECT_EQ(table.data()[1], 1);
    EXPECT_TRUE(table.reserve(5));  // never shrinks
    EXPECT_EQ(table.size(), 2);
    EXPECT_FALSE(table.reserve(65));
    EXPECT_EQ(table.size(), 2);  // a refusal changes nothing
    EXPECT_EQ(pool.free_blocks(), 2);
    EXPECT_TRUE(table.reserve(64));
    EXPECT_EQ(pool.free_blocks(), 0);
  }
  EXPECT_EQ(pool.free_blocks(), 4);
}

TEST(BlockTable, shared_blocks_live_as_long_as_their_last_table) {
  BlockPool pool(4, 16);
  BlockTable first(pool);
  ASSERT_TRUE(first.reserve(48));
  BlockTable second = first.share(2);
  EXPECT_EQ(second.size(), 2);
  EXPECT_EQ(second.data()[1], first.data()[1]);
  EXPECT_EQ(pool.free_blocks(), 1);
  first.clear();
  EXPECT_EQ(pool.free_blocks(), 2);
  second.clear();
  second.clear();
  EXPECT_EQ(pool.free_blocks(), 4);
}

// Any sequence of operations: a block is free, or held by as many tables as list it; and what a table lists does not change under it.
TEST(BlockTable, random_operations_neither_leak_nor_double) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const std::int64_t blocks = 1 + random() % 40;
    BlockPool pool(blocks, 16);
    std::vector<BlockTable> tables;
    std::vector<std::vector<std::int32_t>> expected;
    for (int operation = 0; operation < 2000; ++operation) {
      const std::size_t at = tables.empty() ? 0 : random() % tables.size();
      switch (tables.empty() ? 0 : random() % 6) {
        case 0:
          if (tables.size() < 12) {
            tables.emplace_back(pool);
            expected.emplace_back();
          }
          break;
        case 1:
        case 2: {
          const std::int64_t tokens = random() % 400, before = tables[at].size(), missing = std::max<std::int64_t>((tokens + 15) / 16 - before, 0);
          const bool fits = missing <= pool.free_blocks();
          ASSERT_EQ(tables[at].reserve(tokens), fits);
          if (fits)
            for (std::int64_t i = before; i < before + missing; ++i) expected[at].push_back(tables[at].data()[i]);
          break;
        }
        case 3:
          tables[at].clear();
          expected[at].clear();
          break;
        case 4:
          tables.erase(tables.begin() + static_cast<std::ptrdiff_t>(at));
          expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        case 5: {
          const std::size_t to = random() % tables.size();
          const std::int64_t count = random() % 5;
          if (to == at) break;
          tables[to] = tables[at].share(count);
          expected[to].assign(expected[at].begin(), expected[at].begin() + std::min<std::ptrdiff_t>(count, static_cast<std::ptrdiff_t>(expected[at].size())));
          break;
        }
      }
      std::map<std::int32_t, int> holders;
      for (std::size_t i = 0; i < tables.size(); ++i) {
        ASSERT_EQ(std::vector<std::int32_t>(tables[i].data(), tables[i].data() + tables[i].size()), expected[i]);
        std::map<std::int32_t, int> own;
        for (const std::int32_t block : expected[i]) {
          ASSERT_TRUE(block >= 0 && block < blocks);
          ASSERT_EQ(++own[block], 1) << "twice in one table";
          ++holders[block];
        }
      }
      ASSERT_EQ(pool.free_blocks(), blocks - static_cast<std::int64_t>(holders.size()));
    }
    tables.clear();
    ASSERT_EQ(pool.free_blocks(), blocks);
    // Every block can be taken again, each once.
    BlockTable all(pool);
    ASSERT_TRUE(all.reserve(blocks * 16));
    std::vector<bool> seen(static_cast<std::size_t>(blocks));
    for (std::int64_t i = 0; i < blocks; ++i) {
      ASSERT_FALSE(seen[static_cast<std::size_t>(all.data()[i])]);
      seen[static_cast<std::size_t>(all.data()[i])] = true;
    }
  }
}

}  // namespace
}  // namespace inflight::engine
