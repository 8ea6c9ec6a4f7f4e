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

}  // namespace

extern const LatentKernels latent_scalar;
const LatentKernels latent_scalar = {.scratch = scratch, .attend_f32 = attend<float>, .attend_bf16 = attend<std::uint16_t>, .attend_bf16_dot = nullptr};

}  // namespace inflight::kernels
