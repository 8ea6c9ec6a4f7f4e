// Attention over a KV cache of FP8 E4M3 codes (base/e4m3.h). The cache of one KV head holds blocks as kernels.h has it, with
//   keys    e4m3 [block_size/16][D/4][64]   byte (d, token) of 16 tokens at e4m3_place(d, token) of fp8.h: tokens are the rows of a weight panel; D a multiple of 4
//   values  e4m3 [block_size][D]
// A key is value(code) * scale_k, a value is value(code) * scale_v. No visible key or value is a NaN code, else the result is unspecified.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inflight::kernels {

struct Fp8AttendArgs {
  AttendArgs attend;    // its scale is on q . k of the numbers meant (D^-0.5); scratch: Fp8AttentionKernels::scratch(tokens * G, D) floats
  float scale_k = 1;
  float scale_v = 1;
  // What attend_e4m3_full alone reads:
  float inverse_q = 1;  // q is encoded as e4m3(fl32(q * inverse_q)), saturating at `bound`,
  float scale_q = 1;    // and means value(code) * scale_q
  float bound = 448;    // 448 or 240; also the number that the probability 1 is encoded as
};

// What kernels.h says of attend_f32 holds: a head's bits depend on its q, the scales, the visible keys and values, begin, end and scale alone; slots and block table
// entries of keys that no token of the call sees may hold anything. Tiles of 64 keys lie at absolute positions. A NaN in q gives NaN.
struct Fp8AttentionKernels {
  // Writes one token's key and value [D] into `slot` of one block: code = e4m3(fl32(x * inverse)), saturating at bound (448 or 240), NaN stays NaN.
  void (*store_kv_e4m3)(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block, float inverse_k, float inverse_v, float bound);
  std::int64_t (*scratch)(std::int64_t rows, std::int64_t head_dim);
  // q FP32, codes decoded exactly, score = fl(sum * fl(scale * scale_k)), softmax with a running maximum, out = fl(mean * scale_v).
  // |error| <= 2e-6 * scale_v * max|code's value| against exact arithmetic while |score| <= 16, and as attend_f32 beyond.
  void (*attend_e4m3)(const Fp8AttendArgs& args);
  // The same in BF16 arithmetic, for prompts: as attend_bf16_dot, on the decoded numbers (exact in BF16) and with scale * scale_k. nullptr where the ISA has no such instructions.
  void (*attend_e4m3_dot)(const Fp8AttendArgs& args);
  // All of it on E4M3 numbers. Per row, over all its visible keys, whatever their order in tiles:
  //   score = fl(sum of q8 * k8 * fl(fl(scale * scale_q) * scale_k)), products exact, summed in FP32;  m = the largest score;
  //   e = exp(score - m);  e8 = e4m3(fl(e * bound));  out = sum of e8 * v8 / bound * scale_v / sum of e, e unrounded, sums in FP32.
  // Prompts and generated tokens alike: a row's bits do not depend on the call it is in.
  void (*attend_e4m3_full)(const Fp8AttendArgs& args);
};

}  // namespace inflight::kernels
