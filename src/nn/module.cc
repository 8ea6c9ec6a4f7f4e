#include "nn/module.h"

#include <algorithm>

namespace inflight::nn {

// One call when both arithmetics agree.
void multiply(const Pass& pass, const quant::Matrix& w, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) {
  Runtime& rt = pass.runtime;
  const auto decode = rt.compute.decode(w), prefill = rt.compute.prefill(w);
  const auto run = [&](quant::Arithmetic arithmetic, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    std::byte* scratch = rt.workspace.bytes(quant::apply_scratch(w, arithmetic, *rt.kernels, count));
    quant::apply(w, arithmetic, *rt.kernels, *rt.pool, x + begin * ldx, ldx, count, y + begin * ldy, ldy, scratch,
                 prepare && begin > 0 ? quant::PrepareRows([&prepare, begin](std::int64_t from, std::int64_t to) { prepare(begin + from, begin + to); }) : prepare);
  };
  if (decode == prefill) return run(prefill, 0, pass.tokens);
  run(decode, 0, pass.decode);
  run(prefill, pass.decode, pass.tokens - pass.decode);
}


std::int64_t padded(std::int64_t n) { return (n + kernels::kPanelRows - 1) / kernels::kPanelRows * kernels::kPanelRows; }

std::size_t Scope::declare(params::ParamSpec row) const {
  row.scope = path_;
  row.transposed |= transposed() && (row.role == params::Role::kLinear || row.role == params::Role::kExpert || row.role == params::Role::kRouter);
  const std::string fused = row.name + "." + row.suffix;
  const bool apart = std::ranges::any_of(row.pieces, [&](const params::Piece& piece) { return !piece.source.tensor.empty() || has_tensor(piece.name + "." + row.suffix); });
  if (row.pieces.size() > 1 && !apart && has_tensor(fused)) {
    std::int64_t first = 0;
    for (params::Piece& piece : row.pieces) {
      piece.source = {.tensor = full(fused), .first_output = first};
      if (row.role == params::Role::kVector) piece.source.shape = {row.outputs()};
      else if (row.transposed) piece.source.shape = {row.inputs, row.outputs()};
      else piece.source.shape = {row.outputs(), row.inputs};
      first += piece.rows;
    }
  }
  declarations_->table->rows.push_back(std::move(row));
  return declarations_->table->rows.size() - 1;
}

Linear::Linear(const Scope& scope, params::ParamSpec row) : store_(scope.store()), weight_(scope.declare(row)), outputs_(row.outputs()) {
  const bool has_bias = std::ranges::any_of(row.pieces, [&](const params::Piece& piece) { return scope.has_tensor(piece.name + ".bias"); }) || scope.has_tensor(row.name + ".bias");
  if (!has_bias) return;
  params::ParamSpec bias = row;  // a missing piece is then reported as a missing tensor
  bias.role = params::Role::kVector;
  bias.suffix = "bias";
  bias.transposed = false;
  bias.inputs = 1;
  if (bias.split == params::Split::kInputs) bias.split = params::Split::kReplicate;
  bias_ = static_cast<std::int64_t>(scope.declare(std::move(bias)));
}

void Linear::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  multiply(pass, store_->matrix(weight_), x, ldx, y, ldy, prepare);
  if (pass.runtime.observer) pass.runtime.observer->see(weight_, Observer::Place::kInput, x, ldx, pass.tokens, matrix().inputs);  // now that it is prepared
  if (bias_ < 0) return;
  const float* bias = store_->vector(static_cast<std::size_t>(bias_));
  const auto add = pass.runtime.kernels->vector->add;
  pass.runtime.pool->parallel_for(pass.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) add(y + t * ldy, bias, outputs_);
  });
}

RmsNorm::RmsNorm(const Scope& scope, std::string_view name, std::int64_t n, float eps)
    : store_(scope.store()), weight_(scope.declare({.name = std::string(name), .role = params::Role::kVector, .pieces = {{std::string(name), n}}})), n_(n), eps_(eps) {}

void RmsNorm::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const {
  pass.runtime.pool->parallel_for(pass.tokens, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) (*this)(*pass.runtime.kernels, x + t * ldx, y + t * ldy);
  });
}

Embedding::Embedding(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden, bool tied)
    : store_(scope.store()),
      weight_(scope.declare({.name = std::string(name), .role = tied ? params::Role::kHead : params::Role::kEmbedding,
                             .pieces = {{std::string(name), vocabulary}}, .inputs = hidden})),
      hidden_(hidden) {}

void Embedding::lookup(const Pass& pass, const std::int32_t* ids, float* x) const {
  const quant::Matrix& table = store_->matrix(weight_);
  pass.runtime.pool->parallel_for(pass.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) table.format->dequantize(table, ids[t], x + t * hidden_);
  });
}

Head::Head(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden)
    : store_(scope.store()),
      weight_(scope.declare({.name = std::string(name), .role = params::Role::kHead, .pieces = {{std::string(name), vocabulary}}, .inputs = hidden, .transposed = scope.transposed()})) {}

Head::Head(const Scope& scope, const Embedding& tied) : store_(scope.store()), weight_(tied.row()) {}

void Head::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* logits, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  multiply(pass, store_->matrix(weight_), x, ldx, logits, ldy, prepare);
}

}  // namespace inflight::nn
