// A model over ranks is the model of one rank: logits, greedy answers, hidden states, engines, failures. Ranks are threads here.
#include "engine/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/read_tensor.h"
#include "engine/ranks_for_test.h"
#include "engine/test_forward.h"

namespace inflight::engine {
namespace {

using checkpoint::read_named_f32;
using checkpoint::read_named_i64;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

EngineOptions options_of(int ranks, const std::string& quantization = "") {
  EngineOptions options;
  options.quantization = quantization;
  options.lm_head = "bf16";
  options.compute = "fp32";
  options.threads = 1;
  options.tensor_parallel_size = ranks;
  return options;
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float v : values) most = std::max(most, std::fabs(v));
  return most;
}

void expect_close(const float* got, std::int64_t got_stride, const std::vector<float>& want, std::int64_t columns, const std::string& what) {
  const float tolerance = 2e-4f * largest(want);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / columns, column = static_cast<std::int64_t>(i) % columns;
    const float value = got[row * got_stride + column];
    ASSERT_LE(std::fabs(value - want[i]), tolerance) << what << " at token " << row << ", column " << column << ": got " << value << ", reference " << want[i];
  }
}

TEST(Ranks, first) {
  for (const int n : {1, 2, 4}) {
  RankedModel model(n, tiny("tiny-qwen3"), options_of(n));
  ASSERT_TRUE(model.opened) << model.opened.error().message;
  const std::string golden = tiny("tiny-qwen3") + "/golden.safetensors";
  const auto prompt = read_named_i64(golden, "prompt.0").value();
  const auto result = forward_once(**model.opened, {prompt.begin(), prompt.end()}, {.hidden = true});
  const auto& info = (*model.opened)->model->info();
  expect_close(result.logits.data(), (*model.opened)->model->logits_stride(), read_named_f32(golden, "logits.0").value(), info.vocabulary, "logits");
  for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
  }
}

}  // namespace
}  // namespace inflight::engine
