// Attention of many heads over one latent row a token (multi-head latent attention in its absorbed form): the row is every head's key, and its
// first numbers are every head's value. A row is read once for all heads of a call.
//
// The cache holds blocks of `block_size` tokens (a multiple of 16), f32 or bf16 [block_size][D], D even.
// Block b of a sequence is at base + block_table[b] * block_stride bytes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace inflight::kernels {

struct LatentArgs {
  const float* q = nullptr;      // [tokens, heads, D], tokens q_stride floats apart
  std::int64_t heads = 0;
  std::int64_t dim = 0;          // D
  std::int64_t value_dim = 0;    // R: a multiple of 16, at most D
  const std::byte* latents = nullptr;
  std::int64_t block_stride = 0;
  const std::int32_t* block_table = nullptr;
  std::int64_t block_size = 0;
  std::int64_t begin = 0;        // token t sees the rows begin <= j < end + t; each sees at least one
  std::int64_t end = 0;
  std::int64_t tokens = 1;       // consecutive tokens of one sequence
  std::int64_t q_stride = 0;
  std::int64_t out_stride = 0;
  float scale = 1;               // on q . row
  float* out = nullptr;          // [tokens, heads, R], tokens out_stride floats apart
  float* maxima = nullptr;       // nullptr, or [tokens, heads]: the largest scale * q . row, and
  float* sums = nullptr;         // the sum of exp(scale * q . row - maximum): what merging runs of rows needs
  float* scratch = nullptr;      // scratch() floats
};

// The plain form, one head of it: keys and values are made from the rows, a tile at a time, and serve all tokens of the call.
struct ExpandArgs {
  const float* q = nullptr;      // [tokens, N + P], tokens q_stride floats apart
  std::int64_t nope_dim = 0;     // N, a multiple of 16
  std::int64_t rope_dim = 0;     // P, even
  std::int64_t rank = 0;         // R, a multiple of 16; a row has R + P numbers
  std::int64_t value_dim = 0;    // V, a multiple of 16
  const void* k_b = nullptr;     // this head's panels of W [R, N]:  key = [row[:R] . W | row[R:]]
  const void* v_b = nullptr;     // and of W [V, R]:               value = W . row[:R]       both f32 or bf16 in the packed layout of kernels.h
  bool wide = false;             // they are f32
  const std::byte* latents = nullptr;
  std::int64_t block_stride = 0;
  const std::int32_t* block_table = nullptr;
  std::int64_t block_size = 0;
  std::int64_t end = 0;          // token t sees the rows j < end + t, at least one
  std::int64_t tokens = 1;
  std::int64_t q_stride = 0;
  std::int64_t out_stride = 0;
  float scale = 1;
  float* out = nullptr;          // [tokens, V], tokens out_stride floats apart
  float* scratch = nullptr;      // expand_scratch() floats
};

// out = softmax(scale * q . rows) . rows[:R], in tiles of 64 rows aligned to absolute positions, ascending, with a running maximum. A head's bits depend
// on its q, the rows it sees, begin, end and scale alone (while the rows that later tokens of the call see are finite).
// Slots and block table entries of rows outside [begin, end + tokens - 1) may hold anything.
struct LatentKernels {
  std::int64_t (*scratch)(std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t value_dim);
  // FP32 sums: |error| <= 2e-6 * max|row| against exact arithmetic on the stored rows while |score| <= 16; a larger score adds its own rounding.
  void (*attend_f32)(const LatentArgs& args);
  void (*attend_bf16)(const LatentArgs& args);
  // BF16 arithmetic: scale * log2(e) * q is rounded to BF16, and so is every weight; products are exact and summed by BF16 dot instructions.
  // |error| <= 2^-7 * max|row| against the softmax of the rounded q. nullptr where the ISA has no such instructions.
  void (*attend_bf16_dot)(const LatentArgs& args);
  // out = softmax(scale * q . keys) . values, in the same tiles; what is said above of bits, slots and sums holds. In BF16 arithmetic the weights, keys and values
  // are rounded to BF16 as well: |error| <= 2^-6 * max|value| against the softmax of the rounded q and keys.
  std::int64_t (*expand_scratch)(std::int64_t tokens, std::int64_t nope_dim, std::int64_t rope_dim, std::int64_t rank, std::int64_t value_dim);
  void (*expand_f32)(const ExpandArgs& args);
  void (*expand_bf16)(const ExpandArgs& args);
  void (*expand_bf16_dot)(const ExpandArgs& args);
};

}  // namespace inflight::kernels
