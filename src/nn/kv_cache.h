// The paged KV cache: blocks of `block_size` tokens for every layer, keys and values in the lane layout of kernels.h (E4M3: of kernels/attention_fp8.h), or latents in that of kernels/latent.h.
// Memory is reserved at once and becomes resident only as blocks are first written.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace inflight::nn {

struct KvShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;   // of this rank
  std::int64_t head_dim = 0;   // even; with E4M3 a multiple of 4
  std::int64_t block_size = 64;  // tokens, a multiple of 16
  DType dtype = DType::kBF16;  // BF16, F32, or F8E4M3 where nothing is latent
  bool latent = false;         // one row of head_dim numbers a token that serves as key and as value (kv_heads is 1)

  std::int64_t copies() const { return latent ? 1 : 2; }
  std::int64_t head_bytes() const { return block_size * head_dim * dtype_bits(dtype) / 8; }  // keys (or values, or latents) of one head in one block
  std::int64_t block_bytes() const { return copies() * layers * kv_heads * head_bytes(); }   // one block over all layers
  std::int64_t token_bytes() const { return block_bytes() / block_size; }
};

class KvCache {
 public:
  static Result<KvCache> create(const KvShape& shape, std::int64_t blocks);

  const KvShape& shape() const { return shape_; }
  std::int64_t blocks() const { return blocks_; }
  // Block b of (layer, head) is at keys(layer, head) + b * block_stride().
  std::byte* latents(std::int64_t layer) const { return at(layer, 0); }
  std::byte* keys(std::int64_t layer, std::int64_t head) const { return at(layer, head); }
  std::byte* values(std::int64_t layer, std::int64_t head) const { return at(layer, shape_.kv_heads + head); }
  // Copies what tokens [0, filled) of sequence 0 put here over and over, up to token `upto` of every sequence; sequence s has blocks [s * blocks_per_sequence, ...).
  // For speed measurements, where the numbers do not matter but their being there does. Whole blocks are copied, or the first. `filled` > 0.
  void repeat(std::int64_t sequences, std::int64_t blocks_per_sequence, std::int64_t filled, std::int64_t upto);
  std::int64_t block_stride() const { return shape_.copies() * shape_.kv_heads * shape_.head_bytes(); }

 private:
  KvCache(const KvShape& shape, std::int64_t blocks, Buffer memory) : shape_(shape), blocks_(blocks), memory_(std::move(memory)) {}
  std::byte* at(std::int64_t layer, std::int64_t half) const { return memory_.data() + layer * blocks_ * block_stride() + half * shape_.head_bytes(); }

  KvShape shape_;
  std::int64_t blocks_ = 0;
  Buffer memory_;
};

}  // namespace inflight::nn
