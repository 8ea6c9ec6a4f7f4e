// A small mixture of experts that was trained (tools/train_small_moe.py), against the loss that transformers has on the same text.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "engine/test_forward.h"
#include "text/tokenizer.h"

namespace inflight {
namespace {

const std::string kFolder = std::string(INFLIGHT_TEST_DATA) + "/small-ernie4_5-moe";

struct Loss {
  double nats = 0;
  std::vector<std::vector<std::int64_t>> expert_tokens;  // [layers][experts]
};

// Mean over all windows of 256 tokens of the mean negative log-likelihood of positions 2..256, in nats.
Loss held_out_loss(const std::string& quantization, const std::string& compute, std::size_t windows) {
  engine::EngineOptions options;
  options.quantization = quantization;
  options.compute = compute;
  const auto opened = engine::open_model(kFolder, options);
  EXPECT_TRUE(opened) << opened.error().message;
  if (!opened) return {};
  const models::ModelInfo& info = (*opened)->model->info();
  Loss loss{0, std::vector(static_cast<std::size_t>(info.layers), std::vector<std::int64_t>(static_cast<std::size_t>(info.experts)))};
  (*opened)->runtime->expert_tokens = &loss.expert_tokens;
  const std::string held_out = read_file(std::string(INFLIGHT_TEST_DATA) + "/text/heldout.txt").value();
  const std::vector<std::int32_t> ids = text::Tokenizer::load(kFolder).value().encode(held_out, false).value();
  EXPECT_EQ(ids.size() / 256, windows);
  for (std::size_t w = 0; w < windows; ++w) {
    const std::vector<std::int32_t> window(ids.begin() + static_cast<std::ptrdiff_t>(w * 256), ids.begin() + static_cast<std::ptrdiff_t>((w + 1) * 256));
    const auto logits = engine::forward_once(**opened, window, {.kv_dtype = compute == "fp32" ? DType::kF32 : DType::kBF16}).logits;
    double sum = 0;
    for (std::size_t t = 0; t + 1 < 256; ++t) {
      const float* row = logits.data() + static_cast<std::int64_t>(t) * (*opened)->model->logits_stride();
      sum += (*opened)->runtime->kernels->vector->log_sum_exp(row, info.vocabulary) - static_cast<double>(row[window[t + 1]]);
    }
    loss.nats += sum / 255 / static_cast<double>(windows);
  }
  return loss;
}

TEST(SmallMoe, held_out_loss_is_the_references) {
  const Json reference = read_json_file(kFolder + "/heldout.json").value();
  const auto windows = reference["windows"].get<std::size_t>();
  const double want = reference["nats_per_token"].get<double>();
  const Loss exact = held_out_loss("", "fp32", windows);
  EXPECT_NEAR(exact.nats, want, 0.002);
  EXPECT_NEAR(held_out_loss("", "auto", windows).nats, want, 0.002);
  EXPECT_NEAR(held_out_loss("wint8", "auto", windows).nats, want, 0.01);
  // The first layer is dense; every token goes to two experts of each other layer.
  for (std::size_t layer = 0; layer < exact.expert_tokens.size(); ++layer) {
    std::int64_t sum = 0;
    for (const std::int64_t n : exact.expert_tokens[layer]) sum += n;
    EXPECT_EQ(sum, layer == 0 ? 0 : static_cast<std::int64_t>(2 * 256 * windows)) << layer;
  }
}

}  // namespace
}  // namespace inflight
