// One model in every form that checkpoints come in: experts apart, fused or stacked, matrices transposed, PaddlePaddle's names. All give the same weights, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/read_tensor.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "loader/export.h"

namespace inflight::engine {
namespace {

using Tensor = TestFolder::Tensor;
using namespace std::string_view_literals;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

Result<std::unique_ptr<OpenedModel>> open(const std::string& folder, const std::string& quantization, const std::string& road = "default_v1", std::vector<std::string> overrides = {}) {
  EngineOptions options;
  options.quantization = quantization;
  options.quantization_overrides = std::move(overrides);
  options.load_choices = road;
  options.threads = 2;
  return open_model(folder, options);
}

// All experts' `name` one after the other; `joined`: a second matrix below each.
Tensor stack(TestFolder& folder, const std::string& scope, std::int64_t experts, const std::string& name, const std::string& joined = "") {
  Tensor all;
  for (std::int64_t e = 0; e < experts; ++e)
    for (const std::string& piece : {name, joined}) {
      if (piece.empty()) continue;
      const auto found = folder.tensors.find(scope + "." + std::to_string(e) + "." + piece + ".weight");
      all.dtype = found->second.dtype;
      all.shape = {experts, found->second.shape[0] * (joined.empty() ? 1 : 2), found->second.shape[1]};
      all.data += found->second.data;
      folder.tensors.erase(found);
    }
  return all;
}

// The last two axes of a 16-bit tensor exchanged.
Tensor transposed(const Tensor& in) {
  Tensor out = in;
  const std::size_t rank = in.shape.size(), rows = static_cast<std::size_t>(in.shape[rank - 2]), columns = static_cast<std::size_t>(in.shape[rank - 1]);
  std::swap(out.shape[rank - 2], out.shape[rank - 1]);
  for (std::size_t matrix = 0; matrix < in.data.size() / (2 * rows * columns); ++matrix)
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) std::memcpy(&out.data[2 * (matrix * rows * columns + c * rows + r)], &in.data[2 * (matrix * rows * columns + r * columns + c)], 2);
  return out;
}

TestFolder stacked_experts(bool exchanged) {
  TestFolder folder = TestFolder::read(tiny("tiny-qwen3-moe"));
  for (const int layer : {1, 2, 3}) {
    const std::string scope = "model.layers." + std::to_string(layer) + ".mlp.experts";
    for (const auto& [name, tensor] : {std::pair{"gate_up_proj", stack(folder, scope, 8, "gate_proj", "up_proj")}, {"down_proj", stack(folder, scope, 8, "down_proj")}})
      folder.tensors[scope + "." + name] = exchanged ? transposed(tensor) : tensor;
  }
  return folder;
}

const std::vector<std::int32_t> kIds = {5, 17, 300, 4, 4, 99, 12, 7};

class Forms : public testing::TestWithParam<std::string> {};

TEST_P(Forms, stacked_experts_are_the_same_model) {
  const auto usual = open(tiny("tiny-qwen3-moe"), GetParam());
  ASSERT_TRUE(usual) << usual.error().message;
  const auto want = forward_once(**usual, kIds).logits;
  for (const bool exchanged : {false, true})
    for (const std::string road : {"default_v1", "default"}) {
      const ScratchFolder scratch;
      stacked_experts(exchanged).write(scratch.at("stacked"));
      const auto stacked = open(scratch.at("stacked"), GetParam(), road);
      ASSERT_TRUE(stacked) << stacked.error().message;
      EXPECT_EQ(forward_once(**stacked, kIds).logits, want) << exchanged << " " << road;
      EXPECT_EQ((*stacked)->report.tensors_loaded, 3 + 4 * 8 + 3 + 3 * 3);
      const auto source = checkpoint::Checkpoint::open(scratch.at("stacked")).value();
      EXPECT_EQ((*stacked)->report.source_bytes, source.data_bytes());
    }
}

TEST_P(Forms, paddlepaddles_form_is_the_same_model) {
  const auto usual = open(tiny("tiny-ernie4_5-moe"), GetParam());
  ASSERT_TRUE(usual) << usual.error().message;
  const auto want = forward_once(**usual, kIds).logits;
  for (const std::string road : {"default_v1", "default"}) {
    const auto paddle = open(tiny("tiny-ernie4_5-moe-paddle"), GetParam(), road);
    ASSERT_TRUE(paddle) << paddle.error().message;
    EXPECT_EQ(forward_once(**paddle, kIds).logits, want) << road;
  }
  // Its linears apart, with q, k, v and gate, up in tensors of their own.
  TestFolder folder = TestFolder::read(tiny("tiny-ernie4_5-moe"));
  folder.config.erase("torch_dtype");
  folder.config.erase("transformers_version");
  folder.config["dtype"] = "bfloat16";
  TestFolder apart{folder.config, {}};
  for (const auto& [name, tensor] : folder.tensors) {
    const bool linear = name.find("_proj.") != std::string::npos;
    Tensor copy = linear ? transposed(tensor) : tensor;
    if (name.ends_with("mlp.gate.weight")) {  // FP32: exchanged by hand
      std::swap(copy.shape[0], copy.shape[1]);
      for (std::int64_t e = 0; e < 8; ++e)
        for (std::int64_t k = 0; k < 64; ++k) std::memcpy(&copy.data[static_cast<std::size_t>(4 * (k * 8 + e))], &tensor.data[static_cast<std::size_t>(4 * (e * 64 + k))], 4);
    }
    apart.tensors["ernie" + name.substr(name.find('.'))] = std::move(copy);
  }
  const ScratchFolder scratch;
  apart.write(scratch.at("apart"));
  const auto separate = open(scratch.at("apart"), GetParam());
  ASSERT_TRUE(separate) << separate.error().message;
  EXPECT_EQ(forward_once(**separate, kIds).logits, want);
}

TEST_P(Forms, converting_paddlepaddles_form_gives_a_folder_that_loads_the_same) {
  const auto paddle = open(tiny("tiny-ernie4_5-moe-paddle"), GetParam());
  ASSERT_TRUE(paddle) << paddle.error().message;
  const ScratchFolder scratch;
  const auto exported = loader::export_model(tiny("tiny-ernie4_5-moe-paddle"), (*paddle)->table, (*paddle)->store, scratch.at("out"));
  ASSERT_TRUE(exported) << exported.error().message;
  const auto again = open(scratch.at("out"), "");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(forward_once(**again, kIds).logits, forward_once(**paddle, kIds).logits);
}

INSTANTIATE_TEST_SUITE_P(Formats, Forms, testing::Values("", "wint8", "wint4-g32", "wlut4"), [](const auto& test) {
  std::string name = test.param.empty() ? "as_stored" : test.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(FormsWrong, a_stack_of_another_size_is_refused_with_both_shapes) {
  TestFolder folder = stacked_experts(false);
  Tensor& stack = folder.tensors.at("model.layers.2.mlp.experts.gate_up_proj");
  stack.shape[0] = 7;
  stack.data.resize(stack.data.size() / 8 * 7);
  const ScratchFolder scratch;
  folder.write(scratch.at("short"));
  const auto opened = open(scratch.at("short"), "wint8");
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, testing::AllOf(testing::HasSubstr("[7, 128, 64]"), testing::HasSubstr("[8, 128, 64]")));
}

TEST(FormsWrong, a_nan_in_a_transposed_stack_is_found_where_it_lies) {
  TestFolder folder = stacked_experts(true);
  Tensor& stack = folder.tensors.at("model.layers.2.mlp.experts.gate_up_proj");  // [8, 64, 128]
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(&stack.data[2 * ((5 * 64 + 9) * 128 + 77)], &nan, 2);
  const ScratchFolder scratch;
  folder.write(scratch.at("nan"));
  for (const std::string quantization : {"", "wint8", "wint4-g32"}) {
    const auto opened = open(scratch.at("nan"), quantization);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, testing::AllOf(testing::HasSubstr("gate_up_proj"), testing::HasSubstr("[5, 9, 77]")));
  }
}

// Weights of experts that no token went to are not read: spoiling them changes no bit.
TEST(Experts, those_that_no_token_chose_are_not_touched) {
  for (const std::string quantization : {"", "wint8", "wint4-g32", "wlut4"}) {
    const auto opened = open(tiny("tiny-qwen3-moe"), quantization);
    ASSERT_TRUE(opened) << opened.error().message;
    OpenedModel& model = **opened;
    std::vector<std::vector<std::int64_t>> tokens(4, std::vector<std::int64_t>(8));
    model.runtime->expert_tokens = &tokens;
    const auto want = forward_once(model, {17}, {.decode = true}).logits;
    int spoiled = 0;
    for (std::size_t i = 0; i < model.table.rows.size(); ++i) {
      const params::ParamSpec& row = model.table.rows[i];
      if (row.role != params::Role::kExpert) continue;
      const auto layer = static_cast<std::size_t>(row.scope["model.layers."sv.size()] - '0');
      if (tokens[layer][static_cast<std::size_t>(row.expert)] > 0) continue;
      quant::Matrix& matrix = model.store.matrix(i);
      const quant::PackedBytes bytes = matrix.format->bytes(matrix.outputs, matrix.inputs, matrix.group);
      std::memset(matrix.codes, 0xff, static_cast<std::size_t>(bytes.codes));  // NaN in floating point
      if (bytes.scales > 0) std::memset(matrix.scales, 0xff, static_cast<std::size_t>(bytes.scales));
      ++spoiled;
    }
    EXPECT_EQ(spoiled, 3 * 6 * 2);  // 2 of 8 experts in each of 3 layers were chosen
    EXPECT_EQ(forward_once(model, {17}, {.decode = true}).logits, want) << quantization;
  }
}

TEST(MixQuant, each_part_takes_its_own_format_and_the_converted_folder_keeps_them) {
  const std::string mix = R"({"quantization":"mix_quant","dense_quant_type":"wint8","moe_quant_type":"wint4"})";
  const std::vector<std::string> overrides = {"model.layers.*.mlp.experts.3.down_proj=wint4-g32", "model.layers.0.self_attn.q_proj=bf16"};
  const auto mixed = open(tiny("tiny-ernie4_5-moe"), mix, "default_v1", overrides);
  ASSERT_TRUE(mixed) << mixed.error().message;
  for (std::size_t i = 0; i < (*mixed)->table.rows.size(); ++i) {
    const params::ParamSpec& row = (*mixed)->table.rows[i];
    if (row.role == params::Role::kVector) continue;
    std::string want = row.role == params::Role::kExpert ? row.expert == 3 && row.name == "down_proj" ? "wint4-g32" : "wint4" : row.role == params::Role::kRouter ? "f32" : "wint8";
    if (row.scope == "model.layers.0.self_attn" && row.name == "qkv_proj") want = "bf16";
    EXPECT_EQ((*mixed)->store.matrix(i).format->name, want) << row.full_name();
  }
  const ScratchFolder scratch;
  ASSERT_TRUE(loader::export_model(tiny("tiny-ernie4_5-moe"), (*mixed)->table, (*mixed)->store, scratch.at("out")));
  const auto again = open(scratch.at("out"), "");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(forward_once(**again, kIds).logits, forward_once(**mixed, kIds).logits);
  EXPECT_TRUE(open(scratch.at("out"), mix, "default_v1", overrides));
  EXPECT_FALSE(open(scratch.at("out"), mix));
  EXPECT_FALSE(open(scratch.at("out"), "wint8"));
}

TEST(MixQuant, an_override_that_fits_nothing_is_refused) {
  const auto opened = open(tiny("tiny-qwen3-moe"), "wint8", "default_v1", {"model.layers.*.mlp.down=wint4"});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
  EXPECT_THAT(opened.error().message, testing::HasSubstr("matches no weight"));
}

}  // namespace
}  // namespace inflight::engine
