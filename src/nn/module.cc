#include "nn/module.h"

#include <algorithm>

#include "params/partition.h"

namespace inflight::nn {
namespace {

constexpr std::int64_t kCopyGrain = 64;  // rows that a worker copies at a time

// Rows of a table that is split by its vocabulary: a rank's run, and the first rank's length, which is the longest.
std::int64_t first_of_run(const params::ParamSpec& row, const params::Topology& topology) { return params::slice_of(row, 0, topology).value_or(params::Slice{}).row_begin; }
std::int64_t longest_run(const params::ParamSpec& row, params::Topology topology) {
  topology.tp_rank = 0;
  return padded(params::local_outputs(row, topology).value_or(row.outputs()));
}

}  // namespace

void sum_over_ranks(const Pass& pass, float* y, std::int64_t stride) {
  if (comm::Comm* ranks = pass.runtime.tensor_ranks) ranks->all_reduce_sum(y, pass.tokens * stride);
}

const float* gather_parts(Runtime& rt, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns, std::int64_t copies) {
  comm::Comm& ranks = *rt.tensor_ranks;
  const std::int64_t parts = ranks.size() / copies, whole_columns = parts * columns;
  float* mine = rt.workspace.floats(tokens * columns);
  float* gathered = rt.workspace.floats(ranks.size() * tokens * columns);
  float* whole = rt.workspace.floats(tokens * whole_columns);
  rt.pool->parallel_for(tokens, kCopyGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) std::copy_n(x + t * ldx, columns, mine + t * columns);
  });
  ranks.all_gather(mine, tokens * columns * static_cast<std::int64_t>(sizeof(float)), gathered);
  rt.pool->parallel_for(tokens, kCopyGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t part = 0; part < parts; ++part) std::copy_n(gathered + (part * copies * tokens + t) * columns, columns, whole + t * whole_columns + part * columns);
  });
  return whole;
}

namespace {

// One call when both arithmetics agree.
void multiply_columns(const Pass& pass, const quant::Matrix& w, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) {
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

}  // namespace

void multiply(const Pass& pass, const quant::Matrix& w, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) {
  Runtime& rt = pass.runtime;
  if (w.gathers_inputs && rt.tensor_ranks) {  // this rank's columns are sorted inputs of all ranks
    const std::int64_t columns = w.inputs - w.lead;
    if (prepare) rt.pool->parallel_for(pass.tokens, 8, prepare);
    const std::size_t mark = rt.workspace.mark();
    const float* whole = gather_parts(rt, x + w.lead, ldx, pass.tokens, columns, 1);
    multiply_columns(pass, w, whole, columns * rt.tensor_ranks->size(), y, ldy, {});
    return rt.workspace.rewind(mark);
  }
  multiply_columns(pass, w, x, ldx, y, ldy, prepare);
}

void show_parts(Runtime& rt, std::size_t row, Observer::Place place, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns, std::int64_t copies) {
  if (!rt.tensor_ranks) return rt.observer->see(row, place, x, ldx, tokens, columns);
  const std::int64_t whole_columns = rt.tensor_ranks->size() / copies * columns;
  const std::size_t mark = rt.workspace.mark();
  rt.observer->see(row, place, gather_parts(rt, x, ldx, tokens, columns, copies), whole_columns, tokens, whole_columns);
  rt.workspace.rewind(mark);
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

bool Scope::holds(std::size_t row) const { return params::is_local(declarations_->table->rows[row], declarations_->topology).value_or(true); }

Linear::Linear(const Scope& scope, params::ParamSpec row)
    : store_(scope.store()),
      weight_(scope.declare(row)),
      outputs_(params::local_outputs(row, scope.topology()).value_or(row.outputs())),
      in_parts_(row.split == params::Split::kInputs && scope.topology().tp_size > 1),
      first_rank_(scope.topology().tp_rank == 0) {
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
  product(pass, x, ldx, y, ldy, prepare);
  if (in_parts_) sum_over_ranks(pass, y, ldy);
  add_bias(pass, y, ldy);
}

void Linear::part(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  product(pass, x, ldx, y, ldy, prepare);
  if (!in_parts_ || first_rank_) add_bias(pass, y, ldy);
}

void Linear::product(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  const quant::Matrix& w = matrix();
  multiply(pass, w, x, ldx, y, ldy, prepare);
  Runtime& rt = pass.runtime;
  if (!rt.observer) return;  // x is prepared by now
  if (in_parts_) show_parts(rt, weight_, Observer::Place::kInput, x + w.lead, ldx, pass.tokens, w.inputs - w.lead);
  else rt.observer->see(weight_, Observer::Place::kInput, x, ldx, pass.tokens, w.inputs);
}

void Linear::add_bias(const Pass& pass, float* y, std::int64_t ldy) const {
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
    : store_(scope.store()), hidden_(hidden) {
  const params::ParamSpec row{.name = std::string(name), .role = tied ? params::Role::kHead : params::Role::kEmbedding, .split = params::Split::kVocabulary,
                              .pieces = {{std::string(name), vocabulary}}, .inputs = hidden};
  weight_ = scope.declare(row);
  first_ = first_of_run(row, scope.topology());
  run_ = longest_run(row, scope.topology());
}

void Embedding::lookup(const Pass& pass, const std::int32_t* ids, float* x) const {
  const quant::Matrix& table = store_->matrix(weight_);
  pass.runtime.pool->parallel_for(pass.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (const std::int64_t row = ids[t] - first_; row >= 0 && row < table.outputs) table.format->dequantize(table, row, x + t * hidden_);
      else std::fill_n(x + t * hidden_, hidden_, 0.0f);  // another rank's
    }
  });
  sum_over_ranks(pass, x, hidden_);
}

Head::Head(const Scope& scope, std::string_view name, std::int64_t vocabulary, std::int64_t hidden)
    : store_(scope.store()) {
  const params::ParamSpec row{.name = std::string(name), .role = params::Role::kHead, .split = params::Split::kVocabulary, .pieces = {{std::string(name), vocabulary}},
                              .inputs = hidden, .transposed = scope.transposed()};
  weight_ = scope.declare(row);
  run_ = longest_run(row, scope.topology());
}

Head::Head(const Scope& scope, const Embedding& tied) : store_(scope.store()), weight_(tied.row()), run_(tied.run()) {}

void Head::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* logits, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  const quant::Matrix& w = store_->matrix(weight_);
  Runtime& rt = pass.runtime;
  comm::Comm* ranks = rt.tensor_ranks;
  if (!ranks) return multiply(pass, w, x, ldx, logits, ldy, prepare);
  float* mine = rt.workspace.floats(pass.tokens * run_);
  float* parts = rt.workspace.floats(ranks->size() * pass.tokens * run_);
  if (w.outputs > 0) multiply(pass, w, x, ldx, mine, run_, prepare);
  ranks->all_gather(mine, pass.tokens * run_ * static_cast<std::int64_t>(sizeof(float)), parts);
  if (!logits) return;
  rt.pool->parallel_for(pass.tokens, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t rank = 0; rank * run_ < ldy; ++rank) std::copy_n(parts + (rank * pass.tokens + t) * run_, std::min(run_, ldy - rank * run_), logits + t * ldy + rank * run_);
  });
}

}  // namespace inflight::nn
