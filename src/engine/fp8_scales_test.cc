// Static scales of activations out of checkpoints, under every name that producers give them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/bf16.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "loader/activation_scales.h"

namespace inflight::engine {
namespace {

using testing::HasSubstr;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

TestFolder::Tensor f32(std::vector<float> values) {
  TestFolder::Tensor tensor{DType::kF32, {static_cast<std::int64_t>(values.size())}, std::string(values.size() * 4, '\0')};
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}
TestFolder::Tensor bf16(float value) {
  TestFolder::Tensor tensor{DType::kBF16, {1}, std::string(2, '\0')};
  const std::uint16_t bits = float_to_bf16(value);
  std::memcpy(tensor.data.data(), &bits, 2);
  return tensor;
}

// What the folder's scales are; the plan must know each of their tensors.
Result<quant::ActivationScales> scales_of(const TestFolder& folder) {
  const ScratchFolder scratch;
  folder.write(scratch.at("model"));
  const ModelPlan plan = TRY(plan_model(scratch.at("model"), {}));
  const auto checkpoint = TRY(checkpoint::Checkpoint::open(scratch.at("model")));
  return loader::read_activation_scales(checkpoint, plan.table, {&checkpoint.config(), checkpoint.config_path()});
}

const std::string kLayer = "model.layers.1.";

TEST(ActivationScales, hugging_face_names_hold_multipliers_and_pieces_share_the_largest) {
  TestFolder folder = TestFolder::read(tiny("tiny-qwen3"));
  folder.tensors[kLayer + "self_attn.q_proj.input_scale"] = f32({0.25f});
  folder.tensors[kLayer + "self_attn.k_proj.input_scale"] = f32({0.5f});
  folder.tensors[kLayer + "self_attn.v_proj.input_scale"] = f32({0.125f});
  folder.tensors[kLayer + "mlp.down_proj.input_scale"] = bf16(0.75f);
  folder.tensors[kLayer + "self_attn.q_scale"] = f32({3});
  folder.tensors[kLayer + "self_attn.k_scale"] = f32({1.5f});
  folder.tensors[kLayer + "self_attn.v_scale"] = f32({2});
  folder.tensors["model.layers.2.self_attn.k_proj.output_scale"] = f32({0.3f});
  folder.tensors["model.layers.2.self_attn.v_proj.v_scale"] = f32({0.4f});
  const auto scales = scales_of(folder);
  ASSERT_TRUE(scales) << scales.error().message;
  EXPECT_THAT(scales->scale, testing::ElementsAre(testing::Pair(kLayer + "mlp.down_proj", 0.75f), testing::Pair(kLayer + "self_attn.cachek_matmul", 1.5f),
                                                  testing::Pair(kLayer + "self_attn.cachev_matmul", 2.0f), testing::Pair(kLayer + "self_attn.q_matmul", 3.0f),
                                                  testing::Pair(kLayer + "self_attn.qkv_proj", 0.5f), testing::Pair("model.layers.2.self_attn.cachek_matmul", 0.3f),
                                                  testing::Pair("model.layers.2.self_attn.cachev_matmul", 0.4f)));
  EXPECT_EQ(scales->of(kLayer + "self_attn.o_proj"), 0);
}

// PaddlePaddle: absmax in self_attn, absmax / 240 elsewhere; the bound is what the cache's type says.
TEST(ActivationScales, paddlepaddles_two_conventions_become_one) {
  for (const auto& [cache_type, bound] : {std::pair{"float8_e4m3", 240.0f}, {"float8_e4m3fn", 448.0f}}) {
    TestFolder folder = TestFolder::read(tiny("tiny-ernie4_5-moe-paddle"));
    folder.config["quantization_config"] = {{"quantization", "mix_quant"}, {"kv_cache_quant_type", cache_type}, {"is_quantized", false}};
    const std::string layer = "ernie.layers.1.";
    folder.tensors[layer + "self_attn.qkv_proj.activation_scale"] = bf16(18);
    folder.tensors[layer + "self_attn.cachek_matmul.activation_scale"] = bf16(6);
    folder.tensors[layer + "self_attn.cachev_matmul.activation_scale"] = bf16(7);
    folder.tensors[layer + "self_attn.q_matmul.activation_scale"] = bf16(9);
    folder.tensors[layer + "self_attn.s_matmul.activation_scale"] = bf16(1);
    folder.tensors[layer + "mlp.experts.up_gate_proj.activation_scale"] = bf16(0.25f);
    folder.tensors[layer + "mlp.experts.2.up_gate_proj.activation_scale"] = bf16(0.375f);
    folder.tensors[layer + "mlp.experts.7.up_gate_proj.activation_scale"] = bf16(0.3125f);
    folder.tensors[layer + "mlp.experts.3.down_proj.activation_scale"] = bf16(0.5f);
    folder.tensors[layer + "mlp.experts.6.down_proj.activation_scale"] = bf16(0.25f);
    folder.tensors[layer + "mlp.experts.4.down_proj.activation_scale"] = bf16(0);  // saw no token
    folder.tensors["ernie.layers.2.mlp.experts.4.down_proj.activation_scale"] = bf16(0);
    folder.tensors[layer + "mlp.shared_experts.down_proj.activation_scale"] = bf16(2);
    const auto scales = scales_of(folder);
    ASSERT_TRUE(scales) << scales.error().message;
    const std::map<std::string, float, std::less<>> want = {
        {layer + "self_attn.qkv_proj", 18 / bound},      {layer + "self_attn.cachek_matmul", 6 / bound}, {layer + "self_attn.cachev_matmul", 7 / bound},
        {layer + "self_attn.q_matmul", 9 / bound},       {layer + "self_attn.s_matmul", 1 / bound},      {layer + "mlp.experts.up_gate_proj", 0.375f},
        {layer + "mlp.experts.3.down_proj", 0.5f},       {layer + "mlp.experts.4.down_proj", 0.5f}, {layer + "mlp.experts.6.down_proj", 0.25f}, {layer + "mlp.shared_experts.down_proj", 2}};
    EXPECT_EQ(scales->scale, want);
  }
}

TEST(ActivationScales, of_a_plain_checkpoint_there_are_none) {
  const auto scales = scales_of(TestFolder::read(tiny("tiny-llama")));
  ASSERT_TRUE(scales);
  EXPECT_TRUE(scales->scale.empty());
}

TEST(ActivationScales, what_no_scale_can_be_is_refused_by_name) {
  TestFolder::Tensor integer{DType::kI8, {1}, "1"};
  for (const auto& tensor : {f32({-1}), f32({NAN}), f32({INFINITY}), f32(std::vector<float>(5000, 1.0f)), f32({}), integer}) {
    TestFolder folder = TestFolder::read(tiny("tiny-qwen3"));
    folder.tensors[kLayer + "self_attn.o_proj.input_scale"] = tensor;
    const auto scales = scales_of(folder);
    ASSERT_FALSE(scales);
    EXPECT_EQ(scales.error().code, Code::kCorrupt);
    EXPECT_THAT(scales.error().message, HasSubstr(kLayer + "self_attn.o_proj.input_scale"));
  }
}

TEST(ActivationScales, a_scale_of_no_known_matrix_is_still_unexpected) {
  TestFolder folder = TestFolder::read(tiny("tiny-qwen3"));
  folder.tensors[kLayer + "self_attn.w_proj.input_scale"] = f32({1});
  const auto scales = scales_of(folder);
  ASSERT_FALSE(scales);
  EXPECT_THAT(scales.error().message, HasSubstr("w_proj.input_scale"));
}

TEST(StoredActivations, are_what_config_json_says) {
  const auto of = [](const std::string& text) {
    const Json config = {{"quantization_config", Json::parse(text)}};
    return loader::stored_activations({&config, "config.json"});
  };
  const auto scheme = [&](const std::string& text) { return std::string(of(text).value().scheme); };
  EXPECT_EQ(scheme(R"({"quant_method": "fp8", "activation_scheme": "static"})"), "static");
  EXPECT_EQ(scheme(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})"), "dynamic");
  EXPECT_EQ(scheme(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})"), "none");
  EXPECT_EQ(scheme(R"({"quant_method": "fbgemm_fp8"})"), "dynamic");
  EXPECT_EQ(scheme(R"({"quant_method": "gptq", "bits": 4})"), "none");
  const std::string group = R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": )";
  EXPECT_EQ(scheme(group + "null}}}"), "none");
  EXPECT_EQ(scheme(group + R"({"num_bits": 8, "type": "float", "dynamic": false}}}})"), "static");
  EXPECT_EQ(scheme(group + R"({"num_bits": 8, "type": "float", "dynamic": true, "strategy": "token"}}}})"), "dynamic");
  EXPECT_EQ(scheme(group + R"({"num_bits": 8, "type": "int", "dynamic": true}}}})"), "none");
  EXPECT_EQ(scheme(group + R"({"num_bits": 8, "type": "float", "dynamic": true, "strategy": "group", "group_size": 128}}}})"), "none");
  EXPECT_EQ(of(R"({"quant_method": "compressed-tensors", "fp8_target": "gaudi"})")->bound, 240);
  EXPECT_EQ(of(R"({"quant_method": "compressed-tensors"})")->bound, 0);
  EXPECT_FALSE(of(R"({"quant_method": "compressed-tensors", "fp8_target": "moon"})"));
  const auto paddle = of(R"({"quantization": "mix_quant", "dense_quant_type": "tensor_wise_fp8", "moe_quant_type": "tensor_wise_fp8", "kv_cache_quant_type": "float8_e4m3", "is_quantized": true})");
  EXPECT_EQ(paddle->scheme, "static");
  EXPECT_EQ(paddle->bound, 240);
  EXPECT_EQ(scheme(R"({"quantization": "wint8"})"), "none");
}

}  // namespace
}  // namespace inflight::engine
