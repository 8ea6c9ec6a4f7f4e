#include "nn/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inflight::nn {
namespace {

using testing::HasSubstr;

// 3 layers of 2 KV heads of 64 numbers: 3 * 2 * 2 * 64 numbers a token.
TEST(KvCache, BytesFollowTheElementType) {
  KvShape shape{.layers = 3, .kv_heads = 2, .head_dim = 64, .block_size = 16};
  for (const auto& [dtype, bytes] : {std::pair{DType::kF32, 4}, {DType::kBF16, 2}, {DType::kF8E4M3, 1}}) {
    shape.dtype = dtype;
    EXPECT_EQ(shape.token_bytes(), 768 * bytes);
    EXPECT_EQ(shape.block_bytes(), 16 * 768 * bytes);
    const auto cache = KvCache::create(shape, 5);
    ASSERT_TRUE(cache) << cache.error().message;
    EXPECT_EQ(cache->block_stride(), 16 * 256 * bytes);
    EXPECT_EQ(cache->keys(0, 1) - cache->keys(0, 0), 16 * 64 * bytes);
    EXPECT_EQ(cache->values(0, 0) - cache->keys(0, 0), 2 * 16 * 64 * bytes);
    EXPECT_EQ(cache->keys(1, 0) - cache->keys(0, 0), 5 * cache->block_stride());
  }
}

TEST(KvCache, RefusesWhatNoKernelReads) {
  const auto message = [](const KvShape& shape) {
    const auto cache = KvCache::create(shape, 2);
    return cache ? std::string("accepted") : cache.error().message;
  };
  const KvShape fp8{.layers = 1, .kv_heads = 1, .head_dim = 64, .block_size = 16, .dtype = DType::kF8E4M3};
  EXPECT_EQ(message(fp8), "accepted");
  KvShape shape = fp8;
  shape.latent = true;
  EXPECT_THAT(message(shape), HasSubstr("latents"));
  shape = fp8;
  shape.head_dim = 66;
  EXPECT_THAT(message(shape), HasSubstr("66"));
  shape.dtype = DType::kBF16;
  EXPECT_EQ(message(shape), "accepted");
  shape.head_dim = 65;
  EXPECT_THAT(message(shape), HasSubstr("odd"));
  shape = fp8;
  shape.dtype = DType::kF8E5M2;
  EXPECT_THAT(message(shape), HasSubstr("float8_e4m3"));
  shape = fp8;
  shape.block_size = 24;
  EXPECT_THAT(message(shape), HasSubstr("--block-size 24"));
}

}  // namespace
}  // namespace inflight::nn
