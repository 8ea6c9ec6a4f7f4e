#include "nn/kv_cache.h"

namespace inflight::nn {

Result<KvCache> KvCache::create(const KvShape& shape, std::int64_t blocks) {
  if (shape.block_size <= 0 || shape.block_size % 16 != 0)
    return fail(Code::kInvalidArgument, "--block-size {}: must be a positive multiple of 16 (for example 64)", shape.block_size);
  if (shape.head_dim % 2 != 0) return fail(Code::kUnsupported, "head_dim {} is odd; rotary embeddings need pairs", shape.head_dim);
  if (shape.dtype != DType::kBF16 && shape.dtype != DType::kF32)
    return fail(Code::kUnsupported, "KV cache of {}; known: bf16 fp32", dtype_name(shape.dtype));
  Buffer memory = TRY(Buffer::map(static_cast<std::size_t>(shape.block_bytes() * blocks)));
  return KvCache(shape, blocks, std::move(memory));
}

}  // namespace inflight::nn
