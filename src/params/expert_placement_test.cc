#include "params/expert_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/json.h"
#include "params/partition.h"

namespace inflight::params {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExpertLoads skewed_loads(std::mt19937& random, std::int64_t layers, std::int64_t experts) {
  ExpertLoads loads(static_cast<std::size_t>(layers));
  for (auto& layer : loads)
    for (std::int64_t e = 0; e < experts; ++e) layer.push_back(static_cast<std::int64_t>(10 / (0.001 + std::uniform_real_distribution<>()(random))));
  return loads;
}

TEST(ExpertPlacement, is_what_the_published_algorithm_says) {
  const Json cases = read_json_file(std::string(INFLIGHT_TEST_DATA) + "/eplb/golden.json").value();
  ASSERT_GE(cases.size(), 15u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const Json& golden = cases[i];
    const auto loads = golden["loads"].get<ExpertLoads>();
    const Balancing balancing{.ranks = golden["ranks"], .nodes = golden["nodes"], .redundant = golden["redundant"], .groups = golden["groups"],
                              .strategy = parse_balance_strategy(golden["strategy"].get<std::string>()).value()};
    const auto placement = balance_experts(loads, balancing);
    ASSERT_TRUE(placement) << placement.error().message;
    EXPECT_EQ(placement->logical(), golden["physical_to_logical"].get<std::vector<std::vector<std::int32_t>>>());
    const auto counts = golden["counts"].get<std::vector<std::vector<std::size_t>>>();
    const auto physical = golden["logical_to_physical"].get<std::vector<std::vector<std::vector<std::int32_t>>>>();
    for (std::size_t layer = 0; layer < loads.size(); ++layer)
      for (std::size_t e = 0; e < loads[layer].size(); ++e) {
        const auto replicas = placement->replicas(static_cast<std::int64_t>(layer), static_cast<std::int64_t>(e));
        ASSERT_EQ(replicas.size(), counts[layer][e]);
        EXPECT_TRUE(std::ranges::equal(replicas, std::span(physical[layer][e]).first(counts[layer][e])));
      }
    const auto ranks = rank_loads(*placement, loads), expected = golden["rank_loads"].get<std::vector<std::vector<double>>>();
    ASSERT_EQ(ranks.size(), expected.size());
    for (std::size_t layer = 0; layer < ranks.size(); ++layer)
      for (std::size_t r = 0; r < expected[layer].size(); ++r) EXPECT_NEAR(ranks[layer][r], expected[layer][r], 1e-9 * expected[layer][r]);
  }
}

TEST(ExpertPlacement, keeps_each_expert_fills_each_rank_and_lightens_the_heaviest) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int nodes = 1 << (round % 3), ranks = nodes * (1 + round % 4);
    const std::int64_t experts = ranks * (2 + round % 5), redundant = ranks * (1 + round % 2);
    const ExpertLoads loads = skewed_loads(random, 2, experts);
    const ExpertPlacement placement = balance_experts(loads, {.ranks = ranks, .nodes = nodes, .redundant = redundant}).value();
    EXPECT_EQ(placement.physical(), experts + redundant);
    const auto after = rank_loads(placement, loads), before = rank_loads(ExpertPlacement::initial(2, experts, ranks, 0).value(), loads);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      std::vector<int> seen(static_cast<std::size_t>(experts)), held(static_cast<std::size_t>(ranks));
      for (std::int64_t e = 0; e < experts; ++e)
        for (const std::int32_t physical : placement.replicas(layer, e)) {
          ++seen[static_cast<std::size_t>(e)];
          ++held[static_cast<std::size_t>(placement.rank_of(physical))];
          EXPECT_EQ(placement.logical()[static_cast<std::size_t>(layer)][static_cast<std::size_t>(physical)], e);
          EXPECT_TRUE(placement.on_rank(layer, e, placement.rank_of(physical)));
        }
      EXPECT_GE(std::ranges::min(seen), 1);
      EXPECT_THAT(held, ::testing::Each((experts + redundant) / ranks));
      const auto at = static_cast<std::size_t>(layer);
      EXPECT_NEAR(std::accumulate(after[at].begin(), after[at].end(), 0.0), std::accumulate(before[at].begin(), before[at].end(), 0.0), 1e-6);
      if (nodes == 1) EXPECT_LE(std::ranges::max(after[at]), std::ranges::max(before[at]) * (1 + 1e-12));  // a node keeps what its groups weigh, so over nodes this is no theorem
    }
    EXPECT_EQ(placement, balance_experts(loads, {.ranks = ranks, .nodes = nodes, .redundant = redundant}).value());
  }
}

TEST(ExpertPlacement, of_equals_the_first_is_taken) {
  const std::vector<double> equal(6, 2.0);
  const Packed packed = balanced_packing(equal, 3);
  EXPECT_THAT(packed.pack, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(packed.place, ElementsAre(0, 0, 0, 1, 1, 1));
  std::vector<std::int32_t> counts;
  EXPECT_THAT(replicate_experts(equal, 8, counts), ElementsAre(0, 1, 2, 3, 4, 5, 0, 1));
  EXPECT_THAT(counts, ElementsAre(2, 2, 1, 1, 1, 1));
}

TEST(ExpertPlacement, a_full_pack_takes_no_more_however_light) {
  const Packed packed = balanced_packing(std::vector<double>{10, 1, 1, 1}, 2);
  EXPECT_THAT(packed.pack, ElementsAre(0, 1, 1, 0));
}

TEST(ExpertPlacement, begins_with_each_expert_once_and_replicas_of_the_first) {
  const ExpertPlacement placement = ExpertPlacement::initial(2, 6, 4, 2).value();
  EXPECT_THAT(placement.logical()[1], ElementsAre(0, 1, 2, 3, 4, 5, 0, 1));
  EXPECT_THAT(std::vector(placement.replicas(1, 1).begin(), placement.replicas(1, 1).end()), ElementsAre(1, 7));
  EXPECT_TRUE(placement.on_rank(1, 1, 3));
  EXPECT_FALSE(placement.on_rank(1, 2, 3));
}

TEST(ExpertPlacement, says_which_rank_holds_a_row) {
  const auto placement = std::make_shared<const ExpertPlacement>(ExpertPlacement::create(3, 2, {{0, 1, 2, 0}, {2, 1, 1, 0}}).value());
  for (std::int64_t layer = 0; layer < 2; ++layer)
    for (std::int64_t e = 0; e < 3; ++e)
      for (int rank = 0; rank < 2; ++rank) {
        const ParamSpec row{.name = "up_gate_proj", .split = Split::kOutputs, .pieces = {{"gate_proj", 6}, {"up_proj", 6}}, .inputs = 5, .expert = e, .experts = 3, .layer = layer};
        const Topology topology{.tp_rank = rank, .tp_size = 2, .ep_rank = rank, .ep_size = 2, .placement = placement};
        const bool held = placement->on_rank(layer, e, rank);
        EXPECT_EQ(is_local(row, topology).value(), held);
        EXPECT_EQ(local_outputs(row, topology).value(), held ? 12 : 0);  // whole
        EXPECT_TRUE(check_ranks({.rows = {row}, .ignored = {}}, topology));  // three experts do not divide, but places of four do
      }
}

TEST(ExpertPlacement, measures_the_heaviest_rank_against_the_mean) {
  const ExpertPlacement placement = ExpertPlacement::initial(2, 4, 2, 0).value();
  const auto ranks = rank_loads(placement, {{3, 3, 1, 1}, {0, 0, 4, 0}});
  EXPECT_DOUBLE_EQ(imbalance(ranks[0]), 1.5);
  EXPECT_DOUBLE_EQ(imbalance(ranks[1]), 2);
  EXPECT_DOUBLE_EQ(imbalance(ranks), (6.0 + 4) / (4 + 2));
  EXPECT_DOUBLE_EQ(imbalance(std::vector<double>{0, 0}), 1);
}

TEST(ExpertPlacement, refuses_what_does_not_divide_or_is_no_placement) {
  const ExpertLoads loads = {{1, 2, 3, 4, 5, 6}};
  const auto message = [](const auto& result) { return result ? std::string("no error") : result.error().message; };
  EXPECT_THAT(message(balance_experts(loads, {.ranks = 4})), HasSubstr("6 experts, replicas included, do not divide over 4 ranks"));
  EXPECT_THAT(message(balance_experts(loads, {.ranks = 4, .nodes = 3, .redundant = 2})), HasSubstr("4 ranks do not divide over 3 nodes"));
  EXPECT_THAT(message(balance_experts(loads, {.ranks = 4, .redundant = 2, .groups = 4})), HasSubstr("6 experts do not divide over 4 groups"));
  EXPECT_THAT(message(balance_experts(loads, {.ranks = 4, .nodes = 4, .redundant = 2, .strategy = BalanceStrategy::kHierarchical})), HasSubstr("6 groups of experts do not divide over 4 nodes"));
  EXPECT_THAT(message(balance_experts(loads, {.ranks = 2, .nodes = 2, .redundant = 2, .strategy = BalanceStrategy::kIntraNode})), HasSubstr("must both divide by the 4 of a node"));
  EXPECT_THAT(message(balance_experts({{1, 2}, {1}}, {})), HasSubstr("layer 1 has loads of 1 experts"));
  EXPECT_THAT(message(balance_experts({{1, -2}}, {})), HasSubstr("layer 0 has a load of -2"));
  EXPECT_THAT(message(balance_experts({}, {})), HasSubstr("no loads"));
  EXPECT_THAT(message(ExpertPlacement::create(3, 2, {{0, 1, 1, 0}})), HasSubstr("no place for expert 2"));
  EXPECT_THAT(message(ExpertPlacement::create(2, 2, {{0, 2}})), HasSubstr("names expert 2 of 2"));
  EXPECT_THAT(message(ExpertPlacement::create(2, 2, {{0, 1}, {0, 1, 1, 0}})), HasSubstr("layer 1"));
  EXPECT_THAT(message(parse_balance_strategy("balance_intra_nod")), HasSubstr("Did you mean \"balance_intra_node\""));
}

}  // namespace
}  // namespace inflight::params
