// New numbers for a model whose weights are in memory: tensors under the checkpoint's names, quantized in flight into memory of their own, and put in place of
// the old ones when every parameter that they touch is complete. All or nothing: until apply() the model's weights are as they were.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "loader/plan.h"
#include "loader/sink.h"
#include "quant/store.h"

namespace inflight::loader {

// A tensor as a trainer has it. Data is row-major and needs no alignment.
struct NamedTensor {
  std::string_view name;
  DType dtype = DType::kBF16;  // BF16, F16 or F32
  std::span<const std::int64_t> shape;
  std::span<const std::byte> data;
};

class Update {
 public:
  // `table` and `plan` are those the model was loaded with; they, kernels and pool must outlive the update. Memory is taken as tensors come, up to that of the weights again.
  // kUnsupported: the plan is that of one of several ranks.
  static Result<std::unique_ptr<Update>> begin(const params::ParamTable& table, const quant::ParamPlan& plan, const quant::Kernels& kernels, ThreadPool& pool);

  // Takes one whole tensor, in any order. Tensors that a rule of the table ignores are ignored. After an error the update cannot be applied.
  // kInvalidArgument: an unknown name, a shape or dtype that does not fit, a name given twice. kUnsupported: the parameter is kept in a form that nothing is
  // quantized to. kCorrupt: NaN or infinity.
  Result<void> add(const NamedTensor& tensor);

  // Copies what came into `store`. kInvalidArgument: a touched parameter lacks tensors, which are named, or nothing came. The store is then unchanged.
  Result<void> apply(quant::ParamStore& store);

  std::int64_t tensors() const { return static_cast<std::int64_t>(given_.size()); }

 private:
  Update(const params::ParamTable& table, const quant::ParamPlan& plan, ThreadPool& pool) : table_(table), pool_(pool) { plan_.params = plan; }
  Result<void> expect(std::size_t param);
  Result<void> take(const NamedTensor& tensor);

  const params::ParamTable& table_;
  ThreadPool& pool_;
  LoadPlan plan_;                               // routes of every tensor that may come
  std::vector<checkpoint::Tensor> expected_;
  std::unordered_map<std::string, std::vector<std::size_t>> routes_;  // by tensor
  std::unordered_map<std::string, bool> given_;
  quant::ParamStore store_;
  std::unique_ptr<Sink> sink_;
  bool failed_ = false;
};

}  // namespace inflight::loader
