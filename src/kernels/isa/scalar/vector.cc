// Scalar: the specification of the vector kernels. Plain loops, sums in FP64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {

void rms_norm(const float* x, const float* weight, std::int64_t n, float eps, float* y) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const float inverse = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(n) + eps));
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
}

void add(float* y, const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void add_scaled(float* y, const float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::fma(factor, x[i], y[i]);
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
}

void rope_half(float* x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, const float* cos, const float* sin) {
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t head = 0; head < heads; ++head, x += head_dim) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float low = x[i], high = x[i + half];
      x[i] = low * cos[i] - high * sin[i];
      x[i + half] = high * cos[i] + low * sin[i];
    }
  }
}

void rope_pairs(float* x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, const float* cos, const float* sin) {
  for (std::int64_t head = 0; head < heads; ++head, x += head_dim)
    for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
      const float first = x[2 * i], second = x[2 * i + 1];
      x[2 * i] = first * cos[i] - second * sin[i];
      x[2 * i + 1] = second * cos[i] + first * sin[i];
    }
}

void to_bf16(const float* x, std::int64_t n, std::uint16_t* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = float_to_bf16(x[i]);
}

void round_bf16(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = bf16_to_float(float_to_bf16(x[i]));
}

// Position of element d of the key in `slot`, counted in elements from the block's first key.
std::int64_t key_index(float, std::int64_t head_dim, std::int64_t slot, std::int64_t d) {
  return (slot / 16 * head_dim + d) * 16 + slot % 16;
}
std::int64_t key_index(std::uint16_t, std::int64_t head_dim, std::int64_t slot, std::int64_t d) {
  return ((slot / 16 * (head_dim / 2) + d / 2) * 16 + slot % 16) * 2 + d % 2;
}

void encode(float value, float& stored) { stored = value; }
void encode(float value, std::uint16_t& stored) { stored = float_to_bf16(value); }
double decode(float stored) { return stored; }
double decode(std::uint16_t stored) { return bf16_to_float(stored); }

template <class Stored>
void store_kv(const float* k, const float* v, std::int64_t head_dim, std::int64_t slot, void* key_block, void* value_block) {
  Stored* keys = static_cast<Stored*>(key_block);
  Stored* values = static_cast<Stored*>(value_block) + slot * head_dim;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    encode(k[d], keys[key_index(Stored{}, head_dim, slot, d)]);
    encode(v[d], values[d]);
  }
}

template <class Stored>
double score(const AttendArgs& args, const float* q, std::int64_t position) {
  const std::int64_t slot = position % args.block_size;
  const Stored* keys = reinterpret_cast<const Stored*>(args.keys + args.block_table[position / args.block_size] * args.block_stride);
  double dot = 0;
  for (std::int64_t d = 0; d < args.head_dim; ++d) dot += q[d] * decode(keys[key_index(Stored{}, args.head_dim, slot, d)]);
  return dot * args.scale;
}

std::int64_t attend_scratch(std::int64_t, std::int64_t head_dim) { return 2 * head_dim; }

template <class Stored>
void attend_token(const AttendArgs& args) {
  for (std::int64_t head = 0; head < args.heads; ++head) {
    const float* q = args.q + head * args.head_dim;
    double max = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = args.begin; j < args.end; ++j) max = std::fmax(max, score<Stored>(args, q, j));

    // The weighted sum of values, FP64 [D], lives in the scratch, which is aligned for float only.
    const auto sum_of = [&](std::int64_t d) {
      double sum;
      std::memcpy(&sum, args.scratch + 2 * d, sizeof sum);
      return sum;
    };
    std::memset(args.scratch, 0, static_cast<std::size_t>(args.head_dim) * sizeof(double));
    double total = 0;
    for (std::int64_t j = args.begin; j < args.end; ++j) {
      const double weight = std::exp(score<Stored>(args, q, j) - max);
      const Stored* value = reinterpret_cast<const Stored*>(args.values + args.block_table[j / args.block_size] * args.block_stride) + j % args.block_size * args.head_dim;
      total += weight;
      for (std::int64_t d = 0; d < args.head_dim; ++d) {
        const double sum = sum_of(d) + weight * decode(value[d]);
        std::memcpy(args.scratch + 2 * d, &sum, sizeof sum);
      }
    }
    for (std::int64_t d = 0; d < args.head_dim; ++d) args.out[head * args.head_dim + d] = static_cast<float>(sum_of(d) / total);
  }
}

template <class Stored>
void attend(const AttendArgs& args) {
  AttendArgs token = args;
  for (std::int64_t t = 0; t < args.tokens; ++t, ++token.end, token.q += args.q_stride, token.out += args.out_stride) {
    if (args.window > 0) token.begin = std::max(args.begin, token.end - args.window);
    attend_token<Stored>(token);
  }
}

std::int64_t argmax(const float* x, std::int64_t n) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return -1;
    if (best < 0 || x[i] > x[best]) best = i;
  }
  return best;
}

double log_sum_exp(const float* x, std::int64_t n) {
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < n; ++i) max = std::fmax(max, static_cast<double>(x[i]));
  if (std::isinf(max)) return max;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - max);
  return max + std::log(sum);
}

}  // namespace

extern const VectorKernels vector_scalar;
const VectorKernels vector_scalar = {
    .rms_norm = rms_norm,
    .add = add,
    .add_scaled = add_scaled,
    .silu_mul = silu_mul,
    .rope_half = rope_half,
    .rope_pairs = rope_pairs,
    .to_bf16 = to_bf16,
    .round_bf16 = round_bf16,
    .store_kv_f32 = store_kv<float>,
    .store_kv_bf16 = store_kv<std::uint16_t>,
    .attend_scratch = attend_scratch,
    .attend_f32 = attend<float>,
    .attend_bf16 = attend<std::uint16_t>,
    .attend_bf16_dot = nullptr,
    .argmax = argmax,
    .log_sum_exp = log_sum_exp,
};

}  // namespace inflight::kernels
