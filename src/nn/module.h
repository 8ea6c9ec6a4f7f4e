// The declaration language of models, and the modules that compute. A module declares its parameters in its constructor:
// each line records one row of the ParamTable and keeps the handle that forward() uses. There is no second list.
//
//     struct Mlp {
//       Linear up_gate, down;
//       Mlp(Scope s, const Sizes& c)
//           : up_gate(s, {.name = "up_gate_proj", .split = Split::kOutputs, .pieces = {{"gate_proj", c.inter}, {"up_proj", c.inter}}, .inputs = c.hidden}),
//             down(s, {.name = "down_proj", .split = Split::kInputs, .pieces = {{"down_proj", c.hidden}}, .inputs = c.inter}) {}
//     };
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/runtime.h"
#include "params/param_spec.h"
#include "quant/store.h"

namespace inflight::nn {

// What a model is declared against: the table that grows, the store that will hold the weights, and which tensors the checkpoint has
// (biases are declared where their tensors are).
struct Declarations {
  params::ParamTable* table = nullptr;
  const quant::ParamStore* store = nullptr;
  std::function<bool(std::string_view)> has_tensor;
  std::function<std::vector<std::int64_t>(std::string_view)> shape_of = {};  // of a tensor that exists
  bool transposed = false;  // the checkpoint stores linears [inputs, outputs]
  params::Topology topology = {};  // rows are declared with the sizes of the whole model; modules compute with this rank's share
};

// A path in the checkpoint's name space: Scope root; root.at("model").at("layers", 3).
class Scope {
 public:
  explicit Scope(const Declarations& declarations, std::string path = {}) : declarations_(&declarations), path_(std::move(path)) {}
  std::string full(std::string_view name) const { return path_.empty() ? std::string(name) : path_ + "." + std::string(name); }
  Scope at(std::string_view name) const { return Scope(*declarations_, full(name)); }
  Scope at(std::string_view name, std::int64_t index) const { return at(std::string(name) + "." + std::to_string(index)); }
  // Records the row under this scope and returns its index. Where the checkpoint has no tensors for its pieces but one under the row's own
  // name (a fused qkv_proj or up_gate_proj), the pieces are its rows, in order.
  std::size_t declare(params::ParamSpec row) const;
  // Tensors under this scope that the model does not use (a pattern: params::IgnoreRule).
  void ignore(const std::string& pattern, std::string reason) const { declarations_->table->ignored.push_back({full(pattern), std::move(reason)}); }
  bool has_tensor(std::string_view name) const { return declarations_->has_tensor(full(name)); }
  bool has_shape(std::string_view name, const std::vector<std::int64_t>& shape) const { return has_tensor(name) && declarations_->shape_of && declarations_->shape_of(full(name)) == shape; }
  const quant::ParamStore* store() const { return declarations_->store; }
  const std::string& path() const { return path_; }
  bool transposed() const { return declarations_->transposed; }
  const params::Topology& topology() const { return declarations_->topology; }
  // Whether this rank has any of a declared row: false for experts of other ranks.
  bool holds(std::size_t row) const;

 private:
  const Declarations* declarations_;
  std::string path_;
};

// The tokens of one pass through a module: rows [0, decode) use the decode arithmetic, [decode, tokens) the prefill arithmetic.
struct Pass {
  Runtime& runtime;
  std::int64_t tokens = 0;
  std::int64_t decode = 0;
};

// y [T, ldy] = x [T, ldx] . W^T, each token in its own arithmetic. prepare: nothing, or what fills rows of x.
void multiply(const Pass& pass, const quant::Matrix& w, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare = {});

std::int64_t padded(std::int64_t n);  // n rounded up to a panel of 16: the row stride of a product's output

// y [T, stride] of each rank becomes the sum over the ranks that share each matrix, one call for all rows. Nothing where there is one rank.
void sum_over_ranks(const Pass& pass, float* y, std::int64_t stride);

// What each rank has of a token's numbers, `columns` of them, side by side, in the order of the ranks: [T, ranks / copies * columns], in the workspace.
// `copies` neighbouring ranks have the same ones. Every rank of several calls it; the thread pool is free.
const float* gather_parts(Runtime& rt, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns, std::int64_t copies = 1);

// Shows the observer x [T, ldx], of which this rank has `columns` of a token's numbers: the observer gets those of all ranks side by side, in their order.
// `copies` neighbouring ranks have the same ones. Every rank calls it, or none.
void show_parts(Runtime& rt, std::size_t row, Observer::Place place, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns, std::int64_t copies = 1);

// y [T, padded(outputs)] = x [T, inputs] . W^T + bias, of this rank's outputs. The bias exists where the checkpoint has its tensors.
// Where the inputs are split over ranks, x are this rank's and y is the sum over them, the whole product.
class Linear {
 public:
  Linear(const Scope& scope, params::ParamSpec row);
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;
  // The same without the sum over ranks, which is the caller's: linear things may be done to the parts before. The bias is in the first rank's.
  void part(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;
  std::int64_t outputs() const { return outputs_; }
  // Zeros that x needs in front of this rank's inputs (quant::Matrix::lead).
  std::int64_t lead() const { return matrix().lead; }
  std::size_t row() const { return weight_; }  // of the parameter table
  const quant::Matrix& matrix() const { return store_->matrix(weight_); }

 private:
  void product(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) const;
  void add_bias(const Pass& pass, float* y, std::int64_t ldy) const;

  const quant::ParamStore* store_;
  std::size_t weight_;
  std::int64_t bias_ = -1;  // row index, or -1
  std::int64_t outputs_;
  bool in_parts_;           // the inputs are split over ranks
  bool first_rank_;
};

// Root-mean-square normalization over the last n values: y = x / sqrt(mean(x^2) + eps) * weight.
class RmsNorm {
 public:
  RmsNorm(const Scope& scope, std::string_view name, std::int64_t n, float eps);
  void operator()(const kernels::Kernels& kernels, const float* x, float* y) const { kernels.vector->rms_norm(x, store_->vector(weight_), n_, eps_, y); }
  // Every token of the pass: x [T, ldx] -> y [T, ldy].
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const;

 private:
  const quant::ParamStore* store_;
  std::size_t weight_;
  std::int64_t n_;
  float eps_;
};

// Token embedding [vocabulary, hidden] and, when tied, the output head on the same table (stored once). Ranks hold runs of its rows.
class Embedding {
 public:
  Embedding(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden, bool tied);
  // x [T, hidden] = rows of the table, dequantized.
  void lookup(const Pass& pass, const std::int32_t* ids, float* x) const;
  std::size_t row() const { return weight_; }
  std::int64_t run() const { return run_; }

 private:
  const quant::ParamStore* store_;
  std::size_t weight_;
  std::int64_t hidden_;
  std::int64_t first_;  // of this rank's rows
  std::int64_t run_;    // rows that a rank holds, padded; the last ranks fewer
};

// logits [T, padded(vocabulary)] = x . table^T, on a table of its own or on the embedding's. Where ranks hold runs of the table, their parts are gathered;
// `logits` may be nullptr then, on a rank that does not need them.
class Head {
 public:
  Head(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden);  // its own table
  explicit Head(const Scope& scope, const Embedding& tied);
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* logits, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;
  std::size_t row() const { return weight_; }

 private:
  const quant::ParamStore* store_;
  std::size_t weight_;
  std::int64_t run_;  // columns of logits that a rank computes, the last ranks fewer
};

}  // namespace inflight::nn
