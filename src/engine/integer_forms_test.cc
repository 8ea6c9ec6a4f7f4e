// Integers of other tools in a converted folder: written and loaded again they are the same bits, and so are the logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "loader/export.h"

namespace inflight::engine {
namespace {

const std::string kFolder = std::string(INFLIGHT_TEST_DATA) + "/tiny/tiny-qwen3";

std::unique_ptr<OpenedModel> open(const std::string& folder, const std::string& compute) {
  EngineOptions options;
  options.compute = compute;
  options.threads = 2;
  auto opened = open_model(folder, options);
  if (!opened) ADD_FAILURE() << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

// The tiny model with every linear in that form.
std::unique_ptr<OpenedModel> keep_in(const std::string& form, const std::string& compute) {
  auto opened = open(kFolder, compute);
  if (!opened) return nullptr;
  std::vector<const quant::Format*> formats(opened->table.rows.size());
  for (std::size_t i = 0; i < formats.size(); ++i)
    if (opened->table.rows[i].role == params::Role::kLinear) formats[i] = quant::find_format(form).value();
  quant::ParamStore store;
  store.allocate(quant::plan_params(opened->table, {}, {}, std::vector<bool>(formats.size(), false), formats).value()).value();
  for (std::size_t i = 0; i < formats.size(); ++i) {
    if (const float* vector = opened->store.vector(i)) {
      std::memcpy(store.vector(i), vector, static_cast<std::size_t>(opened->table.rows[i].outputs()) * 4);
      continue;
    }
    quant::Matrix& to = store.matrix(i);
    const quant::Matrix& from = opened->store.matrix(i);
    quant::begin(to).value();
    std::vector<float> row(static_cast<std::size_t>(from.inputs));
    std::vector<std::uint16_t> narrow(row.size());
    for (std::int64_t r = 0; r < from.outputs; ++r) {
      from.format->dequantize(from, r, row.data());
      opened->runtime->kernels->vector->to_bf16(row.data(), from.inputs, narrow.data());
      EXPECT_EQ(to.format->store(*opened->runtime->kernels, {.data = narrow.data(), .dtype = DType::kBF16, .stride = from.inputs, .rows = 1, .inputs = from.inputs}, r, to), -1);
    }
    quant::finish(to);
  }
  opened->store = std::move(store);
  return opened;
}

class EveryIntegerForm : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(EveryIntegerForm, converted_and_loaded_again_are_identical) {
  const std::string form = std::get<0>(GetParam()), compute = std::get<1>(GetParam());
  const auto kept = keep_in(form, compute);
  ASSERT_TRUE(kept);
  const ScratchFolder scratch;
  const auto exported = loader::export_model(kFolder, kept->table, kept->store, scratch.at("out"));
  ASSERT_TRUE(exported) << exported.error().message;
  const auto again = open(scratch.at("out"), compute);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->quantization, form);
  for (std::size_t i = 0; i < kept->table.rows.size(); ++i) {
    if (kept->table.rows[i].role != params::Role::kLinear) continue;
    const quant::Matrix &a = kept->store.matrix(i), &b = again->store.matrix(i);
    ASSERT_EQ(a.format, b.format);
    ASSERT_EQ(a.bytes(), b.bytes());
    const quant::PackedBytes bytes = a.format->bytes(a.outputs, a.inputs, a.group);
    EXPECT_EQ(std::memcmp(a.codes, b.codes, static_cast<std::size_t>(bytes.codes)), 0);
    EXPECT_EQ(std::memcmp(a.view().scales, b.view().scales, static_cast<std::size_t>(a.bytes() - bytes.codes - bytes.offsets)), 0);
    EXPECT_TRUE(!a.offsets || std::memcmp(a.offsets, b.offsets, static_cast<std::size_t>(bytes.offsets)) == 0);
  }
  const std::vector<std::int32_t> ids = {5, 17, 300, 4, 4, 99, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  EXPECT_EQ(forward_once(*kept, ids).logits, forward_once(*again, ids).logits);
}

INSTANTIATE_TEST_SUITE_P(All, EveryIntegerForm, testing::Combine(testing::Values("int4", "int4-zp", "int4-g32", "int4-g64-zp", "int8", "int8-zp", "int8-g16", "int8-g128-zp"), testing::Values("auto", "fp32")),
                         [](const auto& test) {
                           std::string name = std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(IntegerForms, of_other_tools_are_the_same_after_conversion_whatever_the_order_of_their_inputs) {
  std::vector<std::string> forms = {"gptq-4bit-act-order", "awq-g32", "ct-w4a16-g-idx", "ct-fp8-channel", "paddle-wint4"};
  for (std::string& form : forms) form = "forms/" + form;
  for (const char* name : {"llama", "qwen2", "qwen3-q2_k", "qwen3-q4_k_m", "qwen3-q5_k_m", "qwen3-moe", "ernie4_5-moe", "deepseek-v2-lite"}) forms.push_back(fmt::format("gguf/{}.gguf", name));
  for (const std::string& form : forms) {
    const std::string folder = std::string(INFLIGHT_TEST_DATA) + "/" + form;
    EngineOptions options;
    options.compute = "fp32";
    const auto first = open_model(folder, options).value();
    const ScratchFolder scratch;
    ASSERT_TRUE(loader::export_model(folder, first->table, first->store, scratch.at("out"))) << form;
    auto second = open_model(scratch.at("out"), options);
    ASSERT_TRUE(second) << form << ": " << second.error().message;
    std::size_t ordered = 0;
    for (std::size_t i = 0; i < first->table.rows.size(); ++i) {
      if (first->store.vector(i)) continue;
      const quant::Matrix &a = first->store.matrix(i), &b = (*second)->store.matrix(i);
      EXPECT_EQ(a.format->name, b.format->name) << first->table.rows[i].full_name();
      ASSERT_EQ(a.order != nullptr, b.order != nullptr);
      if (a.order) EXPECT_EQ(*a.order, *b.order);
      ordered += a.order != nullptr;
    }
    if (form == "forms/gptq-4bit-act-order" || form == "forms/ct-w4a16-g-idx") EXPECT_GT(ordered, 0u) << form;
    EXPECT_EQ(forward_once(*first, {3, 1, 4, 1, 5, 9}).logits, forward_once(**second, {3, 1, 4, 1, 5, 9}).logits) << form;
  }
}

}  // namespace
}  // namespace inflight::engine
