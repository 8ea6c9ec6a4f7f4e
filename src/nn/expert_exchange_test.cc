#include "nn/expert_exchange.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "comm/threads.h"
#include "kernels/dispatch.h"

namespace inflight::nn {
namespace {

constexpr std::int64_t kHidden = 20, kLd = 32;

// What physical expert e gives for a token: any function of both will do.
float expert(std::int64_t e, const float* x, std::int64_t i) { return std::sin(static_cast<float>(e + 1) * x[i]) + x[(i + 1) % kHidden]; }

struct Tokens {
  std::vector<float> x, weights;
  std::vector<std::int32_t> chosen;
  std::int64_t count = 0;
};

Tokens random_tokens(std::mt19937& random, std::int64_t count, std::int64_t top_k, std::int64_t experts) {
  Tokens tokens{.count = count};
  std::uniform_real_distribution<float> real(-1, 1);
  for (std::int64_t i = 0; i < count * kHidden; ++i) tokens.x.push_back(real(random));
  for (std::int64_t t = 0; t < count; ++t) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    tokens.chosen.insert(tokens.chosen.end(), all.begin(), all.begin() + top_k);
    for (std::int64_t k = 0; k < top_k; ++k) tokens.weights.push_back(real(random));
  }
  return tokens;
}

// One rank's part: its sums, which begin with what was there, and how many pairs of token and expert it computed.
struct Outcome {
  std::vector<float> y;
  std::int64_t pairs = 0;
};

Outcome exchange(comm::Comm& ranks, Tokens tokens, std::int64_t top_k, std::int64_t rank_experts, std::int64_t most, bool gather) {
  ThreadPool pool(1);
  Runtime rt{.kernels = kernels::choose().value(), .pool = &pool, .expert_ranks = &ranks};
  Outcome outcome{.y = std::vector<float>(static_cast<std::size_t>(tokens.count * kLd), 0.5f)};
  const ExpertTokens mine{.x = tokens.x.data(), .ldx = kHidden, .tokens = tokens.count, .chosen = tokens.chosen.data(), .weights = tokens.weights.data()};
  const auto compute = [&](const ExpertTokens& theirs, float* y, std::int64_t ldy) {
    for (std::int64_t t = 0; t < theirs.tokens; ++t)
      for (std::int64_t k = 0; k < top_k; ++k) {
        const std::int32_t e = theirs.chosen[t * top_k + k];
        if (e < 0) continue;
        EXPECT_EQ(e / rank_experts, ranks.rank());
        ++outcome.pairs;
        for (std::int64_t i = 0; i < kHidden; ++i) y[t * ldy + i] += theirs.weights[t * top_k + k] * expert(e, theirs.x + t * theirs.ldx, i);
      }
  };
  const ExchangeSizes sizes{.hidden = kHidden, .top_k = top_k, .rank_experts = rank_experts};
  if (gather) exchange_all_gather(rt, sizes, mine, most, compute, outcome.y.data(), kLd);
  else exchange_all_to_all(rt, sizes, mine, compute, outcome.y.data(), kLd);
  return outcome;
}

std::vector<Outcome> run(const std::vector<Tokens>& tokens, std::int64_t top_k, std::int64_t rank_experts, bool gather) {
  const auto size = static_cast<int>(tokens.size());
  std::int64_t most = 0;
  for (const Tokens& t : tokens) most = std::max(most, t.count);
  auto ranks = comm::thread_ranks(size);
  std::vector<Outcome> outcomes(tokens.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < tokens.size(); ++r)
    threads.emplace_back([&, r] {
      outcomes[r] = exchange(*ranks[r], tokens[r], top_k, rank_experts, most, gather);
      EXPECT_FALSE(ranks[r]->error()) << ranks[r]->error()->message;
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST(ExpertExchange, both_ways_give_every_token_what_its_experts_give) {
  std::mt19937 random(3);
  for (const int size : {1, 2, 3, 4})
    for (const std::int64_t top_k : {std::int64_t{1}, std::int64_t{2}, std::int64_t{18}})
      for (const bool gather : {false, true}) {
        SCOPED_TRACE(testing::Message() << size << " ranks, top " << top_k << (gather ? ", all-gather" : ", all-to-all"));
        const std::int64_t rank_experts = top_k < 3 ? 2 : 20;
        std::vector<Tokens> tokens;
        std::int64_t pairs = 0;
        for (int r = 0; r < size; ++r) {
          tokens.push_back(random_tokens(random, std::array{37, 0, 1, 64}[static_cast<std::size_t>(r)], top_k, rank_experts * size));
          pairs += tokens.back().count * top_k;
        }
        for (std::size_t r = 0; const Outcome& outcome : run(tokens, top_k, rank_experts, gather)) {
          const Tokens& mine = tokens[r++];
          pairs -= outcome.pairs;
          for (std::int64_t t = 0; t < mine.count; ++t)
            for (std::int64_t i = 0; i < kLd; ++i) {
              double expected = 0.5;
              for (std::int64_t k = 0; k < top_k && i < kHidden; ++k)
                expected += static_cast<double>(mine.weights[static_cast<std::size_t>(t * top_k + k)]) * expert(mine.chosen[static_cast<std::size_t>(t * top_k + k)], mine.x.data() + t * kHidden, i);
              ASSERT_NEAR(outcome.y[static_cast<std::size_t>(t * kLd + i)], expected, 1e-5) << "token " << t << " of rank " << r - 1 << ", number " << i;
            }
        }
        EXPECT_EQ(pairs, 0);  // each was computed once
      }
}

TEST(ExpertExchange, tokens_go_to_all_ranks_where_they_reach_half_of_them) {
  EXPECT_TRUE(gather_pays(2, 1));
  EXPECT_TRUE(gather_pays(8, 8));
  EXPECT_FALSE(gather_pays(16, 8));
  EXPECT_FALSE(gather_pays(4, 2));
}

TEST(ExpertExchange, a_rank_that_failed_ends_it_on_all) {
  for (const bool gather : {false, true}) {
    auto ranks = comm::thread_ranks(2);
    std::mt19937 random(4);
    const Tokens tokens = random_tokens(random, 5, 2, 4);
    std::thread other([&] { ranks[1]->fail(Error{Code::kExhausted, "no memory left"}); });
    exchange(*ranks[0], tokens, 2, 2, 5, gather);
    other.join();
    ASSERT_TRUE(ranks[0]->error());
    EXPECT_NE(ranks[0]->error()->message.find("no memory left"), std::string::npos);
  }
}

}  // namespace
}  // namespace inflight::nn
