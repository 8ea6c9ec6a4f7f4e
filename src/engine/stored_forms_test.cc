// Checkpoints that other tools quantized, against transformers in FP32 on the weights as those tools' own libraries take them apart (tools/make_form_fixtures.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/read_tensor.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string fixture(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/forms/" + name; }

Result<std::unique_ptr<OpenedModel>> open(const std::string& folder, const std::string& road = "default_v1", const std::string& quantization = "", int threads = 2) {
  EngineOptions options;
  options.quantization = quantization;
  options.compute = "fp32";
  options.threads = threads;
  options.load_choices = road;
  return open_model(folder, options);
}

std::vector<std::int32_t> prompt_of(const std::string& name) {
  const auto ids = checkpoint::read_named_i64(fixture(name) + "/golden.safetensors", "prompt.0").value();
  return {ids.begin(), ids.end()};
}

class StoredForms : public testing::TestWithParam<const char*> {};

TEST_P(StoredForms, logits_agree_with_the_reference) {
  const std::string name = GetParam();
  const auto want = checkpoint::read_named_f32(fixture(name) + "/golden.safetensors", "logits.0").value();
  const auto ids = prompt_of(name);
  float largest = 0;
  for (const float logit : want) largest = std::max(largest, std::fabs(logit));
  for (const std::string road : {"default_v1", "default"}) {
    auto opened = open(fixture(name), road);
    ASSERT_TRUE(opened) << opened.error().message;
    const std::size_t columns = want.size() / ids.size(), stride = static_cast<std::size_t>((*opened)->model->logits_stride());
    for (const bool decode : {false, true}) {
      const auto result = forward_once(**opened, ids, {.decode = decode});
      for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_LE(std::fabs(result.logits[i / columns * stride + i % columns] - want[i]), 2e-4f * largest)
            << road << (decode ? ", decode" : ", prompt") << ", token " << i / columns << ", column " << i % columns << ": " << result.logits[i / columns * stride + i % columns] << ", reference " << want[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoredForms,
                         testing::Values("gptq-4bit-sym", "gptq-4bit-asym", "gptq-4bit-act-order", "gptq-4bit-act-order-moe", "gptq-8bit-v2-channel", "awq-g32", "ct-w4a16-group", "ct-w4a16-channel-zero",
                                         "ct-w4a16-g-idx", "ct-w8a16-group-zero", "ct-w8a8-int8", "ct-fp8-tensor", "ct-fp8-channel", "ct-fp8-block", "fp8-block-qwen3-moe",
                                         "fp8-block-deepseek-v3", "paddle-wint8", "paddle-wint4", "paddle-wint4-row-major"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// What a matrix is kept as: the tool's numbers where a format of ours holds them, FP32 where none does.
TEST(StoredFormsKept, matrices_keep_the_numbers_of_their_tool) {
  const auto format_of = [](const std::string& name, const std::string& row) -> std::string {
    const auto opened = open(fixture(name)).value();
    for (std::size_t i = 0; i < opened->table.rows.size(); ++i)
      if (opened->table.rows[i].full_name() == "model.layers.0." + row + ".weight") return std::string(opened->store.matrix(i).format->name);
    return "no such row";
  };
  EXPECT_EQ(format_of("gptq-4bit-sym", "mlp.down_proj"), "int4-g32");
  EXPECT_EQ(format_of("gptq-4bit-act-order", "self_attn.qkv_proj"), "int4-g32-zp");
  EXPECT_EQ(format_of("gptq-4bit-act-order", "mlp.up_gate_proj"), "f32");  // the two matrices were sorted differently
  EXPECT_EQ(format_of("gptq-4bit-act-order-moe", "mlp.experts.3.up_gate_proj"), "int4-g32-zp");
  EXPECT_EQ(format_of("gptq-8bit-v2-channel", "mlp.down_proj"), "int8-zp");
  EXPECT_EQ(format_of("awq-g32", "self_attn.o_proj"), "int4-g32-zp");
  EXPECT_EQ(format_of("awq-g32", "mlp.down_proj"), "bf16");
  EXPECT_EQ(format_of("ct-w4a16-channel-zero", "mlp.down_proj"), "int4-zp");
  EXPECT_EQ(format_of("ct-w8a8-int8", "mlp.down_proj"), "int8");
}

// Old AutoGPTQ writes a bias of zeros beside every matrix; here beside those that have a tensor `suffix` and `part` in their names, -0 among the zeros.
int add_biases(TestFolder& folder, const std::string& suffix, const std::string& part, DType dtype, bool by_column) {
  std::map<std::string, TestFolder::Tensor> biases;
  for (const auto& [name, tensor] : folder.tensors) {
    const std::string base = name.substr(0, name.rfind('.'));
    if (name != base + "." + suffix || name.find(part) == std::string::npos || !folder.tensors.contains(base + (by_column ? ".scales" : ".weight_scale_inv"))) continue;
    const std::int64_t outputs = by_column ? tensor.shape.back() : tensor.shape.front();
    std::string zeros(static_cast<std::size_t>(outputs * dtype_bits(dtype) / 8), '\0');
    zeros.back() = '\x80';
    biases[base + ".bias"] = {dtype, {outputs}, zeros};
  }
  const int added = static_cast<int>(biases.size());
  folder.tensors.merge(biases);
  return added;
}

void expect_same_logits(const std::string& name, const TestFolder& changed, std::size_t ignored) {
  const auto ids = prompt_of(name);
  const auto plain = open(fixture(name)).value();
  const ScratchFolder scratch;
  changed.write(scratch.at("model"));
  const auto opened = open(scratch.at("model"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->report.ignored.size(), ignored);
  EXPECT_EQ(forward_once(**opened, ids, {}).logits, forward_once(*plain, ids, {}).logits);
}

// Layers that add a bias where there is one add zeros; experts have none, and what lies beside them is left out.
TEST(StoredFormsKept, biases_of_zeros_change_nothing) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    TestFolder dense = TestFolder::read(fixture("gptq-4bit-sym")), experts = TestFolder::read(fixture("fp8-block-qwen3-moe"));
    EXPECT_EQ(add_biases(dense, "qweight", "", dtype, true), 7);
    expect_same_logits("gptq-4bit-sym", dense, 0);
    EXPECT_EQ(add_biases(experts, "weight", ".experts.", dtype, false), 9);
    expect_same_logits("fp8-block-qwen3-moe", experts, 9);
  }
}

// A row of [N, G] I8 for one of [ceil(N/P), G] words: what an old release of compressed-tensors wrote beside packed codes.
TEST(StoredFormsKept, zero_points_that_were_not_packed) {
  for (const auto& [name, bits] : {std::pair{"ct-w4a16-channel-zero", 4}, {"ct-w4a16-g-idx", 4}, {"ct-w8a16-group-zero", 8}}) {
    TestFolder folder = TestFolder::read(fixture(name));
    for (auto& [tensor, zeros] : folder.tensors) {
      if (!tensor.ends_with(".weight_zero_point")) continue;
      const std::int64_t outputs = folder.tensors.at(tensor.substr(0, tensor.rfind('.')) + ".weight_packed").shape[0], groups = zeros.shape[1], per_word = 32 / bits;
      std::string bytes(static_cast<std::size_t>(outputs * groups), '\0');
      for (std::int64_t i = 0; i < outputs * groups; ++i) {
        std::uint32_t word;
        std::memcpy(&word, &zeros.data[static_cast<std::size_t>((i / groups / per_word * groups + i % groups) * 4)], 4);
        bytes[static_cast<std::size_t>(i)] = static_cast<char>(static_cast<int>(word >> (i / groups % per_word * bits) & ((1u << bits) - 1)) - (1 << (bits - 1)));
      }
      zeros = {DType::kI8, {outputs, groups}, bytes};
    }
    expect_same_logits(name, folder, 0);
  }
}

// Llama is Qwen3 but for the norms of q and k.
TEST(StoredFormsKept, biases_of_zeros_in_a_llama) {
  TestFolder folder = TestFolder::read(fixture("gptq-4bit-sym"));
  folder.config["model_type"] = "llama";
  folder.config["architectures"] = Json::array({"LlamaForCausalLM"});
  std::erase_if(folder.tensors, [](const auto& tensor) { return tensor.first.ends_with("q_norm.weight") || tensor.first.ends_with("k_norm.weight"); });
  std::vector<std::vector<float>> logits;
  for (const bool biases : {false, true}) {
    if (biases) {
      EXPECT_EQ(add_biases(folder, "qweight", "", DType::kF16, true), 7);
    }
    const ScratchFolder scratch;
    folder.write(scratch.at("model"));
    const auto opened = open(scratch.at("model"));
    ASSERT_TRUE(opened) << opened.error().message;
    logits.push_back(forward_once(**opened, prompt_of("gptq-4bit-sym"), {}).logits);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// A fixture with one thing changed must not open; `part`s are in the message.
void expect_refused(const std::string& name, const std::function<void(TestFolder&)>& change, const std::vector<std::string>& parts) {
  const ScratchFolder scratch;
  TestFolder folder = TestFolder::read(fixture(name));
  change(folder);
  folder.write(scratch.at("model"));
  const auto opened = open(scratch.at("model"));
  ASSERT_FALSE(opened) << name << " opened";
  for (const std::string& part : parts) EXPECT_THAT(opened.error().message, HasSubstr(part));
}

const std::string kDown = "model.layers.0.mlp.down_proj.";

TEST(StoredFormsRefused, a_tensor_that_is_missing) {
  for (const auto& [name, suffix] : {std::pair{"gptq-4bit-asym", "scales"}, {"gptq-4bit-asym", "qzeros"}, {"gptq-4bit-act-order", "g_idx"}, {"ct-w4a16-group", "weight_scale"},
                                     {"ct-w4a16-channel-zero", "weight_zero_point"}, {"ct-w4a16-g-idx", "weight_g_idx"}, {"ct-w8a8-int8", "weight_scale"}, {"ct-fp8-channel", "weight_scale"}})
    expect_refused(name, [&](TestFolder& folder) { folder.tensors.erase(kDown + suffix); }, {kDown + suffix, "missing"});
  expect_refused("awq-g32", [](TestFolder& folder) { folder.tensors.erase("model.layers.0.mlp.up_proj.qzeros"); }, {"mlp.up_proj.qzeros"});
  expect_refused("fp8-block-qwen3-moe", [](TestFolder& folder) { folder.tensors.erase("model.layers.0.self_attn.q_proj.weight_scale_inv"); }, {"q_proj.weight_scale_inv"});
}

TEST(StoredFormsRefused, settings_that_do_not_suit_the_tensors) {
  const auto set = [](const std::string& key, Json value) {
    return [=](TestFolder& folder) { folder.config["quantization_config"][key] = value; };
  };
  expect_refused("gptq-4bit-sym", set("group_size", 16), {"q_proj.qzeros", "shape [1, 8]", "the model needs [2, 8]"});
  expect_refused("gptq-4bit-sym", set("bits", 8), {"qweight"});
  expect_refused("gptq-4bit-sym", set("checkpoint_format", "gptq_v2"), {"zero point 7", "sym"});
  expect_refused("gptq-4bit-asym", set("sym", true), {"zero point"});
  expect_refused("gptq-8bit-v2-channel", set("lm_head", false), {"lm_head.qweight", "not converted"});
  expect_refused("fp8-block-qwen3-moe", set("weight_block_size", Json::array({64, 64})), {"weight_scale_inv"});
  expect_refused("awq-g32", set("version", "gemv"), {"gemv"});
}

TEST(StoredFormsRefused, numbers_that_cannot_be) {
  expect_refused("gptq-4bit-act-order", [](TestFolder& folder) { folder.tensors[kDown + "g_idx"].data[4] = 9; }, {kDown + "g_idx", "group 9"});
  expect_refused("ct-w4a16-group", [](TestFolder& folder) { std::memcpy(&folder.tensors[kDown + "weight_scale"].data[0], "\x80\xff", 2); }, {"mlp.down_proj", "compressed-tensors", "row 0", "scale"});
  expect_refused("ct-fp8-channel", [](TestFolder& folder) { folder.tensors[kDown + "weight"].data[54] = 0x7f; }, {"mlp.down_proj", "row 1, column 2", "not a number"});
}

TEST(StoredFormsRefused, a_bias_that_the_model_does_not_have) {
  const std::string name = "fp8-block-qwen3-moe", expert = "model.layers.0.mlp.experts.1.down_proj.";
  const auto with = [&](std::vector<std::int64_t> shape, std::size_t bytes, std::size_t at, char value) {
    return [=](TestFolder& folder) {
      add_biases(folder, "weight", ".experts.", DType::kBF16, false);
      std::string data(bytes, '\0');
      data[at] = value;
      folder.tensors[expert + "bias"] = {DType::kBF16, shape, data};
    };
  };
  expect_refused(name, with({136}, 272, 10, 1), {expert + "bias", "number 5 is not 0"});
  expect_refused(name, with({136}, 272, 271, 0x3f), {expert + "bias", "number 135 is not 0"});
  expect_refused(name, with({135}, 270, 0, 0), {expert + "bias", "belong to no parameter"});
  expect_refused(name, [](TestFolder& folder) { folder.tensors["model.layers.0.mlp.bias"] = {DType::kF16, {136}, std::string(272, '\0')}; }, {"mlp.bias", "belong to no parameter"});
}

TEST(StoredFormsRefused, row_major_codes_of_another_shape) {
  expect_refused("paddle-wint4", [](TestFolder& folder) { folder.config["quantization_config"]["is_permuted"] = false; }, {"qkv_proj", "is_permuted", "PaddlePaddle"});
}

TEST(StoredFormsRefused, codes_without_a_config) {
  expect_refused("gptq-4bit-sym", [](TestFolder& folder) { folder.config.erase("quantization_config"); }, {"missing"});
  expect_refused("ct-fp8-channel", [](TestFolder& folder) { folder.config.erase("quantization_config"); }, {"F8_E4M3"});
}

}  // namespace
}  // namespace inflight::engine
