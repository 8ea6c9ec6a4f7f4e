#include "nn/kv_cache.h"

#include <algorithm>
#include <cstring>

namespace inflight::nn {

Result<KvCache> KvCache::create(const KvShape& shape, std::int64_t blocks) {
  if (shape.block_size <= 0 || shape.block_size % 16 != 0)
    return fail(Code::kInvalidArgument, "--block-size {}: must be a positive multiple of 16 (for example 64)", shape.block_size);
  if (shape.head_dim % 2 != 0) return fail(Code::kUnsupported, "head_dim {} is odd; rotary embeddings need pairs", shape.head_dim);
  if (shape.dtype != DType::kBF16 && shape.dtype != DType::kF32 && shape.dtype != DType::kF8E4M3)
    return fail(Code::kUnsupported, "KV cache of {}; known: bf16 fp32 float8_e4m3", dtype_name(shape.dtype));
  if (shape.dtype == DType::kF8E4M3 && shape.latent)
    return fail(Code::kUnsupported, "--kv-cache-dtype float8_e4m3 is for keys and values of heads; this model caches latents (use auto, bf16 or fp32)");
  if (shape.dtype == DType::kF8E4M3 && shape.head_dim % 4 != 0)
    return fail(Code::kUnsupported, "--kv-cache-dtype float8_e4m3 needs a head_dim that is a multiple of 4, not {} (use auto, bf16 or fp32)", shape.head_dim);
  Buffer memory = TRY(Buffer::map(static_cast<std::size_t>(shape.block_bytes() * blocks)));
  return KvCache(shape, blocks, std::move(memory));
}

void KvCache::repeat(std::int64_t sequences, std::int64_t blocks_per_sequence, std::int64_t filled, std::int64_t upto) {
  const std::int64_t source_blocks = std::max<std::int64_t>(filled / shape_.block_size, 1), needed = (upto + shape_.block_size - 1) / shape_.block_size;
  const auto bytes = static_cast<std::size_t>(shape_.head_bytes());
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
    for (std::int64_t half = 0; half < shape_.copies() * shape_.kv_heads; ++half)
      for (std::int64_t sequence = 0; sequence < sequences; ++sequence)
        for (std::int64_t block = sequence == 0 ? source_blocks : 0; block < needed; ++block)
          std::memcpy(at(layer, half) + (sequence * blocks_per_sequence + block) * block_stride(), at(layer, half) + block % source_blocks * block_stride(), bytes);
}

}  // namespace inflight::nn
