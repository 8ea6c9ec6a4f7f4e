// What every registered architecture must keep, tested through its declarations alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "models/registry.h"
#include "params/names.h"
#include "params/partition.h"

namespace inflight::models {
namespace {

// A config with every field that a family must have; all sizes differ, so that a mix-up shows.
Json config_of(std::string_view architecture) {
  return {{"architectures", {architecture}}, {"hidden_size", 96}, {"intermediate_size", 160}, {"num_hidden_layers", 2}, {"num_attention_heads", 8},
          {"num_key_value_heads", 4}, {"head_dim", 16}, {"vocab_size", 320}, {"max_position_embeddings", 512},
          {"num_experts", 12}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 64}, {"moe_num_experts", 12}, {"moe_k", 3}, {"moe_num_shared_experts", 2},
          {"shared_expert_intermediate_size", 112}, {"n_routed_experts", 12},
          {"q_lora_rank", 72}, {"kv_lora_rank", 32}, {"qk_nope_head_dim", 24}, {"qk_rope_head_dim", 8}, {"v_head_dim", 40}};
}

// Tensors of a checkpoint whose matrices are apart, one expert each.
bool in_usual_form(std::string_view name) {
  return !name.starts_with("ernie.") && !name.ends_with("gate_up_proj") && !name.ends_with("experts.down_proj") && !name.ends_with("_proj_bias") && !name.ends_with("k_b_proj.weight");
}

params::ParamTable declare(std::string_view architecture, bool with_biases) {
  params::ParamTable table;
  const Json config = config_of(architecture);
  const auto model = build_model({&config, "config.json"}, {&table, nullptr, [&](std::string_view name) { return in_usual_form(name) && (with_biases || !name.ends_with(".bias")); }});
  EXPECT_TRUE(model) << model.error().message;
  return table;
}

class EveryModel : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryModel, no_checkpoint_tensor_is_declared_twice) {
  for (const bool biases : {false, true}) {
    std::set<std::string> names;
    const params::ParamTable table = declare(GetParam(), biases);
    EXPECT_FALSE(table.rows.empty());
    for (const params::ParamSpec& row : table.rows)
      for (std::size_t p = 0; p < row.pieces.size(); ++p) EXPECT_TRUE(names.insert(row.piece_name(p)).second) << row.piece_name(p);
  }
}

TEST_P(EveryModel, ranks_together_hold_every_element_and_each_local_row_is_filled_once) {
  for (const bool biases : {false, true})
    for (const int ranks : {1, 2, 4}) {
      const params::ParamTable table = declare(GetParam(), biases);
      for (const params::ParamSpec& row : table.rows) {
        std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> columns_seen;  // (piece, row) -> columns over all ranks
        for (int rank = 0; rank < ranks; ++rank) {
          const params::Topology topology{rank, ranks, 0, 1};
          std::set<std::int64_t> local;
          for (std::size_t p = 0; p < row.pieces.size(); ++p) {
            const params::Slice slice = params::slice_of(row, p, topology).value();
            for (std::int64_t r = slice.row_begin; r < slice.row_end; ++r) {
              columns_seen[{p, r}] += slice.col_end - slice.col_begin;
              EXPECT_TRUE(local.insert(slice.local_row + r - slice.row_begin).second) << row.full_name();
            }
          }
          EXPECT_EQ(static_cast<std::int64_t>(local.size()), params::local_outputs(row, topology).value()) << row.full_name();
          EXPECT_EQ(*local.rbegin(), static_cast<std::int64_t>(local.size()) - 1) << row.full_name();
        }
        for (std::size_t p = 0; p < row.pieces.size(); ++p)
          for (std::int64_t r = 0; r < row.pieces[p].rows; ++r)
            EXPECT_EQ((columns_seen[{p, r}]), row.inputs * (row.split == params::Split::kReplicate ? ranks : 1)) << row.full_name() << " piece " << p << " row " << r;
      }
    }
}

TEST_P(EveryModel, expert_parallel_ranks_hold_each_expert_whole_and_once) {
  const params::ParamTable table = declare(GetParam(), false);
  for (const params::ParamSpec& row : table.rows) {
    std::int64_t held = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const params::Topology topology{rank % 2, 2, rank, 4};
      const std::int64_t outputs = params::local_outputs(row, topology).value();
      if (row.expert < 0) continue;
      EXPECT_EQ(outputs, rank == row.expert / (row.experts / 4) ? row.outputs() : 0) << row.full_name();
      EXPECT_EQ(params::local_inputs(row, topology).value(), row.inputs) << row.full_name();
      held += outputs;
    }
    if (row.expert >= 0) {
      EXPECT_EQ(held, row.outputs()) << row.full_name();
    }
  }
}

TEST_P(EveryModel, trainer_names_lead_back_to_every_parameter) {
  for (const bool biases : {false, true}) {
    const params::ParamTable table = declare(GetParam(), biases);
    const auto forward = params::names_to_trainer(table);
    const auto back = params::names_to_runtime(table);
    std::set<std::string> runtime, trainer;
    for (const auto& mapping : forward) {
      EXPECT_TRUE(runtime.insert(mapping.runtime).second) << mapping.runtime;
      EXPECT_FALSE(mapping.trainer.empty()) << mapping.runtime;
      for (const std::string& name : mapping.trainer) {
        trainer.insert(name);
        EXPECT_THAT(back.at(name), testing::Contains(mapping.runtime)) << name;
      }
    }
    EXPECT_EQ(back.size(), trainer.size());
    std::size_t rows = 0;
    for (const params::ParamSpec& row : table.rows) rows += !row.derivation;
    EXPECT_EQ(forward.size(), rows);
    // Tensors apart: each belongs to one parameter, in the order of its rows.
    for (const auto& [name, parameters] : back) EXPECT_EQ(parameters.size(), 1u) << name;
    for (const params::ParamSpec& row : table.rows)
      for (std::size_t p = 0; p < row.pieces.size() && !row.derivation; ++p)
        EXPECT_EQ(std::ranges::find(forward, row.full_name(), &params::NameMapping::runtime)->trainer.at(p), row.piece_name(p));
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryModel, testing::ValuesIn(known_architectures()), [](const auto& test) { return std::string(test.param); });

// The layers that have a router, of eight.
std::set<int> sparse_layers(std::string_view architecture, const Json& more) {
  Json config = config_of(architecture);
  config["num_hidden_layers"] = 8;
  config.update(more);
  params::ParamTable table;
  const auto model = build_model({&config, "config.json"}, {&table, nullptr, [](std::string_view name) { return in_usual_form(name) && !name.ends_with(".bias"); }});
  EXPECT_TRUE(model) << model.error().message;
  std::set<int> layers;
  for (const params::ParamSpec& row : table.rows)
    if (row.role == params::Role::kRouter) layers.insert(row.scope[std::string_view("model.layers.").size()] - '0');
  return layers;
}

// What transformers' configurations and layers say of which layers are sparse.
TEST(SparseLayers, follow_the_reference_rules) {
  using testing::ElementsAre;
  EXPECT_THAT(sparse_layers("Ernie4_5_MoeForCausalLM", {{"moe_layer_start_index", 2}, {"moe_layer_end_index", 5}}), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(sparse_layers("Ernie4_5_MoeForCausalLM", {{"moe_layer_start_index", 1}, {"moe_layer_end_index", -1}}), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(sparse_layers("Ernie4_5_MoeForCausalLM", {{"moe_layer_start_index", 2}, {"moe_layer_end_index", 6}, {"moe_layer_interval", 2}}), ElementsAre(3, 5));
  EXPECT_THAT(sparse_layers("Qwen3MoeForCausalLM", {{"decoder_sparse_step", 2}}), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(sparse_layers("Qwen3MoeForCausalLM", {{"mlp_only_layers", {0, 3, 7}}}), ElementsAre(1, 2, 4, 5, 6));
  EXPECT_THAT(sparse_layers("Glm4MoeForCausalLM", {{"first_k_dense_replace", 3}}), ElementsAre(3, 4, 5, 6, 7));
}

TEST(Windows, follow_the_reference_rule) {
  // A window is off unless use_sliding_window; then layers from max_window_layers on, or those that layer_types names.
  // What the windows do to logits is held by tests/tiny/tiny-qwen2-sliding.
  Json config = config_of("Qwen2ForCausalLM");
  config["sliding_window"] = 64;
  params::ParamTable table;
  const auto build = [&] { return build_model({&config, "config.json"}, {&table, nullptr, [](std::string_view name) { return in_usual_form(name); }}); };
  EXPECT_TRUE(build());
  config["use_sliding_window"] = true;
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(build().error().message, testing::HasSubstr("must list 2 layers"));
  config["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_THAT(build().error().message, testing::HasSubstr("chunked_attention"));
  config["sliding_window"] = 0;
  EXPECT_THAT(build().error().message, testing::HasSubstr("sliding_window 0"));
}

}  // namespace
}  // namespace inflight::models
