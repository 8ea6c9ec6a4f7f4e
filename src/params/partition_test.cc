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
  EXPECT_THAT(result.error().message, testing::AllOf(testing::HasSubstr("qkv_proj"), testing::HasSubstr("24"), testing::HasSubstr("4 ranks")));
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
