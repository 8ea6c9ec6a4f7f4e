#include "engine/kv_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// Qwen3-0.6B: 28 layers, 8 KV heads of 128.
models::ModelInfo qwen3() {
  models::ModelInfo info;
  info.layers = 28;
  info.hidden = 1024;
  info.vocabulary = 151936;
  info.heads = 16;
  info.kv_heads = 8;
  info.head_dim = 128;
  info.max_positions = 40960;
  return info;
}

constexpr std::int64_t kTokenBytes = 2 * 28 * 8 * 128 * 2;  // K and V, layers, heads, head_dim, BF16: 114688
constexpr std::int64_t kBlockBytes = 64 * kTokenBytes;      // 7 MiB

TEST(KvPlan, with_plenty_the_model_decides_and_no_more_blocks_are_made_than_sequences_can_use) {
  const KvPlan plan = plan_kv(qwen3(), {}, {1000 * kGiB, "MemAvailable"}).value();
  EXPECT_EQ(plan.max_model_len, 40960);
  EXPECT_EQ(plan.blocks, 32 * 640);
  EXPECT_EQ(plan.shape.block_bytes(), kBlockBytes);
  EXPECT_EQ(plan.bound, "the model's 40960 positions");
}

TEST(KvPlan, with_less_memory_decides_and_says_so) {
  EngineOptions options;
  const MemoryLimit available{4 * kGiB, "MemAvailable"};
  const KvPlan plan = plan_kv(qwen3(), options, available).value();
  const std::int64_t bytes = 4 * kGiB - 4 * kGiB / 10 - workspace_estimate(qwen3(), options);
  EXPECT_EQ(plan.blocks, bytes / kBlockBytes);
  EXPECT_EQ(plan.max_model_len, plan.blocks * 64);
  EXPECT_LT(plan.max_model_len, 40960);
  EXPECT_THAT(plan.bound, AllOf(HasSubstr("memory"), HasSubstr("4.00 GiB available (MemAvailable)"), HasSubstr("112.0 KiB a token")));
}

TEST(KvPlan, the_workspace_covers_activations_and_logits_of_the_widest_step) {
  EngineOptions options;
  const std::int64_t logits = 4 * 32 * 151936, least_activations = 4 * 512 * (1024 * 4 + 3 * 3072 + 2 * 2048);  // intermediate size 3072
  EXPECT_GE(workspace_estimate(qwen3(), options), logits + least_activations);
  EXPECT_LE(workspace_estimate(qwen3(), options), kGiB / 4);
  options.max_num_batched_tokens *= 2;
  EXPECT_GE(workspace_estimate(qwen3(), options), logits + 2 * least_activations);
}

TEST(KvPlan, a_given_size_overrides_memory) {
  EngineOptions options;
  options.kv_cache_bytes = 10 * kBlockBytes + 5;
  const KvPlan plan = plan_kv(qwen3(), options, {}).value();
  EXPECT_EQ(plan.blocks, 10);
  EXPECT_EQ(plan.max_model_len, 640);
  EXPECT_THAT(plan.bound, HasSubstr("kv_cache_bytes"));
}

// DeepSeek-V3: 61 layers of one latent row of 512 + 64 a token, whatever the 128 heads.
TEST(KvPlan, latents_are_stored_once_for_all_heads) {
  const models::ModelInfo info{.layers = 61, .hidden = 7168, .vocabulary = 129280, .heads = 128, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .query_dim = 192, .max_positions = 163840};
  const nn::KvShape shape = kv_shape(info, {}).value();
  EXPECT_EQ(shape.token_bytes(), 61 * 576 * 2);
  EXPECT_EQ(shape.block_bytes(), 64 * 61 * 576 * 2);
  const nn::KvCache cache = nn::KvCache::create(shape, 3).value();
  EXPECT_EQ(cache.block_stride(), 64 * 576 * 2);
  EXPECT_EQ(cache.latents(1) - cache.latents(0), 3 * 64 * 576 * 2);
  // 512 tokens: q and q_a, and 64 tokens' q, weighted latents and values in latent space.
  EXPECT_GE(workspace_estimate(info, {}), 4 * (512 * (7168 * 4 + 128 * (192 + 128)) + 64 * 128 * (576 + 512 + 128) + 32 * 129280));
}

TEST(KvPlan, max_model_len_shortens_and_shrinks) {
  EngineOptions options;
  options.max_model_len = 1000;
  options.max_num_seqs = 3;
  const KvPlan plan = plan_kv(qwen3(), options, {1000 * kGiB, "MemAvailable"}).value();
  EXPECT_EQ(plan.max_model_len, 1000);
  EXPECT_EQ(plan.blocks, 3 * 16);
  EXPECT_EQ(plan.bound, "--max-model-len 1000");
}

TEST(KvPlan, max_model_len_over_memory_is_refused_with_both_numbers) {
  EngineOptions options;
  options.max_model_len = 10000;
  options.kv_cache_bytes = 100 * kBlockBytes;
  const auto plan = plan_kv(qwen3(), options, {});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kExhausted);
  EXPECT_THAT(plan.error().message, AllOf(HasSubstr("--max-model-len 10000"), HasSubstr("6400 tokens"), HasSubstr("1.07 GiB"), HasSubstr("700.0 MiB")));
}

TEST(KvPlan, max_model_len_over_the_promise_is_refused_with_both_numbers) {
  EngineOptions options;
  options.max_model_len = 50000;
  const auto plan = plan_kv(qwen3(), options, {1000 * kGiB, "MemAvailable"});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kInvalidArgument);
  EXPECT_THAT(plan.error().message, AllOf(HasSubstr("50000"), HasSubstr("40960")));
}

TEST(KvPlan, no_room_for_a_block_is_an_error_with_the_numbers) {
  const auto plan = plan_kv(qwen3(), {}, {100 << 20, "cgroup /x/memory.max"});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kExhausted);
  EXPECT_THAT(plan.error().message, AllOf(HasSubstr("7.0 MiB"), HasSubstr("100.0 MiB"), HasSubstr("cgroup /x/memory.max")));
}

TEST(KvPlan, the_cache_dtype_follows_compute_unless_asked_for) {
  EngineOptions options;
  EXPECT_EQ(kv_shape(qwen3(), options)->dtype, DType::kBF16);
  options.compute = "fp32";
  EXPECT_EQ(kv_shape(qwen3(), options)->dtype, DType::kF32);
  options.kv_cache_dtype = "bf16";
  EXPECT_EQ(kv_shape(qwen3(), options)->dtype, DType::kBF16);
  options.compute = "bf16";
  options.kv_cache_dtype = "fp32";
  EXPECT_EQ(kv_shape(qwen3(), options)->dtype, DType::kF32);
}

}  // namespace
}  // namespace inflight::engine
