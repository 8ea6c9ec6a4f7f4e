// Second moments of what a matrix multiplies, sum of x x^T over tokens: how errors of its weights act together (compensated_rounding.h).
// Each token is brought to a mean square of 1 first: a few whose numbers are a hundred times the others' would be nearly all of the sums.
#pragma once
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "quant/format.h"
#include "tensor/buffer.h"

namespace inflight::quant {

// Inputs that are taken together at most: a matrix with more has moments of consecutive blocks of equal size, as if they were independent.
inline constexpr std::int64_t kMostMomentInputs = 8192;

class SecondMoments {
 public:
  static Result<SecondMoments> create(std::int64_t inputs, std::int64_t most = kMostMomentInputs);
  // FP32 bytes of create(inputs).
  static std::int64_t bytes(std::int64_t inputs);

  struct Block {
    std::int64_t first = 0, inputs = 0;  // of the matrix
    float* sums = nullptr;               // [inputs][inputs], of which the lower triangle counts
  };
  std::int64_t inputs() const { return inputs_; }
  std::int64_t tokens() const { return tokens_; }
  const std::vector<Block>& blocks() const { return blocks_; }

  // x [tokens, ldx], finite. Sums are FP32; their order depends on how tokens are dealt out to calls, and on the ISA, but on no number of threads.
  void add(const float* x, std::int64_t ldx, std::int64_t tokens, const Kernels& kernels, ThreadPool& pool);

 private:
  std::int64_t inputs_ = 0, tokens_ = 0;
  std::vector<Block> blocks_;
  Buffer memory_;
};

}  // namespace inflight::quant
