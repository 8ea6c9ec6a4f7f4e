#include "quant/derive.h"

#include <algorithm>
#include <vector>

namespace inflight::quant {
namespace {

// Rows [0, count) of x [count, inputs] into the matrix, from output `row` on, which begins a panel.
bool store_rows(const Kernels& kernels, const float* x, std::int64_t count, std::int64_t inputs, std::int64_t row, std::vector<std::uint16_t>& narrow, Matrix& out) {
  const bool wide = out.format->codes == Codes::kF32;
  if (!wide) {
    narrow.resize(static_cast<std::size_t>(count * inputs));
    kernels.vector->to_bf16(x, count * inputs, narrow.data());
  }
  for (std::int64_t done = 0; done < count; done += kPanelRows) {
    const SourceRows rows{.data = wide ? static_cast<const void*>(x + done * inputs) : narrow.data() + done * inputs, .dtype = wide ? DType::kF32 : DType::kBF16, .stride = inputs,
                          .rows = static_cast<int>(std::min(kPanelRows, count - done)), .inputs = inputs};
    if (out.format->store(kernels, rows, row + done, out) >= 0) return false;
  }
  return true;
}

}  // namespace

bool derive(const Kernels& kernels, const Matrix& source, const params::Derivation& how, Matrix& out) {
  const std::int64_t width = source.inputs, units = source.outputs / how.unit;
  const std::int64_t step = how.transposed ? width : (how.rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  std::vector<float> taken(static_cast<std::size_t>(std::max(how.rows, kPanelRows) * width)), turned(static_cast<std::size_t>(how.transposed ? how.rows * width : 0));
  std::vector<std::uint16_t> narrow;
  for (std::int64_t u = 0; u < units; ++u) {
    for (std::int64_t n = 0; n < how.rows; ++n) source.format->dequantize(source, u * how.unit + how.first + n, taken.data() + n * width);
    const float* x = taken.data();
    if (how.transposed) {
      for (std::int64_t n = 0; n < how.rows; n += kPanelRows)  // a few columns at a time, so that written lines stay in cache
        for (std::int64_t k = 0; k < width; ++k)
          for (std::int64_t i = n; i < std::min(n + kPanelRows, how.rows); ++i) turned[static_cast<std::size_t>(k * how.rows + i)] = taken[static_cast<std::size_t>(i * width + k)];
      x = turned.data();
    }
    if (!store_rows(kernels, x, how.transposed ? width : how.rows, how.transposed ? how.rows : width, u * step, narrow, out)) return false;
  }
  return true;
}

std::int64_t derive_bytes(std::int64_t source_inputs, const params::Derivation& how) { return how.rows * source_inputs * (how.transposed ? 10 : 6); }

}  // namespace inflight::quant
