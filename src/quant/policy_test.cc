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

}  // namespace
}  // namespace inflight::quant
