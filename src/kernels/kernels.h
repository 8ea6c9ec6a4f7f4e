// The table of compute kernels, one per instruction set. Kernels know no names, own no threads and allocate nothing:
// a caller gives each thread its own range. Scalar (isa/scalar/) is the specification; every other table is tested
// against it. Letters: T tokens, N outputs, K inputs, D head_dim, G query heads that share one KV head.
//
// What holds for every matrix kernel:
// - An output element is one fixed sequence of operations, K ascending (groups ascending), whatever T, the panel range
//   or the tile shape: so a token alone computes the same bits as in a batch, and 1 thread the same as n.
// - Integer kernels (u8_int8, u4_int8, u8_grouped, u4_grouped) give the same bits on every ISA: exact int32 sums, then the FP32 steps written
//   at the entry, with std::fma where it says fma.
// - FP32 kernels may differ between ISAs by rounding: |error| <= 4 * K * 2^-24 * sum|w*x|.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace inflight::kernels {

// ---------------------------------------------------------------- packed weights
// W [N, K] is stored as ceil(N/16) panels of 16 rows: lane r of panel p is row 16p + r. One layout serves GEMV and GEMM.
//   f32   [panels][K][16]               the weights
//   bf16  [panels][ceil(K/2)][16][2]    the weights; a missing last k is 0
//   u8    [panels][ceil(K/4)][16][4]    code = q + 128, q in [-127, 127], or [-128, 127] in what other tools quantized; 128 past K and in rows past N
//   u4    [panels][ceil(K/8)][16][4]    code = q + 8, q in [-7, 7] or [-8, 7] likewise; byte j of block b: low nibble k = 8b + j, high nibble k = 8b + 4 + j; 8 past K
// Panels are 64-byte aligned and a panel's size is a multiple of 64 bytes.
// Scales: per channel f32 [panels][16]; per group f32 or fp16 [panels][groups][16] with groups = ceil(K / group), group % 8 == 0.
// Rows past N have scale 0.
inline constexpr std::int64_t kPanelRows = 16;

struct Weight {
  const void* codes = nullptr;
  const void* scales = nullptr;  // u8, u4 only
  bool scales_fp16 = false;      // groups only
  std::int64_t outputs = 0;      // N
  std::int64_t inputs = 0;       // K
  std::int64_t group = 0;        // inputs a scale covers; 0: per channel
  std::int64_t panels() const { return (outputs + kPanelRows - 1) / kPanelRows; }
  std::int64_t groups() const { return group == 0 ? 1 : (inputs + group - 1) / group; }
};

// ---------------------------------------------------------------- filling packed weights
// Rows of a checkpoint tensor as they were read: `rows` rows of `inputs` elements, `stride` elements apart, no alignment promised.
struct SourceRows {
  const void* data = nullptr;
  DType dtype = DType::kBF16;  // BF16, F16 or F32
  std::int64_t stride = 0;
  int rows = 0;                // 1..16
  std::int64_t inputs = 0;     // K
};

// Rows of codes as a converted folder stores them, `stride` bytes apart, no alignment promised.
struct StoredCodes {
  const void* data = nullptr;
  std::int64_t stride = 0;
  int rows = 0;                // 1..16
  std::int64_t inputs = 0;     // K
};

// Each fills lanes [lane, lane + rows) of one panel, padding past K included, and touches no byte of other lanes
// (so threads may fill lanes of one panel at once). Returns -1, or row * K + k of the first NaN or infinity (the panel is then unspecified).
struct LoadKernels {
  std::int64_t (*pack_f32)(const SourceRows& source, int lane, float* panel);
  std::int64_t (*pack_bf16)(const SourceRows& source, int lane, std::uint16_t* panel);  // source BF16 only
  // Symmetric int8 per channel: scale = fl32(absmax / 127); r = fl32(w / scale); q = clamp(trunc(r + copysign(0.5, r)), -127, 127).
  // IEEE division, no reciprocal: equal codes on every ISA. absmax 0 (or so small that the scale underflows): scale 0, q 0. scales: [16], entries of these lanes are written.
  // absmax: nullptr, or [rows] the rows' absmax over all ranks.
  std::int64_t (*quantize_u8)(const SourceRows& source, int lane, const float* absmax, std::uint8_t* panel, float* scales);
  // The same with bound 7, per channel (group 0) or per group of consecutive inputs, the last one ragged. scales: f32 [groups][16],
  // unrounded; rounding them to FP16 for storage is the caller's. absmax: nullptr, or [rows][groups].
  std::int64_t (*quantize_u4)(const SourceRows& source, int lane, std::int64_t group, const float* absmax, std::uint8_t* panel, float* scales);
  // Stored codes into a panel of u8 or u4. u8: K bytes a row, q. u4: ceil(K / 8) words of 32 bits a row, eight 4-bit codes each, the first lowest, as the panel has them.
  // false: a code -128 (u8), or a 4-bit code 0 (u4): whoever has no such code must look where it is.
  bool (*unpack_u8)(const StoredCodes& source, int lane, std::uint8_t* panel);
  bool (*unpack_u4)(const StoredCodes& source, int lane, std::uint8_t* panel);
};

// ---------------------------------------------------------------- matrix products
// y [T, ldy] f32, columns [16 * panel_begin, 16 * panel_end) written (ldy >= 16 * panels: padding lanes are written too) = x [T, K] . W^T
//
// Int8 activations are two int8 planes a token (15 bits): scale = fl32(absmax / 16256); q = clamp(round-half-away(fl32(x / scale)), +-16256)
// with the rule of quantize_u8; high = (q + 64) >> 7 (in [-127, 127]); low = q - 128 * high (in [-64, 63]). absmax 0: all zero.
// Their memory is opaque: int8_bytes() of it, 64-byte aligned, filled by quantize_int8 and read by the *_int8 products. It also carries
// per-token, per-group sums of both planes, so that the codes' zero point costs nothing.
//
// Prompt activations (`grouped`), for many tokens: integers q with one scale a token. Nearly all fit one byte; the few values that stand out of
// their token have 16 bits, q = 256 * high + low with low in [-128, 127], and a product takes a second step for these alone. Per token, a its absmax:
//   rms(v): s[i] = 0, s[i] = fma(v[k], v[k], s[i]) for k ascending, i = k modulo 16; fl(sqrt(fl((s[0] + ... + s[15], in this order) / K)));
//   r = rms(x); with b = fl(kOutlierRms * r), r = rms(min(|x|, b)): few huge values alone do not set the scale;
//   limit = fl(kOneByteRms * r);  top = max(min(a, limit), fl(a / 255)), the value of code 127;
//   scale = fl(top / 127);  q = nearest-even(fl(x * fl(127 / top))), |q| <= 127 * 255.   a < 2^-100: scale 0, q 0.
// x must be finite; else the token's y is unspecified. K < 100000 (sums fit int32); groups of weights are multiples of 8 up to kMostGroup.
inline constexpr std::int64_t kMostGroup = 512;
inline constexpr std::int64_t kPromptBlock = 1024;  // inputs that pass at once: 32 KB of bytes of two panels stay in the first-level cache
inline constexpr float kOneByteRms = 3.25f;
inline constexpr float kOutlierRms = 16.0f;

struct LinearKernels {
  void (*gemm_f32)(const Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  void (*gemm_bf16)(const Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  // x BF16: products exact, sums FP32; with BF16 dot instructions pairs (k, k+1) are summed at once and subnormals are flushed.
  // |error| <= 8 * K * 2^-24 * sum|w*x| + K * 2^-126.
  void (*gemm_bf16_bf16)(const Weight& w, const std::uint16_t* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  // y = sum over groups of scale_g * (sum over k of q * x): the reference arithmetic of quantized weights. Per group (a channel is one)
  // sum = 0, sum = fma(q, x, sum) for k ascending; acc = 0, acc = fma(sum, scale_g, acc) for g ascending.
  void (*gemm_u8)(const Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  void (*gemm_u4)(const Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);

  // Bytes for `tokens` tokens of K inputs, to be multiplied with weights of group `group` (0: per channel).
  std::size_t (*int8_bytes)(std::int64_t tokens, std::int64_t inputs, std::int64_t group);
  // Quantizes tokens [begin, end) of x into `out`; begin % 16 == 0, and end % 16 == 0 or end == tokens. Ranges may run on different threads.
  void (*quantize_int8)(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t group, std::int64_t begin, std::int64_t end, void* out);
  // Per group (or once for the whole row): h = sum code * high - zero * sum high (int32, exact), l likewise; v = fma(128, float(h), float(l)).
  // Per channel: y = fl(v * fl(scale_w * scale_x)). Groups: acc = 0, then acc = fma(v, scale_g, acc) for g ascending (scale_g widened from FP16); y = fl(acc * scale_x).
  void (*gemm_u8_int8)(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  void (*gemm_u4_int8)(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);

  // The same three for prompt activations. Ranges of quantize_grouped as those of quantize_int8.
  // v = sum of (code - zero) * q (int32, exact), per channel over all K, else per group. Per channel: y = fl(float(v) * fl(scale_w * scale_x)).
  // Groups: acc = 0, then acc = fma(float(v), scale_g, acc) for g ascending; y = fl(acc * scale_x).
  std::size_t (*grouped_bytes)(std::int64_t tokens, std::int64_t inputs, std::int64_t group);
  void (*quantize_grouped)(const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t inputs, std::int64_t group, std::int64_t begin, std::int64_t end, void* out);
  void (*gemm_u8_grouped)(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);
  void (*gemm_u4_grouped)(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy);

  // Prompt tokens that several products take, each beside others: a token is quantized by itself, into token_bytes() bytes at a multiple of 64 bytes, and copied.
  std::size_t (*token_bytes)(std::int64_t inputs, std::int64_t group);
  void (*quantize_token)(const float* x, std::int64_t inputs, std::int64_t group, void* token);
  // The same memory as quantize_grouped of `count` rows makes of [begin, end), ranges as there: row r is the token rows[r] of those `stride` bytes apart.
  void (*gather_grouped)(const void* tokens, std::int64_t stride, std::int64_t inputs, std::int64_t group, const std::int32_t* rows, std::int64_t count, std::int64_t begin,
                         std::int64_t end, void* out);
};

// ---------------------------------------------------------------- everything between the products
// The KV cache of one KV head holds blocks of `block_size` tokens (a multiple of 16), keys and values apart:
//   keys    f32 [block_size/16][D][16]    bf16 [block_size/16][D/2][16][2]    (16 tokens are the lanes, as rows are in a weight panel)
//   values  f32 or bf16 [block_size][D]
// Block b of a sequence is at base + block_table[b] * block_stride bytes.
struct AttendArgs {
  const float* q = nullptr;  // [tokens, G, D], tokens q_stride floats apart; rotary applied
  std::int64_t heads = 0;    // G
  std::int64_t head_dim = 0; // D, even
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  std::int64_t block_stride = 0;
  const std::int32_t* block_table = nullptr;
  std::int64_t block_size = 0;
  std::int64_t begin = 0;    // the first token sees the keys begin <= j < end
  std::int64_t end = 0;
  std::int64_t tokens = 1;   // consecutive tokens of one sequence: token t sees the keys before end + t,
  std::int64_t window = 0;   // and of those, if this is above 0, the last `window` alone
  std::int64_t q_stride = 0;
  std::int64_t out_stride = 0;
  float scale = 1;           // on q . k
  bool cold = true;          // keys and values lie in memory, not in this core's caches (decode): fetch them ahead. Speed alone depends on it
  float* out = nullptr;      // [tokens, G, D], tokens out_stride floats apart
  float* scratch = nullptr;  // attend_scratch(tokens * G, D) floats
};

struct VectorKernels {
  // y[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * weight[i]; the sum in a fixed order. y may be x.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t n, float eps, float* y);
  void (*add)(float* y, const float* x, std::int64_t n);                                      // y += x
  void (*add_scaled)(float* y, const float* x, float factor, std::int64_t n);                 // y = fma(factor, x, y)
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* y);             // y = gate / (1 + exp(-gate)) * up; y may be gate
  // Rotary embedding in place on `heads` heads of D floats: with h = rotary_dim / 2, (x[i], x[i + h]) <- (x[i] cos[i] - x[i + h] sin[i], x[i + h] cos[i] + x[i] sin[i]).
  void (*rope_half)(float* x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, const float* cos, const float* sin);
  // The same on neighbours: (x[2i], x[2i + 1]) <- (x[2i] cos[i] - x[2i + 1] sin[i], x[2i + 1] cos[i] + x[2i] sin[i]), 2i < rotary_dim.
  void (*rope_pairs)(float* x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, const float* cos, const float* sin);
  void (*to_bf16)(const float* x, std::int64_t n, std::uint16_t* y);                          // nearest even
  void (*round_bf16)(const float* x, std::int64_t n, float* y);                               // to BF16 and back; y may be x
  // Writes one token's key and value [D] into `slot` of one block of one KV head.
  void (*store_kv_f32)(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block);
  void (*store_kv_bf16)(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block);
  // out = softmax(scale * q . keys) . values for G heads of each token, in tiles of 64 keys aligned to absolute positions (tile t: keys 64t to 64t + 63,
  // in whatever blocks they lie), ascending, with a running maximum: a head's bits depend on its q, the visible keys and values, begin, end and scale alone
  // (while the values that later tokens of the call see are finite).
  // Slots and block table entries of keys outside [begin, end) may hold anything. |error| <= 2e-6 * max|value| against exact arithmetic on the stored
  // K and V while |score| <= 16; a larger score adds its own rounding, |score| * 2^-22, to the weights. Sums are FP32: (end - begin) * max|value| < 3e38.
  std::int64_t (*attend_scratch)(std::int64_t rows, std::int64_t head_dim);
  void (*attend_f32)(const AttendArgs& args);
  void (*attend_bf16)(const AttendArgs& args);
  // The same in BF16 arithmetic, for prompts: scale * log2(e) * q is rounded to BF16, and so is every weight 2^(score - running maximum); products are exact and
  // summed by BF16 dot instructions, the sum of weights is that of the rounded ones. |error| <= 2^-7 * max|value| against the softmax of the rounded q.
  // nullptr where the ISA has no such instructions.
  void (*attend_bf16_dot)(const AttendArgs& args);
  // Index of the largest x (the first of equals), or -1 if any x is NaN or infinite.
  std::int64_t (*argmax)(const float* x, std::int64_t n);
  double (*log_sum_exp)(const float* x, std::int64_t n);                                      // max-shifted, summed in FP64 per lane group
};

// ---------------------------------------------------------------- what this CPU can do at most, for `bench`
struct RooflineKernels {
  std::uint64_t (*read)(const void* data, std::size_t bytes);  // loads every byte once (64-byte aligned, multiple of 1024); the value keeps it alive
  // Register-resident dot products for `iterations` rounds; return the operations done (a multiply-add counts two).
  double (*int8)(std::int64_t iterations);
  double (*bf16)(std::int64_t iterations);
  double (*fp32)(std::int64_t iterations);
};

// isa/<name>/table.cc defines `table_<name>`; a stronger ISA may point at a weaker one's sub-table.
struct Lut4Kernels;
struct LatentKernels;
struct OffsetKernels;
struct Fp8Kernels;
struct Fp8AttentionKernels;
struct Kernels {
  const char* isa;
  const LoadKernels* load;
  const LinearKernels* linear;
  const VectorKernels* vector;
  const RooflineKernels* roofline;
  const Lut4Kernels* lut4;      // kernels/lut4.h
  const LatentKernels* latent;  // kernels/latent.h
  const OffsetKernels* offsets;  // kernels/offsets.h
  const Fp8Kernels* fp8;        // kernels/fp8.h
  const Fp8AttentionKernels* fp8_attention;  // kernels/attention_fp8.h
};

}  // namespace inflight::kernels
