// Scalar: the specification of attention over latents. Plain loops, sums in FP64.
#include "kernels/latent.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {

double decode(float stored) { return stored; }
double decode(std::uint16_t stored) { return bf16_to_float(stored); }

template <class Stored>
const Stored* row_at(const LatentArgs& args, std::int64_t position) {
  return reinterpret_cast<const Stored*>(args.latents + args.block_table[position / args.block_size] * args.block_stride) + position % args.block_size * args.dim;
}

template <class Stored>
double score(const LatentArgs& args, const float* q, std::int64_t position) {
  const Stored* row = row_at<Stored>(args, position);
  double dot = 0;
  for (std::int64_t d = 0; d < args.dim; ++d) dot += q[d] * decode(row[d]);
  return dot * args.scale;
}

std::int64_t scratch(std::int64_t, std::int64_t, std::int64_t, std::int64_t value_dim) { return 2 * value_dim; }

template <class Stored>
void attend(const LatentArgs& args) {
  for (std::int64_t t = 0; t < args.tokens; ++t)
    for (std::int64_t h = 0; h < args.heads; ++h) {
      const float* q = args.q + t * args.q_stride + h * args.dim;
      const std::int64_t end = args.end + t;
      double max = -std::numeric_limits<double>::infinity();
      for (std::int64_t j = args.begin; j < end; ++j) max = std::fmax(max, score<Stored>(args, q, j));

      // The weighted sum, FP64 [R], lives in the scratch, which is aligned for float only.
      const auto sum_of = [&](std::int64_t d) {
        double sum;
        std::memcpy(&sum, args.scratch + 2 * d, sizeof sum);
        return sum;
      };
      std::memset(args.scratch, 0, static_cast<std::size_t>(args.value_dim) * sizeof(double));
      double total = 0;
      for (std::int64_t j = args.begin; j < end; ++j) {
        const double weight = std::exp(score<Stored>(args, q, j) - max);
        const Stored* row = row_at<Stored>(args, j);
        total += weight;
        for (std::int64_t d = 0; d < args.value_dim; ++d) {
          const double sum = sum_of(d) + weight * decode(row[d]);
          std::memcpy(args.scratch + 2 * d, &sum, sizeof sum);
        }
      }
      for (std::int64_t d = 0; d < args.value_dim; ++d) args.out[t * args.out_stride + h * args.value_dim + d] = static_cast<float>(sum_of(d) / total);
      if (args.maxima) args.maxima[t * args.heads + h] = static_cast<float>(max);
      if (args.sums) args.sums[t * args.heads + h] = static_cast<float>(total);
    }
}

double weight_at(const void* codes, bool wide, std::int64_t inputs, std::int64_t output, std::int64_t input) {
  const std::int64_t panel = output / kPanelRows * kPanelRows, lane = output % kPanelRows;
  if (wide) return static_cast<const float*>(codes)[panel * inputs + input * kPanelRows + lane];
  return bf16_to_float(static_cast<const std::uint16_t*>(codes)[panel * ((inputs + 1) / 2 * 2) + (input / 2 * kPanelRows + lane) * 2 + input % 2]);
}

// The weighted sum, FP64 [V], in a scratch that is aligned for float only.
std::int64_t expand_scratch(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t value_dim) { return 2 * value_dim; }

template <class Stored>
void expand(const ExpandArgs& args) {
  const std::int64_t dim = args.rank + args.rope_dim;
  const auto row_at = [&](std::int64_t j) {
    return reinterpret_cast<const Stored*>(args.latents + args.block_table[j / args.block_size] * args.block_stride) + j % args.block_size * dim;
  };
  const auto get = [&](std::int64_t i) {
    double x;
    std::memcpy(&x, args.scratch + 2 * i, sizeof x);
    return x;
  };
  const auto put = [&](std::int64_t i, double x) { std::memcpy(args.scratch + 2 * i, &x, sizeof x); };
  std::int64_t last = args.end + args.tokens - 1;
  for (std::int64_t t = args.tokens - 1; t >= 0; --t, --last) {
    const float* q = args.q + t * args.q_stride;
    double max = -std::numeric_limits<double>::infinity(), total = 0;
    for (std::int64_t d = 0; d < args.value_dim; ++d) put(d, 0);
    for (std::int64_t j = 0; j < last; ++j) {
      const Stored* row = row_at(j);
      double score = 0;
      for (std::int64_t n = 0; n < args.nope_dim; ++n) {
        double key = 0;
        for (std::int64_t r = 0; r < args.rank; ++r) key += weight_at(args.k_b, args.wide, args.nope_dim, r, n) * decode(row[r]);
        score += q[n] * key;
      }
      for (std::int64_t p = 0; p < args.rope_dim; ++p) score += q[args.nope_dim + p] * decode(row[args.rank + p]);
      score *= args.scale;
      const double new_max = std::fmax(max, score), factor = std::exp(max - new_max), weight = std::exp(score - new_max);
      total = total * factor + weight;
      for (std::int64_t d = 0; d < args.value_dim; ++d) {
        double x = 0;
        for (std::int64_t r = 0; r < args.rank; ++r) x += weight_at(args.v_b, args.wide, args.rank, d, r) * decode(row[r]);
        put(d, get(d) * factor + weight * x);
      }
      max = new_max;
    }
    for (std::int64_t d = 0; d < args.value_dim; ++d) args.out[t * args.out_stride + d] = static_cast<float>(get(d) / total);
  }
}

}  // namespace

extern const LatentKernels latent_scalar;
const LatentKernels latent_scalar = {
    .scratch = scratch, .attend_f32 = attend<float>, .attend_bf16 = attend<std::uint16_t>, .attend_bf16_dot = nullptr,
    .expand_scratch = expand_scratch, .expand_f32 = expand<float>, .expand_bf16 = expand<std::uint16_t>, .expand_bf16_dot = nullptr};

}  // namespace inflight::kernels
