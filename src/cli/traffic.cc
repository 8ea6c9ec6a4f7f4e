#include "cli/traffic.h"

#include <algorithm>
#include <cmath>

#include "nn/attention.h"
#include "nn/mla.h"

namespace inflight::cli {

namespace {

// Rows that derived ones take the place of: they stay in memory to be converted, but no step reads them.
std::vector<bool> replaced_rows(const params::ParamTable& table) {
  std::vector<bool> replaced(table.rows.size());
  for (const params::ParamSpec& row : table.rows)
    if (row.derivation) replaced[row.derivation->source] = true;
  return replaced;
}

}  // namespace

std::int64_t decode_bytes(const engine::OpenedModel& opened, std::int64_t batch) {
  std::int64_t bytes = 0, expert_bytes = 0;
  const quant::Matrix* lookup = nullptr;  // the head serves as the table when it is tied
  const std::vector<bool> replaced = replaced_rows(opened.table);
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) {
    const params::Role role = opened.table.rows[i].role;
    if (role == params::Role::kVector || replaced[i]) continue;
    const quant::Matrix& matrix = opened.store.matrix(i);
    if (role == params::Role::kExpert) expert_bytes += matrix.bytes();
    else if (role != params::Role::kEmbedding) bytes += matrix.bytes();
    if (role == params::Role::kEmbedding || (role == params::Role::kHead && !lookup)) lookup = &matrix;
  }
  // A step of `batch` tokens touches each expert with this probability, if routing is even; exactly top_k of them for one token.
  const models::ModelInfo& info = opened.model->info();
  if (info.experts > 0) bytes += static_cast<std::int64_t>(static_cast<double>(expert_bytes) * (1 - std::pow(1 - static_cast<double>(info.experts_per_token) / static_cast<double>(info.experts), batch)));
  if (lookup) bytes += batch * lookup->bytes() / std::max<std::int64_t>(1, lookup->panels() * kernels::kPanelRows);
  return bytes;
}

std::vector<Work> prefill_work(const engine::OpenedModel& opened, std::int64_t tokens, DType cache) {
  std::vector<Work> work;
  const auto add = [&](quant::Arithmetic arithmetic, double operations) {
    const auto found = std::ranges::find(work, arithmetic, &Work::arithmetic);
    if (found == work.end()) work.push_back({arithmetic, operations});
    else found->operations += operations;
  };
  const auto count = static_cast<double>(tokens);
  const models::ModelInfo& info = opened.model->info();
  const std::vector<bool> replaced = replaced_rows(opened.table);
  const bool latent = info.value_dim > 0, expanded = info.expanded_value_dim > 0;
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) {
    const params::Role role = opened.table.rows[i].role;
    if (role == params::Role::kVector || role == params::Role::kEmbedding || (expanded ? role == params::Role::kDerived : replaced[i])) continue;
    const quant::Matrix& matrix = opened.store.matrix(i);
    const double chosen = role == params::Role::kExpert ? static_cast<double>(opened.model->info().experts_per_token) / static_cast<double>(opened.model->info().experts) : 1;
    const double rows = role == params::Role::kHead ? 1 : count * chosen;
    add(role == params::Role::kRouter ? quant::Arithmetic::kFp32 : replaced[i] ? nn::LatentAttention::arithmetic(*opened.runtime, cache) : opened.runtime->compute.prefill(matrix),
        2 * rows * static_cast<double>(matrix.inputs) * static_cast<double>(matrix.outputs));
  }
  // Multiply-adds of a head for a query and a key.
  const std::int64_t pair = expanded ? info.query_dim + info.expanded_value_dim : latent ? info.head_dim + info.value_dim : 2 * info.head_dim;
  add(latent ? nn::LatentAttention::arithmetic(*opened.runtime, cache) : nn::Attention::prefill_arithmetic(*opened.runtime, cache),
      2.0 * static_cast<double>(info.layers * info.heads * pair) * count * (count + 1) / 2);
  return work;
}

}  // namespace inflight::cli
