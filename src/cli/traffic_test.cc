// Counts on tests/tiny/tiny-qwen3, checked against sums by hand: 3 layers; qkv [256, 64], o [64, 128], up_gate [384, 64], down [64, 192];
// a tied head [512, 64]; 4 heads of 32, 2 of keys and values.
#include "cli/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/bench_load.h"
#include "cli/forward_runner.h"

namespace inflight::cli {
namespace {

const std::string kFolder = INFLIGHT_TEST_DATA "/tiny/tiny-qwen3";
constexpr double kLayerWeights = 256 * 64 + 64 * 128 + 384 * 64 + 64 * 192;

std::unique_ptr<engine::OpenedModel> opened(const engine::EngineOptions& options) {
  Result<std::unique_ptr<engine::OpenedModel>> model = engine::open_model(kFolder, options);
  EXPECT_TRUE(model) << model.error().message;
  return std::move(*model);
}

TEST(Traffic, decode_reads_every_matrix_once_and_one_embedding_row_a_token) {
  const auto bf16 = opened({.compute = "fp32"});
  const auto matrices = static_cast<std::int64_t>(2 * (3 * kLayerWeights + 512 * 64));
  EXPECT_EQ(decode_bytes(*bf16, 1), matrices + 64 * 2);
  EXPECT_EQ(decode_bytes(*bf16, 5), matrices + 5 * 64 * 2);

  const auto wint8 = opened({.quantization = "wint8", .lm_head = "bf16", .compute = "fp32"});
  const auto codes = static_cast<std::int64_t>(3 * kLayerWeights + 2 * 512 * 64);
  EXPECT_EQ(decode_bytes(*wint8, 1), codes + 3 * (256 + 64 + 384 + 64) * 4 + 64 * 2);
}

TEST(Traffic, prefill_counts_matrices_per_token_the_head_once_and_causal_attention_once) {
  const auto model = opened({.compute = "fp32"});
  const std::vector<Work> work = prefill_work(*model, 10, DType::kF32);
  ASSERT_EQ(work.size(), 1u);  // all of it in FP32
  EXPECT_EQ(work[0].arithmetic, quant::Arithmetic::kFp32);
  EXPECT_EQ(work[0].operations, 2 * 10 * 3 * kLayerWeights + 2 * 512 * 64 + 3 * 4 * 4.0 * 32 * (10 * 11 / 2));
}

TEST(Traffic, prefill_counts_attention_in_bf16_where_it_runs_in_bf16) {
  const auto model = opened({.compute = "bf16"});
  const bool dots = model->runtime->kernels->vector->attend_bf16_dot != nullptr;
  const double linear = 2 * 10 * 3 * kLayerWeights + 2 * 512 * 64, attention = 3 * 4 * 4.0 * 32 * (10 * 11 / 2);
  for (const DType cache : {DType::kBF16, DType::kF32}) {
    double bf16 = 0, fp32 = 0;
    for (const Work& part : prefill_work(*model, 10, cache)) (part.arithmetic == quant::Arithmetic::kBf16 ? bf16 : fp32) += part.operations;
    const bool in_bf16 = dots && cache == DType::kBF16;
    EXPECT_EQ(bf16, in_bf16 ? linear + attention : linear);
    EXPECT_EQ(fp32, in_bf16 ? 0 : attention);
  }
}

// tests/tiny/tiny-deepseek-v3: 4 layers, 4 heads of 16 + 8 over latents of 64 + 8, values of 24 (32 rows in v_b); q's own rank 32.
TEST(Traffic, latent_attention_reads_its_derived_matrices_and_counts_its_own_products) {
  const auto model = engine::open_model(INFLIGHT_TEST_DATA "/tiny/tiny-deepseek-v3", {.compute = "fp32"}).value();
  constexpr std::int64_t kAttention = (32 + 72) * 64 + 96 * 32 + 64 * 96, kDerived = 4 * 64 * 16 + 4 * 32 * 64, kDense = 3 * 160 * 64, kExpert = 3 * 64 * 64, kRouter = 16 * 64;
  // BF16 but the router and what is derived, which --compute fp32 keeps in FP32. 8 experts of which 3 are touched, beside a shared one.
  EXPECT_EQ(decode_bytes(*model, 1), 4 * (2 * (kAttention + 8 * 64) + 4 * kDerived) + 2 * kDense + 3 * (4 * kExpert * 2 + 4 * kRouter) + 2 * 512 * 64 + 2 * 64);
  const std::vector<Work> work = prefill_work(*model, 10, DType::kF32);
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0].operations, 2.0 * 10 * (4 * (kAttention + kDerived) + kDense + 3 * (4 * kExpert + 8 * 64)) + 2 * 512 * 64 + 2.0 * 4 * 4 * (72 + 64) * (10 * 11 / 2));
  EXPECT_EQ(model->model->info().kv_shape(64, DType::kBF16).token_bytes(), 4 * 72 * 2);
}

// tests/tiny/tiny-deepseek-v2-lite: 3 layers, 4 heads of 16 + 8 and values of 16 over latents of 32 + 8; prompts make keys and values through kv_b_proj.
TEST(Traffic, prompts_in_the_plain_form_count_kv_b_and_short_heads) {
  const auto model = engine::open_model(INFLIGHT_TEST_DATA "/tiny/tiny-deepseek-v2-lite", {.compute = "fp32"}).value();
  constexpr std::int64_t kAttention = 40 * 64 + 96 * 64 + 64 * 64, kExpand = 4 * 32 * 32, kDense = 3 * 160 * 64, kExpert = 3 * 48 * 64;
  const std::vector<Work> work = prefill_work(*model, 10, DType::kF32);
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0].operations, 2.0 * 10 * (3 * (kAttention + kExpand) + kDense + 2 * (5 * kExpert + 8 * 64)) + 2 * 512 * 64 + 2.0 * 3 * 4 * (24 + 16) * (10 * 11 / 2));
  // Generated tokens read what is derived from it instead: k_b [4 * 32, 16] and v_b [4 * 16, 32] in FP32. The latent's 40 rows are stored as 48.
  EXPECT_EQ(decode_bytes(*model, 1), 3 * (2 * (kAttention + 8 * 64) + 4 * (4 * 32 * 16 + 4 * 16 * 32)) + 2 * kDense + 2 * (2 * 5 * kExpert + 4 * 16 * 64) + 2 * 512 * 64 + 2 * 64);
}

TEST(ForwardRunner, chunks_are_the_same_as_one_pass) {
  const auto model = opened({.compute = "fp32"});
  const std::vector<std::int32_t> ids = synthetic_ids(50, 512);
  ForwardRunner whole = ForwardRunner::create(*model, {.compute = "fp32"}, 1, 50).value();
  std::vector<float> all(static_cast<std::size_t>(50 * whole.stride())), last(static_cast<std::size_t>(whole.stride()));
  whole.forward({.ids = ids, .rope_length = 50, .logits = all.data()});
  ForwardRunner cut = ForwardRunner::create(*model, {.compute = "fp32"}, 1, 50).value();
  cut.forward({.ids = std::span(ids).first(33), .rope_length = 50});
  cut.forward({.ids = std::span(ids).subspan(33), .position = 33, .rope_length = 50, .logits_from = 16, .logits = last.data()});
  EXPECT_TRUE(std::equal(last.begin(), last.begin() + 512, all.begin() + 49 * whole.stride()));
}

TEST(ForwardRunner, a_repeated_cache_is_the_same_in_every_sequence) {
  const auto model = opened({});
  ForwardRunner runner = ForwardRunner::create(*model, {}, 3, 200).value();
  runner.forward({.ids = synthetic_ids(64, 512)});
  runner.repeat_cache(64, 192);
  std::vector<float> logits(static_cast<std::size_t>(3 * runner.stride()));
  const std::vector<std::int32_t> ids = {9, 9, 9};
  runner.decode(ids, 192, logits.data());
  for (int row = 1; row < 3; ++row) EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 512, logits.begin() + row * runner.stride())) << row;

  // 192 tokens of which 64 repeat: as if the same 64 tokens' keys had been attended three times, so other logits than after 64 alone.
  std::vector<float> alone(static_cast<std::size_t>(runner.stride()));
  ForwardRunner fresh = ForwardRunner::create(*model, {}, 1, 200).value();
  fresh.forward({.ids = synthetic_ids(64, 512)});
  fresh.decode(std::span(ids).first(1), 64, alone.data());
  EXPECT_FALSE(std::equal(alone.begin(), alone.begin() + 512, logits.begin()));
}

TEST(CheckIds, names_the_token_and_the_bounds) {
  const models::ModelInfo info{.vocabulary = 10, .max_positions = 3};
  EXPECT_TRUE(check_ids(std::vector<std::int32_t>{0, 9, 5}, info));
  EXPECT_EQ(check_ids(std::vector<std::int32_t>{0, 10}, info).error().message, "token 1 has id 10, but the model's vocabulary has 10 rows (0 to 9)");
  EXPECT_EQ(check_ids(std::vector<std::int32_t>{-1}, info).error().code, Code::kInvalidArgument);
  EXPECT_EQ(check_ids(std::vector<std::int32_t>{1, 1, 1, 1}, info).error().message, "4 tokens are more than the model's context of 3");
}

TEST(BenchLoad, medians) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({4, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(BenchLoad, a_plain_read_needs_the_shards_and_has_a_rate) {
  ThreadPool pool(2);
  EXPECT_GT(plain_read_rate(kFolder, pool).value(), 0);
  EXPECT_EQ(plain_read_rate("/nowhere", pool).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace inflight::cli
