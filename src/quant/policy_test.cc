#include "quant/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/integer_formats.h"

namespace inflight::quant {
namespace {

using params::ParamSpec;
using params::Role;

std::string error_of(const Result<FormatPolicy>& policy) {
  EXPECT_FALSE(policy);
  if (policy) return "";
  EXPECT_EQ(policy.error().code == Code::kInvalidArgument || policy.error().code == Code::kUnsupported, true);
  return policy.error().message;
}

TEST(Policy, mix_quant_gives_dense_and_expert_weights_their_own_formats) {
  const auto policy = make_policy(R"({"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4"})", "auto").value();
  EXPECT_EQ(policy.linear->name, "wint8");
  EXPECT_EQ(policy.expert->name, "wint4");
  EXPECT_EQ(policy.head->name, "wint8");
  const auto dense_only = make_policy(R"({"quantization": "mix_quant", "dense_quant_type": "wint8"})", "auto").value();
  EXPECT_EQ(dense_only.expert, nullptr);
  EXPECT_EQ(make_policy(R"({"quantization": "wint4-g32"})", "auto")->expert->name, "wint4-g32");
}

TEST(Policy, what_is_wrong_with_a_json_object_is_said) {
  using testing::HasSubstr;
  EXPECT_THAT(error_of(make_policy("{\"quantization\": ", "auto")), HasSubstr("--quantization"));
  EXPECT_THAT(error_of(make_policy(R"({"quantization": "mix_quant"})", "auto")), HasSubstr("dense_quant_type"));
  EXPECT_THAT(error_of(make_policy(R"({"quantization": "mix_quant", "dense_quant_typ": "wint8"})", "auto")), HasSubstr("Did you mean \"dense_quant_type\""));
  EXPECT_THAT(error_of(make_policy(R"({"quantization": "mix_quant", "moe_quant_type": "wint5"})", "auto")), testing::AllOf(HasSubstr("moe_quant_type"), HasSubstr("wint5")));
  EXPECT_THAT(error_of(make_policy(R"({"quantization": "mix_quant", "moe_quant_type": 4})", "auto")), HasSubstr("must be a string"));
  EXPECT_THAT(error_of(make_policy(R"({"quantization": "mix_quant", "moe_quant_type": "wint4", "kv_cache_quant_type": "int8"})", "auto")), HasSubstr("kv_cache_quant_type"));
  EXPECT_THAT(error_of(make_policy(R"({"quantization": "wint8", "moe_quant_type": "wint4"})", "auto")), HasSubstr("mix_quant"));
}

TEST(Policy, overrides_match_rows_and_pieces_and_the_last_wins) {
  const auto policy = make_policy("wint8", "auto", {"model.layers.*=wint4", "*.k_proj=wint4-g32", "model.layers.1.mlp.down_proj=bf16"}).value();
  const auto format = [&](ParamSpec row) { return policy.of(row) ? policy.of(row)->name : std::string_view("as stored"); };
  EXPECT_EQ(format({.scope = "model.layers.0.mlp", .name = "down_proj", .pieces = {{"down_proj", 4}}}), "wint4");
  EXPECT_EQ(format({.scope = "model.layers.1.mlp", .name = "down_proj", .pieces = {{"down_proj", 4}}}), "as stored");
  EXPECT_EQ(format({.scope = "model.layers.0.self_attn", .name = "qkv_proj", .pieces = {{"q_proj", 4}, {"k_proj", 4}}}), "wint4-g32");
  EXPECT_EQ(format({.scope = "model.layers.0", .name = "input_layernorm", .role = Role::kVector, .pieces = {{"input_layernorm", 4}}}), "as stored");
  EXPECT_EQ(format({.scope = "model.layers.0.mlp", .name = "gate", .role = Role::kRouter, .pieces = {{"gate", 4}}}), "as stored");
  EXPECT_EQ(format({.name = "lm_head", .role = Role::kHead, .pieces = {{"lm_head", 4}}}), "wint8");
  for (const std::string wrong : {"", "=wint8", "a=", "a", "a=wint5"}) EXPECT_THAT(error_of(make_policy("wint8", "auto", {wrong})), testing::HasSubstr("--quantization-override"));
}

// Layers as Qwen3 has them: bits are counted by hand in the tests below.
params::ParamTable qwen3_table(int layers, std::int64_t hidden) {
  params::ParamTable table;
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    table.rows.push_back({.scope = layer + ".self_attn", .name = "qkv_proj", .pieces = {{"q_proj", hidden}, {"k_proj", hidden / 2}, {"v_proj", hidden / 2}}, .inputs = hidden});
    table.rows.push_back({.scope = layer + ".self_attn", .name = "o_proj", .pieces = {{"o_proj", hidden}}, .inputs = hidden});
    table.rows.push_back({.scope = layer + ".mlp", .name = "up_gate_proj", .pieces = {{"up_proj", 3 * hidden}, {"gate_proj", 3 * hidden}}, .inputs = hidden});
    table.rows.push_back({.scope = layer + ".mlp", .name = "down_proj", .pieces = {{"down_proj", hidden}}, .inputs = 3 * hidden});
  }
  return table;
}

std::vector<std::string> mix_of(const params::ParamTable& table, const std::vector<std::string>& overrides = {}) {
  FormatPolicy policy = make_policy("wlut4-mix", "auto", overrides).value();
  policy.settle(table);
  std::vector<std::string> other;
  for (const ParamSpec& row : table.rows)
    if (const Format* format = policy.of(row); format->name != "wlut4") other.push_back(row.scope.substr(13) + "." + row.name + "=" + std::string(format->name));
  return other;
}

TEST(Mix, the_first_layer_is_wint8_as_far_as_bits_allow_and_middle_layers_pay) {
  using testing::ElementsAre;
  // In units of hidden^2 a layer has 2, 1, 6 and 3. wlut4 has 4.5 + 8 / K bits, wint8 8 + 32 / K, wint4-g128 4.125.
  EXPECT_THAT(mix_of(qwen3_table(28, 2048)), ElementsAre("0.self_attn.qkv_proj=wint8", "0.self_attn.o_proj=wint8", "0.mlp.down_proj=wint8"));
  // 8 layers of 256: 4.7487 bits with all three; each layer that pays takes (6 / 96) * 0.40625 = 0.02539 off: six of them.
  EXPECT_THAT(mix_of(qwen3_table(8, 256)), ElementsAre("0.self_attn.qkv_proj=wint8", "0.self_attn.o_proj=wint8", "0.mlp.down_proj=wint8", "1.mlp.up_gate_proj=wint4-g128", "2.mlp.up_gate_proj=wint4-g128",
                                                       "3.mlp.up_gate_proj=wint4-g128", "4.mlp.up_gate_proj=wint4-g128", "5.mlp.up_gate_proj=wint4-g128", "6.mlp.up_gate_proj=wint4-g128"));
  // 4 layers of 512: 4.513 + (2 / 48) * 3.547 = 4.661 with qkv_proj alone, and 0.049 off for each of two.
  EXPECT_THAT(mix_of(qwen3_table(4, 512)), ElementsAre("0.self_attn.qkv_proj=wint8", "1.mlp.up_gate_proj=wint4-g128", "2.mlp.up_gate_proj=wint4-g128"));
  EXPECT_THAT(mix_of(qwen3_table(1, 512)), ElementsAre());
}

TEST(Mix, overrides_of_the_user_win) {
  EXPECT_THAT(mix_of(qwen3_table(28, 2048), {"model.layers.0.*=wlut4", "model.layers.7.mlp.down_proj=wint8"}), testing::ElementsAre("7.mlp.down_proj=wint8"));
}

}  // namespace
}  // namespace inflight::quant
