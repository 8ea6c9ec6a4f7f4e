// The memory of all parameters: one arena, sized exactly by the plan before anything is read.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "params/param_spec.h"
#include "quant/matrix.h"
#include "quant/policy.h"
#include "quant/stored_form.h"
#include "tensor/buffer.h"

namespace inflight::quant {

// Where one parameter lives.
struct Slot {
  const Format* format = nullptr;  // nullptr: a vector, FP32
  std::int64_t outputs = 0, inputs = 0;  // of this rank
  std::int64_t lead = 0;           // Matrix::lead, counted in inputs
  std::int64_t offset = 0;         // into the arena, a multiple of 64
  PackedBytes bytes;
  bool reserved = false;           // address space alone: other ranks have it (an expert of params::Topology::placement, or keep_params())
  InputOrder order;                // of the activations (Matrix::order)
  bool gathers_inputs = false;     // Matrix::gathers_inputs
};

struct ParamPlan {
  std::vector<Slot> slots;         // one per row of the table
  std::int64_t weight_bytes = 0;   // every parameter with scales, norms, embedding, padding
  std::int64_t reserved_bytes = 0; // of the arena, beside them
};

// Routers are FP32; derived rows are FP32 where policy.wide_derived says so or their source is, else BF16. Rows of other expert-parallel ranks get an empty slot.
// stored_wide[i]: some piece of row i is not BF16 in the checkpoint, so "as stored" means FP32.
// stored_format[i]: the format the checkpoint already holds row i in (a converted folder), or nullptr; it wins over the policy.
Result<ParamPlan> plan_params(const params::ParamTable& table, const params::Topology& topology, const FormatPolicy& policy,
                              const std::vector<bool>& stored_wide, const std::vector<const Format*>& stored_format);

// Parameters that are not kept have address space alone.
void keep_params(ParamPlan& plan, const std::vector<bool>& kept);

class ParamStore {
 public:
  Result<void> allocate(const ParamPlan& plan);
  Matrix& matrix(std::size_t param) { return matrices_[param]; }
  const Matrix& matrix(std::size_t param) const { return matrices_[param]; }
  float* vector(std::size_t param) { return vectors_[param]; }              // [outputs rounded up to 16], zero padded
  const float* vector(std::size_t param) const { return vectors_[param]; }
  // Puts the numbers of one parameter of `other`, which was allocated for the same plan, in place of this one's.
  void take(std::size_t param, ParamStore& other);
  // A reserved parameter gets ready to be loaded; one that was loaded into such a place leaves it, and its memory goes back to the system.
  void prepare(std::size_t param);
  void release(std::size_t param);
  // Bytes in use: the arena but for reserved places, plus the group scales that stayed FP32.
  std::int64_t weight_bytes() const;

 private:
  std::vector<Slot> slots_;
  Buffer arena_;
  std::int64_t used_bytes_ = 0;    // of the arena
  std::vector<Matrix> matrices_;   // empty (format nullptr) for vectors
  std::vector<float*> vectors_;    // nullptr for matrices
};

}  // namespace inflight::quant
