// Whole models against the reference: logits, hidden states and greedy continuations of transformers (tests/tiny/*/golden.safetensors).
#include "engine/open_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "checkpoint/read_tensor.h"
#include "engine/compare_for_test.h"
#include "engine/test_forward.h"

namespace inflight::engine {
namespace {

namespace fs = std::filesystem;
using checkpoint::read_named_f32;
using checkpoint::read_named_i64;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

std::unique_ptr<OpenedModel> open_fp32(const std::string& folder, const std::string& quantization, int threads = 2, const std::string& road = "default_v1") {
  EngineOptions options;
  options.quantization = quantization == "fp8-block" ? "block_wise_fp8" : quantization.starts_with("fp8-") ? "tensor_wise_fp8" : quantization;
  if (quantization == "fp8-gaudi") options.fp8_target = "gaudi";
  options.lm_head = "bf16";  // the goldens were made with an unquantized head
  options.compute = "fp32";
  options.threads = threads;
  options.load_choices = road;
  auto opened = open_model(folder, options);
  if (!opened) ADD_FAILURE() << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

struct Case {
  std::string folder;
  std::string quantization;  // "": as stored; golden names "fp8-ocp", "fp8-gaudi", "fp8-block" stand for the two FP8 formats
};

class Golden : public testing::TestWithParam<Case> {};

TEST_P(Golden, logits_and_every_hidden_state_agree_with_the_reference) {
  const auto& [name, quantization] = GetParam();
  const auto opened = open_fp32(tiny(name), quantization);
  ASSERT_TRUE(opened);
  const std::string golden = tiny(name) + "/golden.safetensors";
  const auto& info = opened->model->info();
  int prompts = 0;
  for (int i = 0; i < 8; ++i, ++prompts) {
    const auto prompt = read_named_i64(golden, fmt::format("prompt.{}", i));
    if (!prompt) break;
    const std::vector<std::int32_t> ids(prompt->begin(), prompt->end());
    const auto result = forward_once(*opened, ids, {.hidden = quantization.empty()});
    if (quantization.empty()) {
      const auto hidden = read_named_f32(golden, fmt::format("hidden.{}", i)).value();
      const std::size_t per_layer = ids.size() * static_cast<std::size_t>(info.hidden);
      ASSERT_EQ(hidden.size(), per_layer * static_cast<std::size_t>(info.layers + 1));
      for (std::int64_t layer = 0; layer <= info.layers; ++layer) {
        const std::vector<float> want(hidden.begin() + static_cast<std::ptrdiff_t>(per_layer * static_cast<std::size_t>(layer)),
                                      hidden.begin() + static_cast<std::ptrdiff_t>(per_layer * static_cast<std::size_t>(layer + 1)));
        expect_close(result.hidden.data() + per_layer * static_cast<std::size_t>(layer), info.hidden, want, info.hidden, fmt::format("prompt {}, hidden state {}", i, layer));
        if (HasFatalFailure()) return;
      }
    }
    const auto logits = read_named_f32(golden, fmt::format("logits{}.{}", quantization.empty() ? "" : "_" + quantization, i));
    ASSERT_TRUE(logits || (i > 1 && !quantization.empty())) << "prompt " << i;  // some formats have the first two prompts alone
    if (!logits) break;
    expect_close(result.logits.data(), opened->model->logits_stride(), *logits, info.vocabulary, fmt::format("prompt {}, logits", i));
  }
  EXPECT_GT(prompts, 0);
}

class Greedy : public testing::TestWithParam<std::string> {};

TEST_P(Greedy, ids_agree_up_to_the_first_narrow_margin) {
  const std::string& name = GetParam();
  const auto opened = open_fp32(tiny(name), "");
  ASSERT_TRUE(opened);
  const std::string golden = tiny(name) + "/golden.safetensors";
  int compared = 0;
  for (int i = 0; i < 8; ++i) {
    const auto prompt = read_named_i64(golden, fmt::format("prompt.{}", i));
    if (!prompt) break;
    const auto greedy = read_named_i64(golden, fmt::format("greedy.{}", i)).value();
    const auto margin = read_named_f32(golden, fmt::format("greedy_margin.{}", i)).value();
    std::vector<std::int32_t> ids(prompt->begin(), prompt->end());
    for (std::size_t step = 0; step < greedy.size() && margin[step] >= 0.01f; ++step, ++compared) {
      const auto logits = forward_once(*opened, ids, {.last_only = true}).logits;
      const auto best = std::max_element(logits.begin(), logits.begin() + opened->model->info().vocabulary) - logits.begin();
      ASSERT_EQ(best, greedy[step]) << "prompt " << i << ", step " << step << ", margin " << margin[step];
      ids.push_back(static_cast<std::int32_t>(best));
    }
  }
  EXPECT_GT(compared, 20);
}

// Generated tokens attend in runs of 512 rows that are merged; prompt tokens do not, and those of v2-lite take the plain form. All are the same function.
class LatentAttention : public testing::TestWithParam<std::string> {};
TEST_P(LatentAttention, runs_and_forms_give_the_same_answer) {
  const auto opened = open_fp32(tiny(GetParam()), "wint4-g32");
  ASSERT_TRUE(opened);
  const std::int64_t stride = opened->model->logits_stride(), vocabulary = opened->model->info().vocabulary;
  std::vector<std::int32_t> ids(1100);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % 509 + 3);
  const auto prompt = forward_once(*opened, ids).logits, generated = forward_once(*opened, ids, {.decode = true}).logits;
  std::vector<float> want;
  for (std::size_t t = 0; t < ids.size(); ++t) want.insert(want.end(), prompt.begin() + static_cast<std::ptrdiff_t>(t) * stride, prompt.begin() + static_cast<std::ptrdiff_t>(t) * stride + vocabulary);
  expect_close(generated.data(), stride, want, vocabulary, "generated tokens");
  // Alone, a token has the bits that it has beside others.
  for (const std::size_t length : {511, 512, 513, 1024, 1025}) {
    const auto last = forward_once(*opened, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length)}, {.decode = true, .last_only = true}).logits;
    EXPECT_TRUE(std::equal(last.begin(), last.begin() + vocabulary, generated.begin() + static_cast<std::ptrdiff_t>(length - 1) * stride)) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, LatentAttention, testing::Values("tiny-deepseek-v3", "tiny-deepseek-v2-lite"), [](const auto& test) { return test.param == "tiny-deepseek-v3" ? "absorbed" : "plain"; });

std::string label(std::string text) {
  std::ranges::replace(text, '-', '_');
  return text;
}

const std::vector<std::string> kFormats = {"", "wint8", "wint4", "wint4-g32", "wint4-g64", "wint4-g128", "wlut4", "fp8-ocp", "fp8-gaudi", "fp8-block"};

std::vector<Case> golden_cases() {
  std::vector<Case> cases;
  for (const auto& entry : fs::directory_iterator(tiny(""))) {
    const std::string golden = entry.path() / "golden.safetensors";
    if (!fs::exists(golden)) continue;
    const std::string name = entry.path().filename();
    for (const std::string& quantization : kFormats)
      if (read_named_f32(golden, fmt::format("logits{}.0", quantization.empty() ? "" : "_" + quantization))) cases.push_back({name, quantization});
  }
  return cases;
}

std::vector<std::string> greedy_cases() {
  std::vector<std::string> names;
  for (const Case& c : golden_cases())
    if (c.quantization.empty()) names.push_back(c.folder);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Tiny, Golden, testing::ValuesIn(golden_cases()),
                         [](const auto& test) { return label(test.param.folder + "_" + (test.param.quantization.empty() ? "as_stored" : test.param.quantization)); });
INSTANTIATE_TEST_SUITE_P(Tiny, Greedy, testing::ValuesIn(greedy_cases()), [](const auto& test) { return label(test.param); });

TEST(Golden, every_family_is_covered) {
  std::vector<std::string> seen;
  for (const Case& c : golden_cases()) seen.push_back(c.folder + "/" + c.quantization);
  for (const std::string family : {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe", "tiny-ernie4_5", "tiny-ernie4_5-moe", "tiny-deepseek-v3",
                                   "tiny-deepseek-v2", "tiny-deepseek-v2-lite", "tiny-qwen2-moe", "tiny-glm4-moe"})
    for (const std::string& quantization : kFormats)
      if (!quantization.starts_with("fp8-") || !std::set<std::string>{"tiny-deepseek-v2", "tiny-deepseek-v2-lite", "tiny-qwen2-moe", "tiny-glm4-moe"}.contains(family)) EXPECT_THAT(seen, testing::Contains(family + "/" + quantization));
}

}  // namespace
}  // namespace inflight::engine
