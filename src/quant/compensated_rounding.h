// Rounding weights to E4M3 so that their errors cancel in what they multiply: of a row w the codes q are chosen one input after the other, each to the nearest of
// what is wanted after the errors so far. With H the second moments of the inputs (second_moments.h), damped, and H = L L^T (Cholesky):
//
//     (w - q) H (w - q)^T = sum over j of ((w_j - q_j) L_jj + sum over i > j of (w_i - q_i) L_ij)^2
//
// so from the last input to the first q_j = nearest(w_j + sum over i > j of (w_i - q_i) L_ij / L_jj) makes each term as small as it can be by then. That is what GPTQ
// does by updating the weights that are left with rows of the inverse's factor. Inputs of great moments come first, when most others are free to make up for them.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/second_moments.h"

namespace inflight::quant {

// What is added to the diagonal, as a part of each of its numbers: directions that the data hardly has are not bought with the weights' own accuracy.
inline constexpr float kMomentDamping = 0.05f;

class RoundingFactor {
 public:
  // An input that was never other than 0 is rounded to the nearest. kExhausted: no memory.
  static Result<RoundingFactor> create(const SecondMoments& moments, float damping, const Kernels& kernels, ThreadPool& pool);
  std::int64_t inputs() const { return inputs_; }

  // Codes of rows w [count][inputs], count up to kRows, with one scale a row: value(code) * scale is what stands for w. A scale of 0 gives codes 0. codes: [count][inputs].
  static constexpr int kRows = 32;
  void round(const float* w, int count, const float* scales, float bound, const Kernels& kernels, std::uint8_t* codes) const;

 private:
  struct Block {
    std::int64_t first = 0, inputs = 0;
    std::vector<std::int32_t> order;  // [inputs]: place -> input of the block; the last place is rounded first
    Buffer lower;                     // L as panels of 16 columns: f32 [panels][inputs][16], (i, j) at lane j % 16 of row i of panel j / 16
  };
  std::int64_t inputs_ = 0;
  std::vector<Block> blocks_;
};

// (w - q) H (w - q)^T of one row: what rounding costs in the outputs, summed over the tokens of the moments. In FP64.
double rounding_error(const SecondMoments& moments, const float* w, const float* q);

}  // namespace inflight::quant
