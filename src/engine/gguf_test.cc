// GGUF files as llama.cpp's tools make them (tests/gguf/, tools/make_gguf_fixtures.py), against transformers with the same numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/read_tensor.h"
#include "engine/open_model.h"
#include "engine/test_forward.h"

namespace inflight::engine {
namespace {

std::string fixture(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/gguf/" + name; }

class GgufModels : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(GgufModels, logits_are_those_of_the_dequantized_weights) {
  const auto& [name, road] = GetParam();
  EngineOptions options;
  options.compute = "fp32";
  options.threads = 2;
  options.load_choices = road;
  auto opened = open_model(fixture(name + ".gguf"), options);
  ASSERT_TRUE(opened) << opened.error().message;
  const auto prompt = checkpoint::read_named_i64(fixture(name + ".safetensors"), "prompt").value();
  const auto expected = checkpoint::read_named_f32(fixture(name + ".safetensors"), "logits").value();
  const std::size_t vocabulary = expected.size() / prompt.size(), stride = static_cast<std::size_t>((*opened)->model->logits_stride());
  for (const bool decode : {false, true}) {
    const auto result = forward_once(**opened, {prompt.begin(), prompt.end()}, {.decode = decode});
    double worst = 0, largest = 0;
    for (std::size_t t = 0; t < prompt.size(); ++t)
      for (std::size_t i = 0; i < vocabulary; ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(result.logits[t * stride + i]) - static_cast<double>(expected[t * vocabulary + i])));
        largest = std::max(largest, std::abs(static_cast<double>(expected[t * vocabulary + i])));
      }
    EXPECT_LT(worst, 2e-5 * largest) << "largest logit " << largest << ", decode " << decode;
  }
}

const std::string kModels[] = {"llama", "llama-yarn", "qwen2", "qwen3", "qwen3-moe", "qwen2-moe", "glm4-moe", "ernie4_5", "ernie4_5-moe", "deepseek-v3", "deepseek-v2-lite", "qwen3-q4_k_m",
                               "qwen3-q2_k", "qwen3-q5_k_m"};

INSTANTIATE_TEST_SUITE_P(files, GgufModels, testing::Combine(testing::ValuesIn(kModels), testing::Values(std::string("default_v1"), std::string("default"))), [](const auto& p) {
  std::string name = std::get<0>(p.param) + "_" + std::get<1>(p.param);
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace inflight::engine
