#include "loader/read_ahead.h"

#include <cstring>

#include <gtest/gtest.h>

namespace inflight::loader {
namespace {

Result<void> write_index(std::size_t item, std::byte* buffer) {
  std::memcpy(buffer, &item, sizeof item);
  return {};
}

TEST(ReadAhead, gives_every_item_once_and_in_order_to_one_taker) {
  auto ahead = ReadAhead::create(100, 3, 4096, write_index);
  ASSERT_TRUE(ahead);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE((*ahead)->add_reader());
  for (std::size_t i = 0; i < 100; ++i) {
    auto item = (*ahead)->take();
    ASSERT_TRUE(item && item->read);
    std::size_t held;
    std::memcpy(&held, item->data, sizeof held);
    EXPECT_EQ(item->index, i);
    EXPECT_EQ(held, i);
    (*ahead)->release(i);
  }
  EXPECT_FALSE((*ahead)->take());
}

TEST(ReadAhead, several_takers_share_the_items_and_no_buffer_changes_while_it_is_held) {
  auto ahead = ReadAhead::create(500, 5, 4096, write_index);
  ASSERT_TRUE(ahead);
  std::vector<int> times(500, 0);
  std::vector<std::thread> takers;
  for (int t = 0; t < 3; ++t)
    takers.emplace_back([&] {
      EXPECT_TRUE((*ahead)->add_reader());
      while (auto item = (*ahead)->take()) {
        std::this_thread::yield();
        std::size_t held;
        std::memcpy(&held, item->data, sizeof held);
        EXPECT_EQ(held, item->index);
        ++times[item->index];
        (*ahead)->release(item->index);
      }
    });
  for (std::thread& taker : takers) taker.join();
  EXPECT_EQ(times, std::vector<int>(500, 1));
}

TEST(ReadAhead, an_error_comes_out_with_its_item) {
  auto ahead = ReadAhead::create(4, 2, 4096, [](std::size_t item, std::byte*) -> Result<void> {
    if (item == 2) return fail(Code::kCorrupt, "item two");
    return {};
  });
  ASSERT_TRUE(ahead && (*ahead)->add_reader());
  for (std::size_t i = 0; i < 4; ++i) {
    auto item = (*ahead)->take();
    ASSERT_TRUE(item);
    EXPECT_EQ(item->read.has_value(), i != 2);
    (*ahead)->release(i);
  }
}

TEST(ReadAhead, stopping_wakes_readers_and_takers) {
  auto ahead = ReadAhead::create(100, 2, 4096, write_index);
  ASSERT_TRUE(ahead && (*ahead)->add_reader());
  ASSERT_TRUE((*ahead)->take());  // never released: the reader waits for its buffer
  ASSERT_TRUE((*ahead)->take());
  std::thread waiting([&] { EXPECT_FALSE((*ahead)->take()); });
  (*ahead)->stop();
  waiting.join();
}

}  // namespace
}  // namespace inflight::loader
