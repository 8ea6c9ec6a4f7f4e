#include "quant/compensated_rounding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/e4m3.h"
#include "kernels/kernels.h"

namespace inflight::quant {
namespace {

using kernels::kPanelRows;

constexpr std::int64_t kWidth = 64;  // columns of the factor that are made together, four panels
constexpr std::int64_t kGrain = 32;  // rows that a task takes
constexpr float kMostDamping = 1e3f;

// The lower triangle of a [n][n] becomes L of L L^T. false: it is not positive definite.
bool cholesky(float* a, std::int64_t n, const Kernels& kernels, ThreadPool& pool) {
  Result<Buffer> memory = Buffer::heap(static_cast<std::size_t>(kWidth * n) * sizeof(float));
  if (!memory) return false;
  auto* packed = reinterpret_cast<float*>(memory->data());
  for (std::int64_t j = 0; j < n; j += kWidth) {
    const std::int64_t width = std::min(kWidth, n - j), panels = (width + kPanelRows - 1) / kPanelRows;
    if (j > 0) {  // a[j:, j:j+width] -= L[j:, :j] L[j:j+width, :j]^T
      for (std::int64_t c = 0; c < panels * kPanelRows; ++c)
        for (std::int64_t k = 0; k < j; ++k) packed[(c / kPanelRows * j + k) * kPanelRows + c % kPanelRows] = c < width ? a[(j + c) * n + k] : 0;
      const kernels::Weight weight{.codes = packed, .outputs = width, .inputs = j};
      pool.parallel_for(n - j, kGrain, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> products(static_cast<std::size_t>((end - begin) * panels * kPanelRows));
        kernels.linear->gemm_f32(weight, a + (j + begin) * n, n, end - begin, 0, panels, products.data(), panels * kPanelRows);
        for (std::int64_t r = begin; r < end; ++r)
          for (std::int64_t c = 0; c < std::min(width, r + 1); ++c) a[(j + r) * n + j + c] -= products[static_cast<std::size_t>((r - begin) * panels * kPanelRows + c)];
      });
    }
    for (std::int64_t r = j; r < j + width; ++r) {
      for (std::int64_t c = j; c <= r; ++c) {
        double sum = static_cast<double>(a[r * n + c]);
        for (std::int64_t k = j; k < c; ++k) sum -= static_cast<double>(a[r * n + k]) * static_cast<double>(a[c * n + k]);
        if (c == r && !(sum > 0)) return false;
        a[r * n + c] = static_cast<float>(c == r ? std::sqrt(sum) : sum / static_cast<double>(a[c * n + c]));
      }
    }
    const std::int64_t below = n - j - width;
    pool.parallel_for(below, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        float* row = a + (j + width + r) * n + j;
        for (std::int64_t c = 0; c < width; ++c) {
          const float* l = a + (j + c) * n + j;
          float sum = row[c];
          for (std::int64_t k = 0; k < c; ++k) sum -= row[k] * l[k];
          row[c] = sum / l[c];
        }
      }
    });
  }
  return true;
}

}  // namespace

Result<RoundingFactor> RoundingFactor::create(const SecondMoments& moments, float damping, const Kernels& kernels, ThreadPool& pool) {
  RoundingFactor factor;
  factor.inputs_ = moments.inputs();
  for (const SecondMoments::Block& from : moments.blocks()) {
    const std::int64_t n = from.inputs;
    Block block{.first = from.first, .inputs = n, .order = std::vector<std::int32_t>(static_cast<std::size_t>(n)), .lower = {}};
    const auto diagonal = [&](std::int64_t k) { return from.sums[k * n + k]; };
    std::iota(block.order.begin(), block.order.end(), 0);
    std::ranges::sort(block.order, {}, [&](std::int32_t k) { return std::pair(diagonal(k), k); });
    Buffer square = TRY(Buffer::map(static_cast<std::size_t>(n * n) * sizeof(float)));
    auto* a = reinterpret_cast<float*>(square.data());
    // Sums in FP32 of few tokens may need more damping; what nothing helps (sums that overflowed) is rounded to the nearest.
    bool whole = false;
    for (float part = damping; !whole; part *= 10) {
      const bool alone = !(part < kMostDamping);
      pool.parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          for (std::int64_t j = 0; j <= i; ++j) {
            const std::int64_t k = block.order[static_cast<std::size_t>(i)], l = block.order[static_cast<std::size_t>(j)];
            const float sum = from.sums[std::max(k, l) * n + std::min(k, l)];
            a[i * n + j] = i != j ? alone ? 0 : sum : sum > 0 && !alone ? sum * (1 + part) : 1;
          }
      });
      whole = cholesky(a, n, kernels, pool);
    }
    const std::int64_t panels = (n + kPanelRows - 1) / kPanelRows;
    block.lower = TRY(Buffer::map(static_cast<std::size_t>(panels * n * kPanelRows) * sizeof(float)));
    auto* lower = reinterpret_cast<float*>(block.lower.data());
    pool.parallel_for(panels, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t panel = begin; panel < end; ++panel)
        for (std::int64_t i = panel * kPanelRows; i < n; ++i)
          for (std::int64_t lane = 0; lane < std::min(kPanelRows, i - panel * kPanelRows + 1); ++lane) lower[(panel * n + i) * kPanelRows + lane] = a[i * n + panel * kPanelRows + lane];
    });
    factor.blocks_.push_back(std::move(block));
  }
  return factor;
}

void RoundingFactor::round(const float* w, int count, const float* scales, float bound, const Kernels& kernels, std::uint8_t* codes) const {
  std::vector<float> errors;                  // of each row: w - q by place, as far as it is rounded
  std::vector<float> wanted(kRows * static_cast<std::size_t>(kPanelRows));  // sum of errors * L, of one panel
  for (const Block& block : blocks_) {
    const std::int64_t n = block.inputs, panels = (n + kPanelRows - 1) / kPanelRows;
    const auto* lower = reinterpret_cast<const float*>(block.lower.data());
    errors.assign(static_cast<std::size_t>(count * n), 0.0f);
    for (std::int64_t panel = panels - 1; panel >= 0; --panel) {
      const std::int64_t begin = panel * kPanelRows, end = std::min(begin + kPanelRows, n);
      const float* l = lower + panel * n * kPanelRows;  // row i of the panel at l + i * 16
      std::ranges::fill(wanted, 0.0f);
      if (end < n) {
        const kernels::Weight weight{.codes = l + end * kPanelRows, .outputs = kPanelRows, .inputs = n - end};
        kernels.linear->gemm_f32(weight, errors.data() + end, n, count, 0, 1, wanted.data(), kPanelRows);
      }
      for (int r = 0; r < count; ++r) {
        float* sums = wanted.data() + r * kPanelRows;
        for (std::int64_t j = end - 1; j >= begin; --j) {
          const std::int64_t input = block.first + block.order[static_cast<std::size_t>(j)];
          const float weight = w[r * inputs_ + input], target = weight + sums[j - begin] / l[j * kPanelRows + j - begin];
          const std::uint8_t code = scales[r] > 0 ? float_to_e4m3(target / scales[r], bound) : std::uint8_t{0};
          const float error = weight - e4m3_to_float(code) * scales[r];
          codes[r * inputs_ + input] = code;
          errors[static_cast<std::size_t>(r * n + j)] = error;
          for (std::int64_t k = 0; k < j - begin; ++k) sums[k] += error * l[j * kPanelRows + k];
        }
      }
    }
  }
}

double rounding_error(const SecondMoments& moments, const float* w, const float* q) {
  double sum = 0;
  for (const SecondMoments::Block& block : moments.blocks())
    for (std::int64_t i = 0; i < block.inputs; ++i) {
      const auto error = [&](std::int64_t k) { return static_cast<double>(w[block.first + k]) - static_cast<double>(q[block.first + k]); };
      double row = 0;
      for (std::int64_t j = 0; j < i; ++j) row += 2 * error(j) * static_cast<double>(block.sums[i * block.inputs + j]);
      sum += error(i) * (row + error(i) * static_cast<double>(block.sums[i * block.inputs + i]));
    }
  return sum;
}

}  // namespace inflight::quant
