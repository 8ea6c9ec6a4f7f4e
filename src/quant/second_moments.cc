#include "quant/second_moments.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"

namespace inflight::quant {
namespace {

using kernels::kPanelRows;

constexpr std::int64_t kTile = 96;  // rows of the sums that one task makes

std::int64_t block_size(std::int64_t inputs, std::int64_t most) {
  const std::int64_t blocks = (inputs + most - 1) / most;
  return blocks <= 1 ? inputs : ((inputs + blocks - 1) / blocks + kPanelRows - 1) / kPanelRows * kPanelRows;
}

std::int64_t bytes_of(std::int64_t inputs, std::int64_t block) {
  std::int64_t sum = 0;
  for (std::int64_t first = 0; first < inputs; first += block) {
    const std::int64_t n = std::min(block, inputs - first);
    sum += n * n * 4;
  }
  return sum;
}

}  // namespace

std::int64_t SecondMoments::bytes(std::int64_t inputs) {
  return bytes_of(inputs, block_size(inputs, kMostMomentInputs));
}

Result<SecondMoments> SecondMoments::create(std::int64_t inputs, std::int64_t most) {
  SecondMoments moments;
  moments.inputs_ = inputs;
  const std::int64_t size = block_size(inputs, most);
  moments.memory_ = TRY(Buffer::map(static_cast<std::size_t>(bytes_of(inputs, size))));
  auto* at = reinterpret_cast<float*>(moments.memory_.data());
  for (std::int64_t first = 0; first < inputs; first += size) {
    const std::int64_t n = std::min(size, inputs - first);
    moments.blocks_.push_back({first, n, at});
    at += n * n;
  }
  return moments;
}

void SecondMoments::add(const float* x, std::int64_t ldx, std::int64_t tokens, const Kernels& kernels, ThreadPool& pool) {
  if (tokens == 0) return;
  tokens_ += tokens;
  std::vector<float> factors(static_cast<std::size_t>(tokens));
  pool.parallel_for(tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      double sum = 0;
      for (std::int64_t k = 0; k < inputs_; ++k) sum += static_cast<double>(x[t * ldx + k]) * static_cast<double>(x[t * ldx + k]);
      factors[static_cast<std::size_t>(t)] = sum > 0 ? static_cast<float>(1 / std::sqrt(sum / static_cast<double>(inputs_))) : 0;
    }
  });
  for (const Block& block : blocks_) {
    const std::int64_t n = block.inputs, panels = (n + kPanelRows - 1) / kPanelRows, tiles = (n + kTile - 1) / kTile;
    // x of these inputs twice: as a weight matrix whose rows are inputs, and transposed as what it multiplies.
    std::vector<float> columns(static_cast<std::size_t>(panels * kPanelRows * tokens + kPanelRows)), rows(static_cast<std::size_t>(n * tokens));
    float* packed = columns.data() + (64 - reinterpret_cast<std::uintptr_t>(columns.data()) % 64) % 64 / 4;
    pool.parallel_for(panels, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t panel = begin; panel < end; ++panel)
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t lane = 0; lane < kPanelRows; ++lane) {
            const std::int64_t k = panel * kPanelRows + lane;
            const float value = k < n ? x[t * ldx + block.first + k] * factors[static_cast<std::size_t>(t)] : 0;
            packed[(panel * tokens + t) * kPanelRows + lane] = value;
            if (k < n) rows[static_cast<std::size_t>(k * tokens + t)] = value;
          }
    });
    const kernels::Weight weight{.codes = packed, .outputs = n, .inputs = tokens};
    pool.parallel_for(tiles, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> products;
      for (std::int64_t tile = begin; tile < end; ++tile) {
        const std::int64_t row = (tiles - 1 - tile) * kTile, count = std::min(kTile, n - row), most = (row + count + kPanelRows - 1) / kPanelRows;  // long rows first
        products.resize(static_cast<std::size_t>(count * most * kPanelRows));
        kernels.linear->gemm_f32(weight, rows.data() + row * tokens, tokens, count, 0, most, products.data(), most * kPanelRows);
        for (std::int64_t r = 0; r < count; ++r)
          for (std::int64_t k = 0; k <= row + r; ++k) block.sums[(row + r) * n + k] += products[static_cast<std::size_t>(r * most * kPanelRows + k)];
      }
    });
  }
}

}  // namespace inflight::quant
