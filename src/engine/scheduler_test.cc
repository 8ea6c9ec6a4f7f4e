#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

namespace inflight::engine {
namespace {

std::unique_ptr<Sequence> sequence_of(RequestId id, BlockPool& pool, std::int64_t prompt, std::int64_t max_tokens) {
  auto sequence = std::make_unique<Sequence>(id, pool);
  sequence->tokens.assign(static_cast<std::size_t>(prompt), 1);
  sequence->prompt_tokens = prompt;
  sequence->max_tokens = prompt + max_tokens;
  return sequence;
}

// What the engine does after a forward pass. Returns the tokens computed.
std::int64_t advance(Scheduler& scheduler, const std::vector<Chunk>& chunks) {
  std::int64_t tokens = 0;
  for (const Chunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    const bool samples = chunk.samples();
    sequence.computed += chunk.count;
    tokens += chunk.count;
    if (!samples) continue;
    sequence.tokens.push_back(7);
    if (sequence.length() >= sequence.max_tokens) scheduler.remove(sequence);
  }
  return tokens;
}

std::vector<std::pair<RequestId, std::int64_t>> plain(const std::vector<Chunk>& chunks) {
  std::vector<std::pair<RequestId, std::int64_t>> result;
  for (const Chunk& chunk : chunks) result.emplace_back(chunk.sequence->id, chunk.count);
  return result;
}

using Plain = std::vector<std::pair<RequestId, std::int64_t>>;

TEST(Scheduler, decodes_first_then_chunks_in_order_of_arrival) {
  BlockPool pool(100, 16);
  Scheduler scheduler({.max_num_seqs = 3, .max_num_batched_tokens = 20}, pool);
  std::vector<std::unique_ptr<Sequence>> all;
  for (const auto& [prompt, answer] : {std::pair{5, 3}, {30, 2}, {8, 9}, {4, 4}}) all.push_back(sequence_of(static_cast<RequestId>(all.size()) + 1, pool, prompt, answer));
  for (auto& sequence : all) scheduler.add(*sequence);
  const auto step = [&] {
    const auto chunks = scheduler.schedule();
    const Plain result = plain(chunks);
    advance(scheduler, chunks);
    return result;
  };
  EXPECT_EQ(step(), (Plain{{1, 5}, {2, 15}}));          // the second prompt is cut to fit
  EXPECT_EQ(step(), (Plain{{1, 1}, {2, 15}, {3, 4}}));  // three sequences at most: the fourth waits
  EXPECT_EQ(step(), (Plain{{1, 1}, {2, 1}, {3, 4}}));   // 1 and 2 end here
  EXPECT_EQ(step(), (Plain{{3, 1}, {4, 4}}));           // the batch is refilled at once
  EXPECT_EQ(step(), (Plain{{3, 1}, {4, 1}}));
}

TEST(Scheduler, the_youngest_gives_its_blocks_and_returns_first) {
  BlockPool pool(4, 16);
  Scheduler scheduler({.max_num_seqs = 8, .max_num_batched_tokens = 100}, pool);
  const auto first = sequence_of(1, pool, 15, 40), second = sequence_of(2, pool, 15, 40), third = sequence_of(3, pool, 3, 3);
  scheduler.add(*first);
  scheduler.add(*second);
  std::vector<Plain> steps;
  while (second->stats.preemptions == 0) {
    const auto chunks = scheduler.schedule();
    steps.push_back(plain(chunks));
    advance(scheduler, chunks);
  }
  // 15 prompt tokens and 18 answers fill 2 blocks + 1: the third block of either makes 5, one too many.
  EXPECT_EQ(first->length(), 34);
  EXPECT_EQ(second->length(), 33);
  EXPECT_EQ(second->computed, 0);
  EXPECT_EQ(second->blocks.size(), 0);
  EXPECT_EQ(first->blocks.size(), 3);
  EXPECT_EQ(steps.back(), (Plain{{1, 1}}));
  scheduler.add(*third);  // would fit, but must not overtake
  while (!scheduler.empty()) {
    const auto chunks = scheduler.schedule();
    if (first->length() < first->max_tokens) {
      EXPECT_EQ(plain(chunks), (Plain{{1, 1}}));
    }
    if (second->computed == 0 && second->length() == 33 && first->length() == first->max_tokens) {
      EXPECT_EQ(plain(chunks)[0], (std::pair<RequestId, std::int64_t>{2, 33}));
    }
    advance(scheduler, chunks);
  }
  EXPECT_EQ(first->generated(), 40);
  EXPECT_EQ(second->generated(), 40);
  EXPECT_EQ(third->generated(), 3);
  EXPECT_EQ(first->stats.preemptions, 0);
  EXPECT_EQ(second->stats.preemptions, 1);
  EXPECT_EQ(pool.free_blocks(), 4);
}

TEST(Scheduler, a_prompt_takes_no_blocks_from_a_sequence_that_has_a_part_in_the_step) {
  BlockPool pool(3, 16);
  Scheduler scheduler({.max_num_seqs = 8, .max_num_batched_tokens = 64}, pool);
  const auto first = sequence_of(1, pool, 16, 30), second = sequence_of(2, pool, 16, 4);
  scheduler.add(*first);
  scheduler.add(*second);
  advance(scheduler, scheduler.schedule());
  // The first now has 24 more tokens of prompt and no room; the second decodes and takes the last block.
  first->tokens.resize(40);
  first->prompt_tokens = 40;
  first->max_tokens = 44;
  while (second->length() < second->max_tokens) {
    const auto chunks = scheduler.schedule();
    ASSERT_EQ(plain(chunks), (Plain{{2, 1}}));
    EXPECT_EQ(second->blocks.size(), 2);
    advance(scheduler, chunks);
  }
  EXPECT_EQ(second->stats.preemptions, 0);
  EXPECT_EQ(plain(scheduler.schedule()), (Plain{{1, 24}}));
}

struct Load {
  std::int64_t blocks, max_num_seqs, max_num_batched_tokens;
};

// Random loads: every step does something within its limits, every sequence ends, no block belongs to two, and recomputation stays affordable.
TEST(Scheduler, random_loads_keep_the_laws) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr std::int64_t kLongest = 160;
    const Load load{10 + static_cast<std::int64_t>(random() % 30), 1 + static_cast<std::int64_t>(random() % 12), 1 + static_cast<std::int64_t>(random() % (seed % 2 == 0 ? 10 : 200))};
    BlockPool pool(load.blocks, 16);
    Scheduler scheduler({load.max_num_seqs, load.max_num_batched_tokens}, pool);
    std::vector<std::unique_ptr<Sequence>> all;
    std::set<RequestId> cancelled;
    std::int64_t useful = 0, computed = 0, oldest_steps = 0;
    RequestId oldest = 0;
    for (int step = 0; all.size() < 60 || !scheduler.empty(); ++step) {
      ASSERT_LT(step, 60 * kLongest * 4);
      if (all.size() < 60 && random() % 3 == 0) {
        const std::int64_t prompt = 1 + random() % (kLongest - 1), answer = 1 + random() % (kLongest - prompt);
        all.push_back(sequence_of(static_cast<RequestId>(all.size()) + 1, pool, prompt, answer));
        useful += prompt + answer - 1;
        scheduler.add(*all.back());
      }
      if (!all.empty() && random() % 50 == 0) {
        const std::size_t victim = random() % all.size();
        scheduler.remove(*all[victim]);
        cancelled.insert(all[victim]->id);
        EXPECT_EQ(all[victim]->blocks.size(), 0);
      }
      if (scheduler.empty()) continue;
      const auto chunks = scheduler.schedule();
      ASSERT_FALSE(chunks.empty());
      ASSERT_LE(static_cast<std::int64_t>(chunks.size()), load.max_num_seqs);
      std::int64_t tokens = 0, held = 0;
      std::set<std::int32_t> owned;
      bool prefill = false;
      for (const Chunk& chunk : chunks) {
        const Sequence& sequence = *chunk.sequence;
        ASSERT_GE(chunk.count, 1);
        ASSERT_LE(chunk.count, sequence.remaining());
        ASSERT_GE(sequence.blocks.size() * 16, sequence.computed + chunk.count);
        tokens += chunk.count;
        ASSERT_FALSE(prefill && sequence.decoding()) << "a decode token after a chunk";
        prefill = prefill || !sequence.decoding();
      }
      ASSERT_LE(tokens, load.max_num_batched_tokens);
      for (const auto& sequence : all) {
        held += sequence->blocks.size();
        for (std::int64_t i = 0; i < sequence->blocks.size(); ++i) ASSERT_TRUE(owned.insert(sequence->blocks.data()[i]).second);
      }
      ASSERT_EQ(held + pool.free_blocks(), load.blocks);
      computed += advance(scheduler, chunks);

      // The oldest request that is not done ends within the steps that it takes alone beside the rest.
      RequestId now = 0;
      for (const auto& sequence : all)
        if (now == 0 && sequence->length() < sequence->max_tokens && !cancelled.contains(sequence->id)) now = sequence->id;
      oldest_steps = now == oldest ? oldest_steps + 1 : 0;
      oldest = now;
      ASSERT_LE(oldest_steps, 4 * kLongest);
    }
    EXPECT_EQ(pool.free_blocks(), load.blocks);
    for (const auto& sequence : all)
      if (!cancelled.contains(sequence->id)) {
        EXPECT_EQ(sequence->length(), sequence->max_tokens);
      }
    EXPECT_LE(computed, 2 * useful) << "recomputed too much";
  }
}

}  // namespace
}  // namespace inflight::engine
