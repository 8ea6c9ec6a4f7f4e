// New numbers for a model whose weights are in memory: tensors under the checkpoint's names, quantized in flight into memory of their own, and put in place of
// the old ones when every parameter that they touch is complete. All or nothing: until apply() the model's weights are as they were.
//
// On several ranks rank 0 has the tensors. It tells the others whole rows of each, some megabytes at a time; every rank keeps its slice, with scales of the whole
// rows, which it sees. Nothing else is exchanged before the end, when all put the new weights in place, or none.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "comm/comm.h"
#include "loader/plan.h"
#include "loader/sink.h"
#include "quant/store.h"
#include "tensor/buffer.h"

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
  // `table`, `plan` and `topology` are those the model was loaded with; these, kernels, pool and ranks must outlive the update. Memory is taken as tensors come, up to
  // that of the weights again. ranks: that run the model, for all of which it is a collective; nullptr: one. kUnsupported: experts have a placement that may change.
  static Result<std::unique_ptr<Update>> begin(const params::ParamTable& table, const quant::ParamPlan& plan, const params::Topology& topology, const quant::Kernels& kernels, ThreadPool& pool,
                                               comm::Comm* ranks = nullptr);
  // On rank 0: the others drop what came, unless it was applied.
  ~Update();
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // On one rank, or rank 0 of several: takes one whole tensor, in any order. Tensors that a rule of the table ignores are ignored. After an error the update cannot be applied.
  // kInvalidArgument: an unknown name, a shape or dtype that does not fit, a name given twice. kUnsupported: the parameter is kept in a form that nothing is
  // quantized to. kCorrupt: NaN or infinity (in another rank's slice: apply() says so).
  Result<void> add(const NamedTensor& tensor);

  // On one rank, or rank 0 of several: copies what came into `store`, on every rank. kInvalidArgument: a touched parameter lacks tensors, which are named, or nothing
  // came. Of several ranks the error of the first that has one, which it names. After an error the stores of all are unchanged.
  Result<void> apply(quant::ParamStore& store);

  // On the other ranks: takes what rank 0 adds, until it applies or drops the update. The error is rank 0's too.
  Result<void> follow(quant::ParamStore& store);

 private:
  // A piece of a parameter, in the tensor that it is in.
  struct Part {
    std::size_t param = 0, piece = 0;
    int route = -1;  // -1: nothing of it is on this rank
  };
  enum class Kind : std::int32_t { kTensor, kApply, kDrop };
  struct Word {  // of rank 0
    Kind kind = Kind::kDrop;
    DType dtype = DType::kBF16;
    std::int64_t tensor = 0;
  };

  Update(const params::ParamTable& table, const quant::ParamPlan& plan, const params::Topology& topology, const quant::Kernels& kernels, ThreadPool& pool, comm::Comm* ranks)
      : table_(table), topology_(topology), kernels_(kernels), pool_(pool), ranks_(ranks) { plan_.params = plan; }
  Result<void> prepare();
  Result<void> expect(std::size_t param);
  Result<void> take(const NamedTensor& tensor);
  void expect_dtype(std::size_t tensor, DType dtype);
  void tell(Word word);

  // All ranks: the tensor's numbers, which rank 0 has; `data`: nullptr on others. What goes wrong on this rank is kept in error_.
  void share(std::size_t tensor, const std::byte* data);
  // Rows [first, first + count) of the tensor seen as [outputs, inputs] of a part, on rank 0: where they are, or a copy in `run_`.
  const std::byte* rows_of(const Part& part, std::size_t tensor, const std::byte* data, std::int64_t first, std::int64_t count);
  // Of formats in which a whole piece has one scale: the largest magnitude.
  Result<float> largest(const Part& part, std::size_t tensor, const std::byte* data);
  Result<void> accept(const Part& part, std::int64_t first, std::int64_t count, const std::byte* rows, std::span<const float> absmax);
  void note(Result<void> done);

  Result<std::vector<std::size_t>> touched() const;
  // The parameters that came are complete, those that follow from them too. A collective.
  Result<void> complete(const std::vector<std::size_t>& touched);
  Result<void> derive(const std::vector<std::size_t>& touched);
  Result<void> put_in_place(const std::vector<std::size_t>& touched, quant::ParamStore& store);
  // The same on all ranks: the error of the first that has one.
  Result<void> agree(const Result<void>& mine) const;

  const params::ParamTable& table_;
  const params::Topology topology_;
  const quant::Kernels& kernels_;
  ThreadPool& pool_;
  comm::Comm* ranks_;
  LoadPlan plan_;                               // routes of every tensor that may come
  std::vector<checkpoint::Tensor> expected_;
  std::vector<std::vector<Part>> parts_;        // of each expected tensor
  std::unordered_map<std::string, std::size_t> tensors_;
  std::vector<bool> given_;                     // of the expected tensors
  quant::ParamStore store_;
  std::unique_ptr<Sink> sink_;
  Buffer run_;                                  // rows on their way
  std::optional<Error> error_;                  // of this rank
  bool failed_ = false, ended_ = false;
};

}  // namespace inflight::loader
