// The real SmolLM2-135M-Instruct against what transformers says of it (tests/smollm2/golden.json; made by tools/make_smollm2_golden.py).
// Needs the folder that `./dev demo` makes; its path comes in INFLIGHT_SMOLLM2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/test_forward.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace inflight {
namespace {

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("INFLIGHT_SMOLLM2");
    if (!folder) GTEST_SKIP() << "INFLIGHT_SMOLLM2 is not set; `./dev test` sets it";
    folder_ = folder;
    golden_ = read_json_file(std::string(INFLIGHT_TEST_DATA) + "/smollm2/golden.json").value();
  }

  std::unique_ptr<engine::OpenedModel> open(const std::string& quantization, const std::string& compute) {
    engine::EngineOptions options;
    options.quantization = quantization;
    options.compute = compute;
    auto opened = engine::open_model(folder_, options);
    if (!opened) ADD_FAILURE() << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }

  // Mean over 16 windows of 256 tokens of the mean negative log-likelihood of positions 2..256, in nats.
  double held_out_loss(engine::OpenedModel& opened, bool decode, DType kv_dtype) {
    const text::Tokenizer tokenizer = text::Tokenizer::load(folder_).value();
    const std::string held_out = read_file(std::string(INFLIGHT_TEST_DATA) + "/text/heldout.txt").value();
    const std::vector<std::int32_t> ids = tokenizer.encode(held_out, false).value();
    const std::int64_t stride = opened.model->logits_stride(), vocabulary = opened.model->info().vocabulary;
    double sum = 0;
    for (std::size_t w = 0; w < 16; ++w) {
      const std::vector<std::int32_t> window(ids.begin() + static_cast<std::ptrdiff_t>(w * 256), ids.begin() + static_cast<std::ptrdiff_t>((w + 1) * 256));
      const auto logits = engine::forward_once(opened, window, {.decode = decode, .kv_dtype = kv_dtype}).logits;
      double loss = 0;
      for (std::size_t t = 0; t + 1 < 256; ++t) {
        const float* row = logits.data() + static_cast<std::int64_t>(t) * stride;
        loss += opened.runtime->kernels->vector->log_sum_exp(row, vocabulary) - static_cast<double>(row[window[t + 1]]);
      }
      sum += loss / 255;
    }
    return sum / 16;
  }

  std::string folder_;
  Json golden_;
};

TEST_F(SmolLm2, prompts_render_and_encode_as_the_reference_and_first_logits_agree) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(folder_).value();
  const text::ChatTemplate chat = text::ChatTemplate::load(folder_).value();
  const auto opened = open("", "fp32");
  ASSERT_TRUE(opened);
  int prompts = 0;
  for (const auto& [prompt, expected] : golden_.items()) {
    if (prompt == "heldout") continue;
    ++prompts;
    const OrderedJson messages = OrderedJson::array({OrderedJson{{"role", "user"}, {"content", prompt}}});
    const std::string rendered = chat.render({.messages = messages}).value();
    EXPECT_EQ(rendered, expected["prompt"].get<std::string>());
    const auto ids = tokenizer.encode(rendered, false).value();
    EXPECT_EQ(ids, expected["ids"].get<std::vector<std::int32_t>>());
    const auto logits = engine::forward_once(*opened, ids, {.last_only = true}).logits;
    for (const Json& top : expected["top10"]) EXPECT_NEAR(logits[top[0].get<std::size_t>()], top[1].get<double>(), 0.05) << prompt << ", id " << top[0];
  }
  EXPECT_EQ(prompts, 4);
}

TEST_F(SmolLm2, greedy_ids_agree_up_to_the_first_margin_under_0_05) {
  engine::EngineOptions options;
  options.compute = "fp32";
  auto engine = engine::Engine::create(open("", "fp32"), options).value();
  for (const auto& [prompt, expected] : golden_.items()) {
    if (prompt == "heldout") continue;
    const auto greedy = expected["greedy"].get<std::vector<std::int32_t>>();
    const auto margin = expected["margin"].get<std::vector<double>>();
    engine::Request request;
    request.prompt = expected["ids"].get<std::vector<std::int32_t>>();
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = static_cast<std::int64_t>(greedy.size());
    ASSERT_TRUE(engine->submit(request));
    std::vector<std::int32_t> got;
    while (engine->has_work())
      for (const engine::Event& event : engine->step())
        if (event.token) got.push_back(*event.token);
    std::size_t upto = 0;
    while (upto < greedy.size() && margin[upto] >= 0.05) ++upto;
    EXPECT_GT(upto, 0U);
    ASSERT_GE(got.size(), upto);
    EXPECT_EQ(std::vector(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(upto)), std::vector(greedy.begin(), greedy.begin() + static_cast<std::ptrdiff_t>(upto))) << prompt;
  }
}

TEST_F(SmolLm2, held_out_loss_is_the_references) {
  const double reference = golden_["heldout"]["nats_per_token"].get<double>();
  const auto exact = open("", "fp32");
  ASSERT_TRUE(exact);
  EXPECT_NEAR(held_out_loss(*exact, false, DType::kF32), reference, 0.005);
  const auto fast = open("", "auto");
  ASSERT_TRUE(fast);
  EXPECT_NEAR(held_out_loss(*fast, false, DType::kBF16), reference, 0.005);
}

TEST_F(SmolLm2, held_out_loss_of_wint8_stays_within_0_02) {
  const double reference = golden_["heldout"]["nats_per_token"].get<double>();
  const auto opened = open("wint8", "auto");
  ASSERT_TRUE(opened);
  const double prefill = held_out_loss(*opened, false, DType::kBF16), decode = held_out_loss(*opened, true, DType::kBF16);
  RecordProperty("prefill_nats", std::to_string(prefill));
  EXPECT_NEAR(prefill, reference, 0.02);
  EXPECT_NEAR(decode, reference, 0.02);
}

}  // namespace
}  // namespace inflight
