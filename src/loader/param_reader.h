// Parameters of a checkpoint a few at a time, as FP32: for work that needs each once and must not hold them all.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "loader/plan.h"
#include "params/param_spec.h"
#include "quant/store.h"

namespace inflight::loader {

class ParamReader {
 public:
  // plan: of the whole table. All references must outlive the reader.
  ParamReader(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const LoadPlan& plan, const quant::Kernels& kernels, ThreadPool& pool);
  // Reads these rows of the table, and forgets those before. Matrices are f32_format(), inputs in their natural order; vectors FP32.
  Result<void> load(std::span<const std::size_t> params);
  // Of a row that load() read last.
  const quant::Matrix& matrix(std::size_t param) const { return store_.matrix(place_[param]); }
  const float* vector(std::size_t param) const { return store_.vector(place_[param]); }
  bool holds(std::size_t param) const { return place_[param] != kNowhere; }
  // What load() takes for a row.
  static std::int64_t bytes(const params::ParamSpec& row) { return (row.outputs() + quant::kPanelRows) * row.inputs * 4; }

 private:
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  const checkpoint::Checkpoint& checkpoint_;
  const params::ParamTable& table_;
  const LoadPlan& plan_;
  const quant::Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<std::vector<std::size_t>> routes_;  // of each row
  std::vector<std::size_t> place_;                // of each row in store_
  std::vector<std::size_t> loaded_;
  quant::ParamStore store_;
};

}  // namespace inflight::loader
