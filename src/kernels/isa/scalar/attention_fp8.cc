// The specification of attention_fp8.h, one row and one key at a time. Sums of attend_e4m3 in FP64; scores of attend_e4m3_full in FP32, as every ISA sums them.
#include "kernels/attention_fp8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/e4m3.h"
#include "kernels/fp8.h"

namespace inflight::kernels {
namespace {

void store_kv(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block, float inverse_k, float inverse_v, float bound) {
  auto* keys = static_cast<std::uint8_t*>(key_block) + slot / 16 * head_dim * 16;
  auto* values = static_cast<std::uint8_t*>(value_block) + slot * head_dim;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    keys[e4m3_place(d, slot % 16)] = float_to_e4m3(k[d] * inverse_k, bound);
    values[d] = float_to_e4m3(v[d] * inverse_v, bound);
  }
}

// Room for D doubles (the weighted sum) and, behind them, q's numbers.
std::int64_t scratch(std::int64_t, std::int64_t head_dim) { return 3 * head_dim; }

const std::uint8_t* block_of(const AttendArgs& args, const std::byte* base, std::int64_t position) {
  return reinterpret_cast<const std::uint8_t*>(base + args.block_table[position / args.block_size] * args.block_stride);
}
float key(const AttendArgs& args, std::int64_t position, std::int64_t d) {
  const std::int64_t slot = position % args.block_size;
  return e4m3_to_float(block_of(args, args.keys, position)[slot / 16 * args.head_dim * 16 + e4m3_place(d, slot % 16)]);
}
float value(const AttendArgs& args, std::int64_t position, std::int64_t d) {
  return e4m3_to_float(block_of(args, args.values, position)[position % args.block_size * args.head_dim + d]);
}

// out [D] = sum of weight(key) * value, times `factor`, divided by `total`; FP64 [D] in the scratch, which is aligned for float only.
class WeightedSum {
 public:
  explicit WeightedSum(const AttendArgs& args) : args_(args) { std::memset(args.scratch, 0, static_cast<std::size_t>(args.head_dim) * sizeof(double)); }
  void add(std::int64_t position, double weight) {
    for (std::int64_t d = 0; d < args_.head_dim; ++d) {
      const double sum = at(d) + weight * value(args_, position, d);
      std::memcpy(args_.scratch + 2 * d, &sum, sizeof sum);
    }
  }
  double at(std::int64_t d) const {
    double sum;
    std::memcpy(&sum, args_.scratch + 2 * d, sizeof sum);
    return sum;
  }

 private:
  const AttendArgs& args_;
};

// Row by row: body(the head's q, begin, end, out).
template <class Body>
void for_rows(const AttendArgs& args, Body&& body) {
  for (std::int64_t t = 0; t < args.tokens; ++t)
    for (std::int64_t head = 0; head < args.heads; ++head) {
      const std::int64_t end = args.end + t, begin = args.window > 0 ? std::max(args.begin, end - args.window) : args.begin;
      body(args.q + t * args.q_stride + head * args.head_dim, begin, end, args.out + t * args.out_stride + head * args.head_dim);
    }
}

void attend(const Fp8AttendArgs& given) {
  const AttendArgs& args = given.attend;
  const float scale = args.scale * given.scale_k;
  for_rows(args, [&](const float* q, std::int64_t begin, std::int64_t end, float* out) {
    const auto score = [&](std::int64_t position) {
      double dot = 0;
      for (std::int64_t d = 0; d < args.head_dim; ++d) dot += static_cast<double>(q[d]) * key(args, position, d);
      return dot * scale;
    };
    double max = -std::numeric_limits<double>::infinity(), total = 0;
    for (std::int64_t j = begin; j < end; ++j) max = std::fmax(max, score(j));
    WeightedSum sum(args);
    for (std::int64_t j = begin; j < end; ++j) {
      const double weight = std::exp(score(j) - max);
      total += weight;
      sum.add(j, weight);
    }
    for (std::int64_t d = 0; d < args.head_dim; ++d) out[d] = static_cast<float>(sum.at(d) / total * given.scale_v);
  });
}

void attend_full(const Fp8AttendArgs& given) {
  const AttendArgs& args = given.attend;
  const float scale = args.scale * given.scale_q * given.scale_k;
  float* q8 = args.scratch + 2 * args.head_dim;
  for_rows(args, [&](const float* q, std::int64_t begin, std::int64_t end, float* out) {
    for (std::int64_t d = 0; d < args.head_dim; ++d) q8[d] = e4m3_to_float(float_to_e4m3(q[d] * given.inverse_q, given.bound));
    const auto score = [&](std::int64_t position) {  // even and odd d apart
      float even = 0, odd = 0;
      for (std::int64_t d = 0; d < args.head_dim; d += 2) {
        even = std::fma(q8[d], key(args, position, d), even);
        odd = std::fma(q8[d + 1], key(args, position, d + 1), odd);
      }
      return (even + odd) * scale;
    };
    float max = -std::numeric_limits<float>::infinity();
    double total = 0;
    for (std::int64_t j = begin; j < end; ++j) max = std::fmax(max, score(j));
    WeightedSum sum(args);
    for (std::int64_t j = begin; j < end; ++j) {
      const float weight = std::exp(score(j) - max);
      total += weight;
      sum.add(j, e4m3_to_float(float_to_e4m3(weight * given.bound, given.bound)));
    }
    for (std::int64_t d = 0; d < args.head_dim; ++d) out[d] = static_cast<float>(sum.at(d) / given.bound * given.scale_v / total);
  });
}

}  // namespace

extern const Fp8AttentionKernels fp8_attention_scalar;
const Fp8AttentionKernels fp8_attention_scalar{.store_kv_e4m3 = store_kv, .scratch = scratch, .attend_e4m3 = attend, .attend_e4m3_dot = nullptr, .attend_e4m3_full = attend_full};

}  // namespace inflight::kernels
