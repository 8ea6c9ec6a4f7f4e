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

// y [T, padded(outputs)] = x [T, inputs] . W^T + bias. The bias exists where the checkpoint has its tensors.
class Linear {
 public:
  Linear(const Scope& scope, params::ParamSpec row);
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;
  std::int64_t outputs() const { return outputs_; }
  std::size_t row() const { return weight_; }  // of the parameter table
  const quant::Matrix& matrix() const { return store_->matrix(weight_); }

 private:
  const quant::ParamStore* store_;
  std::size_t weight_;
  std::int64_t bias_ = -1;  // row index, or -1
  std::int64_t outputs_;
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

// Token embedding [vocabulary, hidden] and, when tied, the output head on the same table (stored once).
class Embedding {
 public:
  Embedding(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden, bool tied);
  // x [T, hidden] = rows of the table, dequantized.
  void lookup(const Pass& pass, const std::int32_t* ids, float* x) const;
  std::size_t row() const { return weight_; }

 private:
  const quant::ParamStore* store_;
  std::size_t weight_;
  std::int64_t hidden_;
};

// logits [T, padded(vocabulary)] = x . table^T, on a table of its own or on the embedding's.
class Head {
 public:
  Head(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden);  // its own table
  explicit Head(const Scope& scope, const Embedding& tied);
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* logits, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;
  std::size_t row() const { return weight_; }

 private:
  const quant::ParamStore* store_;
  std::size_t weight_;
};

}  // namespace inflight::nn
