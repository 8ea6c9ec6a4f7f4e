#include "loader/update.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <mutex>

#include "loader/chunk.h"
#include "params/partition.h"

namespace inflight::loader {

using params::ParamSpec;
using params::Role;

Result<std::unique_ptr<Update>> Update::begin(const params::ParamTable& table, const quant::ParamPlan& plan, const quant::Kernels& kernels, ThreadPool& pool) {
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (plan.slots[i].outputs != table.rows[i].outputs() || plan.slots[i].inputs != table.rows[i].inputs)
      return fail(Code::kUnsupported, "weights can be updated where one rank holds the whole model; this one holds a part of {}. Open the model again to load new weights", table.rows[i].full_name());
  std::unique_ptr<Update> update(new Update(table, plan, pool));
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (!table.rows[i].derivation) TRY(update->expect(i));
  TRY(update->store_.allocate(plan));
  update->sink_ = std::make_unique<Sink>(update->expected_, update->plan_, table, kernels, update->store_);
  return update;
}

// Pieces that share a tensor share its entry.
Result<void> Update::expect(std::size_t param) {
  const ParamSpec& row = table_.rows[param];
  for (std::size_t p = 0; p < row.pieces.size(); ++p) {
    const params::Piece& piece = row.pieces[p];
    std::vector<std::size_t>& routes = routes_[row.piece_name(p)];
    int tensor = routes.empty() ? static_cast<int>(expected_.size()) : plan_.routes[routes[0]].tensor;
    if (routes.empty()) {
      checkpoint::Tensor& entry = expected_.emplace_back();
      entry.info.name = row.piece_name(p);
      if (!piece.source.tensor.empty()) entry.info.shape = piece.source.shape;
      else if (row.role == Role::kVector) entry.info.shape = {piece.rows};
      else entry.info.shape = row.transposed ? std::vector{row.inputs, piece.rows} : std::vector{piece.rows, row.inputs};
    }
    Route route{.tensor = tensor, .param = param, .slice = TRY(params::slice_of(row, p, {})), .matrix = row.role != Role::kVector, .transposed = row.transposed && row.role != Role::kVector,
                .first_input = piece.source.first_input};
    route.slice.row_begin += piece.source.first_output;
    route.slice.row_end += piece.source.first_output;
    routes.push_back(plan_.routes.size());
    plan_.routes.push_back(std::move(route));
  }
  return {};
}

Result<void> Update::add(const NamedTensor& tensor) {
  if (failed_) return fail(Code::kInvalidArgument, "an earlier tensor of this update was refused; begin a new one");
  auto taken = take(tensor);
  failed_ = !taken;
  return taken;
}

Result<void> Update::take(const NamedTensor& tensor) {
  const std::string name(tensor.name);
  const auto found = routes_.find(name);
  if (found == routes_.end()) {
    if (std::ranges::any_of(table_.ignored, [&](const params::IgnoreRule& rule) { return ::fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0; })) return {};
    return fail(Code::kInvalidArgument, "\"{}\" is no tensor of this model; `inflight inspect MODEL --names` lists them", name);
  }
  if (given_.contains(name)) return fail(Code::kInvalidArgument, "\"{}\" came twice in one update", name);
  checkpoint::TensorInfo& info = expected_[static_cast<std::size_t>(plan_.routes[found->second[0]].tensor)].info;
  const bool row_vector = info.shape.size() == 1 && tensor.shape.size() == 2 && tensor.shape[0] == 1 && tensor.shape[1] == info.shape[0];  // as checkpoints may have it
  if (!row_vector && !std::ranges::equal(tensor.shape, info.shape))
    return fail(Code::kInvalidArgument, "\"{}\" has shape [{}], but the model needs [{}]", name, fmt::join(tensor.shape, ", "), fmt::join(info.shape, ", "));
  if (tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kF32)
    return fail(Code::kInvalidArgument, "\"{}\" is {}; an update takes BF16, F16 and F32", name, dtype_name(tensor.dtype));
  info.dtype = tensor.dtype;
  info.begin = 0;
  info.end = row_bytes(tensor.dtype, info.elements());
  if (static_cast<std::int64_t>(tensor.data.size()) != info.bytes())
    return fail(Code::kInvalidArgument, "\"{}\" [{}] in {} has {} bytes, but {} came", name, fmt::join(info.shape, ", "), dtype_name(tensor.dtype), info.bytes(), tensor.data.size());
  for (const std::size_t r : found->second) {
    const quant::Format* format = plan_.params.slots[plan_.routes[r].param].format;
    if (format && std::ranges::find(quant::forms(), format) != quant::forms().end())
      return fail(Code::kUnsupported, "{} is kept as {}, which nothing is quantized to; open the model with --quantization to update it", table_.rows[plan_.routes[r].param].full_name(), format->name);
    if (format == &quant::bf16_format() && tensor.dtype != DType::kBF16)
      return fail(Code::kInvalidArgument, "\"{}\" is {}, but {} is kept in BF16, which would round it; send BF16", name, dtype_name(tensor.dtype), table_.rows[plan_.routes[r].param].full_name());
  }
  given_[name] = true;
  for (const std::size_t r : found->second) TRY(sink_->accept_whole(r, tensor.data.data(), &pool_));
  return {};
}

Result<void> Update::apply(quant::ParamStore& store) {
  if (failed_) return fail(Code::kInvalidArgument, "a tensor of this update was refused; the weights are unchanged");
  if (given_.empty()) return fail(Code::kInvalidArgument, "the update holds no tensor of the model");
  std::vector<std::string> missing;
  std::vector<std::size_t> touched;
  for (std::size_t i = 0; i < table_.rows.size(); ++i) {
    const ParamSpec& row = table_.rows[i];
    if (row.derivation) continue;
    std::vector<std::string> absent;
    for (std::size_t p = 0; p < row.pieces.size(); ++p)
      if (!given_.contains(row.piece_name(p))) absent.push_back(row.piece_name(p));
    if (absent.size() == row.pieces.size()) continue;
    touched.push_back(i);
    missing.insert(missing.end(), absent.begin(), absent.end());
  }
  if (!missing.empty())
    return fail(Code::kInvalidArgument, "the update is incomplete: \"{}\"{} did not come, and tensors that share a parameter with it did; the weights are unchanged", missing[0],
                missing.size() > 1 ? fmt::format(" and {} more", missing.size() - 1) : "");
  for (std::size_t i = 0; i < table_.rows.size(); ++i)
    if (const auto& derivation = table_.rows[i].derivation; derivation && std::ranges::find(touched, derivation->source) != touched.end()) touched.push_back(i);
  for (const std::size_t i : touched) store.take(i, store_);
  return {};
}

}  // namespace inflight::loader
