#include "params/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace inflight::params {
namespace {

ParamSpec qkv(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t inputs) {
  return {.scope = "model.layers.0.self_attn", .name = "qkv_proj", .split = Split::kOutputs,
          .pieces = {{"q_proj", heads * head_dim}, {"k_proj", kv_heads * head_dim, true}, {"v_proj", kv_heads * head_dim, true}},
          .inputs = inputs, .unit = head_dim};
}

TEST(Partition, ranks_together_hold_every_row_and_kv_heads_are_shared_only_when_ranks_outnumber_them) {
  const ParamSpec row = qkv(8, 2, 4, 16);
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<int> q_hits(32), k_hits(8);
    for (int rank = 0; rank < ranks; ++rank) {
      const Topology topology{rank, ranks};
      std::int64_t expected_local = 0;
      for (std::size_t piece = 0; piece < 3; ++piece) {
        const Slice slice = slice_of(row, piece, topology).value();
        EXPECT_EQ(slice.local_row, expected_local);
        expected_local += slice.row_end - slice.row_begin;
        for (std::int64_t r = slice.row_begin; r < slice.row_end; ++r) {
          if (piece == 0) ++q_hits[static_cast<std::size_t>(r)];
          if (piece == 1) ++k_hits[static_cast<std::size_t>(r)];
        }
      }
      EXPECT_EQ(local_outputs(row, topology).value(), expected_local);
    }
    EXPECT_THAT(q_hits, testing::Each(1));
    EXPECT_THAT(k_hits, testing::Each(std::max(1, ranks / 2)));
  }
}

TEST(Partition, an_input_split_cuts_columns) {
  const ParamSpec row{.scope = "mlp", .name = "down_proj", .split = Split::kInputs, .pieces = {{"down_proj", 6}}, .inputs = 8};
  const Slice slice = slice_of(row, 0, {1, 2}).value();
  EXPECT_EQ(slice.row_begin, 0);
  EXPECT_EQ(slice.row_end, 6);
  EXPECT_EQ(slice.col_begin, 4);
  EXPECT_EQ(slice.col_end, 8);
}

TEST(Partition, sizes_that_do_not_divide_are_refused_with_the_numbers) {
  const auto result = slice_of(qkv(6, 2, 4, 16), 0, {0, 4});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "model.layers.0.self_attn.qkv_proj.weight: 24 outputs in units of 4 do not divide over 4 ranks; the nearest rank counts that work are 2 and 6");
  const auto heads = slice_of(qkv(12, 2, 4, 16), 1, {0, 3});
  ASSERT_FALSE(heads);
  EXPECT_EQ(heads.error().message, "model.layers.0.self_attn.qkv_proj.weight: 2 heads cannot be shared by 3 ranks; the nearest rank counts that work are 2 and 4");
}

TEST(Partition, a_vocabulary_is_cut_in_runs_of_whole_panels) {
  for (const auto& [rows, ranks, run] : {std::tuple{512, 4, 128}, {500, 4, 128}, {130, 4, 48}, {33, 8, 16}, {16, 2, 16}}) {
    const ParamSpec row{.name = "lm_head", .role = Role::kHead, .split = Split::kVocabulary, .pieces = {{"lm_head", rows}}, .inputs = 8};
    std::int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Slice slice = slice_of(row, 0, {rank, ranks}).value();
      EXPECT_EQ(slice.row_begin, next);
      EXPECT_EQ(slice.row_begin, std::min(rank * run, rows));
      EXPECT_EQ(slice.col_end, 8);
      EXPECT_EQ(local_outputs(row, {rank, ranks}).value(), slice.row_end - slice.row_begin);
      next = slice.row_end;
    }
    EXPECT_EQ(next, rows);
  }
}

TEST(Partition, rank_counts_are_those_that_suit_every_row_and_a_refusal_tells_all_rows) {
  ParamTable table;
  table.rows.push_back(qkv(12, 2, 4, 16));
  table.rows.push_back({.scope = "mlp", .name = "down_proj", .split = Split::kInputs, .pieces = {{"down_proj", 6}}, .inputs = 40});
  table.rows.push_back({.name = "lm_head", .split = Split::kVocabulary, .pieces = {{"lm_head", 7}}, .inputs = 16});
  table.rows.push_back({.scope = "e0", .name = "up", .role = Role::kExpert, .split = Split::kOutputs, .pieces = {{"up", 15}}, .inputs = 16, .expert = 0, .experts = 6});
  EXPECT_THAT(rank_counts(table, false, 16), testing::ElementsAre(1));       // 15 outputs of an expert
  EXPECT_THAT(rank_counts(table, true, 16), testing::ElementsAre(1, 2));     // whole experts: 6, 12 heads, 40 inputs
  EXPECT_TRUE(check_ranks(table, {.tp_size = 2, .ep_size = 2}));
  const auto refused = check_ranks(table, {.tp_size = 3});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::AllOf(testing::HasSubstr("cannot be cut over 3 ranks"), testing::HasSubstr("qkv_proj.weight: 2 heads cannot be shared by 3 ranks"),
                                                      testing::HasSubstr("mlp.down_proj.weight: 40 inputs in units of 1 do not divide over 3 ranks"), testing::HasSubstr("rank count that works is 1")));
  EXPECT_THAT(refused.error().message, testing::Not(testing::HasSubstr("lm_head")));
  EXPECT_THAT(check_ranks(table, {.tp_size = 4, .ep_size = 4}).error().message, testing::HasSubstr("6 experts do not divide over 4 expert-parallel ranks"));
}

// 12 query and 4 KV heads, 6 experts.
TEST(Partition, groups_of_ranks_are_refused_with_the_count_that_is_to_change) {
  ParamTable table;
  table.rows.push_back(qkv(12, 4, 4, 16));
  table.rows.push_back({.scope = "e0", .name = "up", .role = Role::kExpert, .split = Split::kOutputs, .pieces = {{"up", 15}}, .inputs = 16, .expert = 0, .experts = 6});
  const auto refusal = [&](const Topology& topology) { return check_ranks(table, topology).error().message; };
  EXPECT_THAT(refusal({.tp_size = 1, .ep_size = 4}), testing::AllOf(testing::HasSubstr("cannot be cut over 4 groups of 1 rank:\n  e0.up.weight: 6 experts do not divide over 4 expert-parallel ranks"),
                                                                   testing::HasSubstr("hint: the nearest group counts (--data-parallel-size) that work are 3 and 6")));
  EXPECT_THAT(refusal({.tp_size = 2, .ep_size = 8}), testing::HasSubstr("hint: the nearest group count (--data-parallel-size) that works is 3"));
  EXPECT_THAT(refusal({.tp_size = 3, .ep_size = 9}), testing::AllOf(testing::HasSubstr("cannot be cut over 3 groups of 3 ranks:"), testing::HasSubstr("qkv_proj.weight: 16 outputs in units of 4 do not divide over 3 ranks"),
                                                                   testing::HasSubstr("hint: the nearest rank count of a group (--tensor-parallel-size) that works is 2")));
  EXPECT_THAT(refusal({.tp_size = 3, .ep_size = 15}), testing::HasSubstr("hint: no rank count of a group (--tensor-parallel-size) works"));
}

TEST(ParamSpec, names_of_pieces_follow_the_checkpoint) {
  const ParamSpec row = qkv(8, 2, 4, 16);
  EXPECT_EQ(row.full_name(), "model.layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ(row.piece_name(1), "model.layers.0.self_attn.k_proj.weight");
  const ParamSpec head{.scope = "", .name = "lm_head", .pieces = {{"lm_head", 4}}};
  EXPECT_EQ(head.piece_name(0), "lm_head.weight");
}

}  // namespace
}  // namespace inflight::params
