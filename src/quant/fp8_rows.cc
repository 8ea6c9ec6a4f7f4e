#include "quant/fp8_rows.h"

#include <algorithm>

#include "base/bf16.h"
#include "kernels/fp8.h"
#include "quant/fp8_formats.h"

namespace inflight::quant {
namespace {

constexpr std::int64_t kPanel = kPanelRows;
constexpr float kLeastAbsmax = 1e-8f;  // FastDeploy's

std::int64_t pieces(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

}  // namespace

Fp8Rows quantize_rows(const Matrix& matrix, std::int64_t first, std::int64_t rows, const Fp8Rule& rule, const Kernels& kernels, ThreadPool& pool) {
  const std::int64_t inputs = matrix.inputs, group = rule.scales == Fp8Rule::Scales::kBlocks ? kFp8Block : 0, groups = group == 0 ? 1 : pieces(inputs, group);
  const std::int64_t together = rule.scales == Fp8Rule::Scales::kMatrix ? rows : rule.scales == Fp8Rule::Scales::kOutput ? 1 : kFp8Block;  // rows that share scales
  // visit(row, n, numbers): up to 16 rows [n][inputs] from `row` on, on any thread.
  const auto each_panel = [&](const auto& visit) {
    pool.parallel_for(pieces(rows, kPanel), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> numbers(static_cast<std::size_t>(kPanel * inputs));
      for (std::int64_t panel = begin; panel < end; ++panel) {
        const std::int64_t row = panel * kPanel, n = std::min(kPanel, rows - row);
        for (std::int64_t r = 0; r < n; ++r) matrix.format->dequantize(matrix, first + row + r, numbers.data() + r * inputs);
        visit(row, SourceRows{.data = numbers.data(), .dtype = DType::kF32, .stride = inputs, .rows = static_cast<int>(n), .inputs = inputs});
      }
    });
  };
  std::vector<float> most(static_cast<std::size_t>(rows * groups));
  each_panel([&](std::int64_t row, const SourceRows& source) { kernels.fp8->absmax(source, group, most.data() + row * groups); });

  Fp8Rows result;
  result.scales.assign(static_cast<std::size_t>(pieces(rows, std::max<std::int64_t>(together, 1)) * groups), 0.0f);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g) {
      float& scale = result.scales[static_cast<std::size_t>(row / together * groups + g)];
      scale = std::max(scale, most[static_cast<std::size_t>(row * groups + g)]);
    }
  for (float& scale : result.scales) scale = rule.bf16_scales ? bf16_to_float(float_to_bf16(std::max(scale, kLeastAbsmax) / rule.bound)) : scale / rule.bound;

  result.codes.resize(static_cast<std::size_t>(rows * inputs));
  if (rule.factor) {
    constexpr std::int64_t kRows = RoundingFactor::kRows;
    pool.parallel_for(pieces(rows, kRows), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> numbers(static_cast<std::size_t>(kRows * inputs));
      std::vector<std::uint8_t> codes(numbers.size());
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t row = piece * kRows, n = std::min(kRows, rows - row);
        float scales[kRows];
        for (std::int64_t r = 0; r < n; ++r) {
          matrix.format->dequantize(matrix, first + row + r, numbers.data() + r * inputs);
          scales[r] = result.scales[static_cast<std::size_t>((row + r) / together)];
        }
        rule.factor->round(numbers.data(), static_cast<int>(n), scales, rule.bound, kernels, codes.data());
        for (std::int64_t r = 0; r < n; ++r)
          for (std::int64_t k = 0; k < inputs; ++k) result.codes[static_cast<std::size_t>(rule.transposed ? k * rows + row + r : (row + r) * inputs + k)] = codes[static_cast<std::size_t>(r * inputs + k)];
      }
    });
    return result;
  }
  each_panel([&](std::int64_t row, const SourceRows& source) {
    std::vector<float> scales(static_cast<std::size_t>(groups * kPanel));
    std::vector<std::uint8_t> panel(static_cast<std::size_t>(kernels::e4m3_panel_bytes(inputs)));
    for (int r = 0; r < source.rows; ++r)
      for (std::int64_t g = 0; g < groups; ++g) scales[static_cast<std::size_t>(g * kPanel + r)] = result.scales[static_cast<std::size_t>((row + r) / together * groups + g)];
    kernels.fp8->quantize(source, 0, group, scales.data(), panel.data());
    for (std::int64_t k = 0; k < inputs; ++k)
      for (std::int64_t r = 0; r < source.rows; ++r)
        result.codes[static_cast<std::size_t>(rule.transposed ? k * rows + row + r : (row + r) * inputs + k)] = panel[static_cast<std::size_t>(kernels::e4m3_place(k, r))];
  });
  return result;
}

}  // namespace inflight::quant
