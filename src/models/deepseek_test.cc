// What config.json of a DeepSeek model may say, through its declarations alone. Numbers are held by tests/tiny/tiny-deepseek-*.
#include <fnmatch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/registry.h"
#include "params/partition.h"

namespace inflight::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// DeepSeek-V3's own numbers, but for the number of layers.
Json v3() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}}, {"model_type", "deepseek_v3"}, {"hidden_size", 7168}, {"intermediate_size", 18432}, {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 5}, {"num_nextn_predict_layers", 1}, {"num_attention_heads", 128}, {"num_key_value_heads", 128}, {"n_shared_experts", 1}, {"n_routed_experts", 256},
          {"routed_scaling_factor", 2.5}, {"kv_lora_rank", 512}, {"q_lora_rank", 1536}, {"qk_rope_head_dim", 64}, {"v_head_dim", 128}, {"qk_nope_head_dim", 128},
          {"topk_method", "noaux_tc"}, {"n_group", 8}, {"topk_group", 4}, {"num_experts_per_tok", 8}, {"moe_layer_freq", 1}, {"first_k_dense_replace", 3}, {"norm_topk_prob", true},
          {"scoring_func", "sigmoid"}, {"vocab_size", 129280}, {"max_position_embeddings", 163840}, {"rms_norm_eps", 1e-6}, {"rope_theta", 10000},
          {"rope_scaling", {{"beta_fast", 32}, {"beta_slow", 1}, {"factor", 40}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 4096}, {"type", "yarn"}}}};
}

// DeepSeek-V2-Lite's own.
Json v2_lite() {
  return {{"architectures", {"DeepseekV2ForCausalLM"}}, {"model_type", "deepseek_v2"}, {"hidden_size", 2048}, {"intermediate_size", 10944}, {"moe_intermediate_size", 1408},
          {"num_hidden_layers", 27}, {"num_attention_heads", 16}, {"num_key_value_heads", 16}, {"n_shared_experts", 2}, {"n_routed_experts", 64}, {"routed_scaling_factor", 1.0},
          {"kv_lora_rank", 512}, {"q_lora_rank", nullptr}, {"qk_rope_head_dim", 64}, {"v_head_dim", 128}, {"qk_nope_head_dim", 128}, {"topk_method", "greedy"}, {"n_group", 1},
          {"topk_group", 1}, {"num_experts_per_tok", 6}, {"moe_layer_freq", 1}, {"first_k_dense_replace", 1}, {"norm_topk_prob", false}, {"scoring_func", "softmax"},
          {"vocab_size", 102400}, {"max_position_embeddings", 163840}, {"rms_norm_eps", 1e-6}, {"rope_theta", 10000},
          {"rope_scaling", {{"beta_fast", 32}, {"beta_slow", 1}, {"factor", 40}, {"mscale", 0.707}, {"mscale_all_dim", 0.707}, {"original_max_position_embeddings", 4096}, {"type", "yarn"}}}};
}

struct Declared {
  params::ParamTable table;
  Result<std::unique_ptr<Model>> model = nullptr;
  const params::ParamSpec* row(std::string_view name) const {
    const auto found = std::ranges::find_if(table.rows, [&](const params::ParamSpec& row) { return row.full_name() == name; });
    return found == table.rows.end() ? nullptr : &*found;
  }
};

std::unique_ptr<Declared> declare(const Json& config) {
  auto declared = std::make_unique<Declared>();
  declared->model = build_model({&config, "config.json"}, {&declared->table, nullptr, [](std::string_view name) { return !name.ends_with("gate_up_proj") && !name.ends_with("experts.down_proj") && !name.ends_with("bias") && !name.ends_with("k_b_proj.weight"); }});
  return declared;
}

std::string refusal(const Json& config) {
  const auto declared = declare(config);
  EXPECT_FALSE(declared->model);
  return declared->model ? std::string() : declared->model.error().message;
}

Json with(Json config, std::string_view key, Json value) {
  config[std::string(key)] = std::move(value);
  return config;
}

TEST(DeepSeek, v3_has_the_shapes_of_the_published_checkpoint) {
  const auto declared = declare(v3());
  ASSERT_TRUE(declared->model) << declared->model.error().message;
  const ModelInfo& info = (*declared->model)->info();
  EXPECT_EQ(info.kv_shape(64, DType::kBF16).token_bytes(), 5 * 576 * 2);
  EXPECT_EQ(info.max_positions, 163840);
  const std::string attention = "model.layers.4.self_attn.";
  const auto expect = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    const params::ParamSpec* row = declared->row(name);
    ASSERT_TRUE(row) << name;
    EXPECT_EQ(row->outputs(), outputs) << name;
    EXPECT_EQ(row->inputs, inputs) << name;
  };
  expect(attention + "qkv_a_proj.weight", 1536 + 576, 7168);
  expect(attention + "q_b_proj.weight", 128 * 192, 1536);
  expect(attention + "kv_b_proj.weight", 128 * 256, 512);
  expect(attention + "k_b_proj.weight", 128 * 512, 128);
  expect(attention + "v_b_proj.weight", 128 * 128, 512);
  expect(attention + "o_proj.weight", 7168, 128 * 128);
  expect(attention + "q_a_layernorm.weight", 1536, 1);
  expect(attention + "kv_a_layernorm.weight", 512, 1);
  expect("model.layers.2.mlp.up_gate_proj.weight", 2 * 18432, 7168);
  expect("model.layers.3.mlp.gate.weight", 256, 7168);
  expect("model.layers.3.mlp.experts.255.down_proj.weight", 7168, 2048);
  expect("model.layers.3.mlp.shared_experts.up_gate_proj.weight", 2 * 2048, 7168);
  EXPECT_FALSE(declared->row("model.layers.3.mlp.up_gate_proj.weight"));
  EXPECT_FALSE(declared->row("model.layers.2.mlp.gate.weight"));
}

TEST(DeepSeek, v2_lite_has_one_matrix_for_q) {
  const auto declared = declare(v2_lite());
  ASSERT_TRUE(declared->model) << declared->model.error().message;
  EXPECT_EQ((*declared->model)->info().kv_shape(64, DType::kBF16).token_bytes(), 27 * 576 * 2);
  ASSERT_TRUE(declared->row("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_EQ(declared->row("model.layers.0.self_attn.q_proj.weight")->outputs(), 16 * 192);
  EXPECT_EQ(declared->row("model.layers.0.self_attn.kv_a_proj_with_mqa.weight")->outputs(), 576);
  EXPECT_FALSE(declared->row("model.layers.0.self_attn.q_a_layernorm.weight"));
  EXPECT_TRUE(declared->row("model.layers.0.mlp.up_gate_proj.weight"));
  EXPECT_EQ(declared->row("model.layers.1.mlp.shared_experts.up_gate_proj.weight")->outputs(), 2 * 2 * 1408);
}

TEST(DeepSeek, shared_experts_may_be_absent_and_layers_may_alternate) {
  for (const Json& none : {Json(nullptr), Json(0)}) {
    const auto declared = declare(with(v2_lite(), "n_shared_experts", none));
    ASSERT_TRUE(declared->model) << declared->model.error().message;
    EXPECT_FALSE(declared->row("model.layers.1.mlp.shared_experts.up_gate_proj.weight"));
  }
  const auto alternating = declare(with(v2_lite(), "moe_layer_freq", 2));
  for (int layer = 0; layer < 27; ++layer)
    EXPECT_EQ(alternating->row(fmt::format("model.layers.{}.mlp.gate.weight", layer)) != nullptr, layer >= 1 && layer % 2 == 0) << layer;
  const auto dense = declare(with(v2_lite(), "n_routed_experts", nullptr));
  ASSERT_TRUE(dense->model) << dense->model.error().message;
  EXPECT_TRUE(dense->row("model.layers.26.mlp.up_gate_proj.weight"));
}

TEST(DeepSeek, layers_that_predict_further_tokens_are_ignored_and_others_are_not) {
  const auto ignored = [](const Declared& declared, const char* tensor) {
    return std::ranges::any_of(declared.table.ignored, [&](const params::IgnoreRule& rule) { return ::fnmatch(rule.pattern.c_str(), tensor, 0) == 0; });
  };
  const auto declared = declare(v3());
  EXPECT_TRUE(ignored(*declared, "model.layers.5.self_attn.q_a_proj.weight"));
  EXPECT_TRUE(ignored(*declared, "model.layers.5.shared_head.head.weight"));
  EXPECT_FALSE(ignored(*declared, "model.layers.6.eh_proj.weight"));
  EXPECT_FALSE(ignored(*declared, "model.layers.4.extra.weight"));
  EXPECT_FALSE(ignored(*declared, "model.layers.50.eh_proj.weight"));
  EXPECT_FALSE(ignored(*declare(with(v3(), "num_nextn_predict_layers", 0)), "model.layers.5.eh_proj.weight"));
  EXPECT_TRUE(ignored(*declare(with(v3(), "num_nextn_predict_layers", 2)), "model.layers.6.eh_proj.weight"));
}

TEST(DeepSeek, what_is_not_known_is_refused_by_name) {
  EXPECT_THAT(refusal(with(v3(), "scoring_func", "sigmoidal")), AllOf(HasSubstr("scoring_func \"sigmoidal\""), HasSubstr("Did you mean \"sigmoid\"?")));
  EXPECT_THAT(refusal(with(v3(), "topk_method", "random")), AllOf(HasSubstr("topk_method \"random\""), HasSubstr("noaux_tc")));
  EXPECT_THAT(refusal(with(v3(), "kv_lora_rank", 500)), HasSubstr("kv_lora_rank 500"));
  EXPECT_THAT(refusal(with(v3(), "kv_lora_rank", nullptr)), HasSubstr("kv_lora_rank"));
  EXPECT_THAT(refusal(with(v3(), "qk_rope_head_dim", 63)), HasSubstr("63"));
  EXPECT_THAT(refusal(with(v3(), "n_group", 7)), HasSubstr("7 groups"));
  EXPECT_THAT(refusal(with(v3(), "topk_group", 9)), HasSubstr("9"));
  EXPECT_THAT(refusal(with(v3(), "n_shared_experts", -1)), HasSubstr("n_shared_experts"));
  EXPECT_THAT(refusal(with(v3(), "num_experts_per_tok", 257)), HasSubstr("257"));
}

// Ranks cut heads: q, kv_b and what derives from it by outputs, o by inputs. The latent forms are whole on each.
TEST(DeepSeek, tensor_parallel_ranks_hold_whole_heads) {
  const auto declared = declare(v3());
  const params::Topology second{.tp_rank = 1, .tp_size = 4};
  const auto rows = [&](std::string_view name) {
    const params::Slice slice = params::slice_of(*declared->row(name), 0, second).value();
    return std::pair(slice.row_begin, slice.row_end);
  };
  EXPECT_EQ(rows("model.layers.3.self_attn.q_b_proj.weight"), std::pair(32 * std::int64_t{192}, 64 * std::int64_t{192}));
  EXPECT_EQ(rows("model.layers.3.self_attn.kv_b_proj.weight"), std::pair(32 * std::int64_t{256}, 64 * std::int64_t{256}));
  EXPECT_EQ(rows("model.layers.3.self_attn.k_b_proj.weight"), std::pair(32 * std::int64_t{512}, 64 * std::int64_t{512}));
  EXPECT_EQ(rows("model.layers.3.self_attn.v_b_proj.weight"), std::pair(32 * std::int64_t{128}, 64 * std::int64_t{128}));
  EXPECT_EQ(rows("model.layers.3.self_attn.qkv_a_proj.weight"), std::pair(std::int64_t{0}, std::int64_t{1536}));
  EXPECT_EQ(params::local_inputs(*declared->row("model.layers.3.self_attn.o_proj.weight"), second).value(), 32 * 128);
}

}  // namespace
}  // namespace inflight::models
