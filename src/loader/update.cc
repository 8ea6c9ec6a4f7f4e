#include "loader/update.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <exception>

#include "comm/agree.h"
#include "loader/chunk.h"
#include "loader/first_error.h"
#include "loader/transpose.h"
#include "params/partition.h"
#include "quant/derive.h"

namespace inflight::loader {
namespace {

using params::ParamSpec;
using params::Role;

constexpr std::int64_t kRunBytes = 8 << 20;  // that go to all ranks at once
constexpr std::int64_t kRowStep = 128;       // runs begin at multiples of it: whole panels, and whole blocks of FP8

// work(), which must not take other ranks' peace: what it throws is an error too.
template <class Work>
Result<void> attempt(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return fail(Code::kExhausted, "new weights could not be taken: {}", error.what());
  }
}

}  // namespace

Result<std::unique_ptr<Update>> Update::begin(const params::ParamTable& table, const quant::ParamPlan& plan, const params::Topology& topology, const quant::Kernels& kernels, ThreadPool& pool,
                                              comm::Comm* ranks) {
  if (topology.placement)  // the same on all ranks
    return fail(Code::kUnsupported, "weights cannot be updated with --enable-eplb: experts that move later are read from the checkpoint, which holds the old ones. Leave it out, or open the model again");
  std::unique_ptr<Update> update(new Update(table, plan, topology, kernels, pool, ranks));
  if (auto ready = update->agree(attempt([&] { return update->prepare(); })); !ready) {
    update->ended_ = true;
    return std::unexpected(std::move(ready).error());
  }
  return update;
}

Update::~Update() {
  if (ranks_ && ranks_->rank() == 0 && !ended_) tell({.kind = Kind::kDrop});
}

Result<void> Update::prepare() {
  std::int64_t run = 0;
  for (std::size_t i = 0; i < table_.rows.size(); ++i) {
    const ParamSpec& row = table_.rows[i];
    if (row.derivation) continue;
    TRY(expect(i));
    run = std::max(run, row.role == Role::kVector ? row.outputs() * 4 : std::max(kRunBytes, kRowStep * row.inputs * 4));
  }
  given_.assign(expected_.size(), false);
  TRY(store_.allocate(plan_.params));
  if (ranks_) run_ = TRY(Buffer::map(static_cast<std::size_t>(run)));
  plan_.wide_scales = ranks_ != nullptr;  // until all ranks know whether FP16 holds everybody's
  sink_ = std::make_unique<Sink>(expected_, plan_, table_, kernels_, store_, /*derives=*/false);
  return {};
}

// Pieces that share a tensor share its entry.
Result<void> Update::expect(std::size_t param) {
  const ParamSpec& row = table_.rows[param];
  const bool local = TRY(params::is_local(row, topology_)), vector = row.role == Role::kVector;
  for (std::size_t p = 0; p < row.pieces.size(); ++p) {
    const params::Piece& piece = row.pieces[p];
    const auto [place, added] = tensors_.try_emplace(row.piece_name(p), expected_.size());
    const std::size_t tensor = place->second;
    if (added) {
      parts_.emplace_back();
      checkpoint::Tensor& entry = expected_.emplace_back();
      entry.info.name = row.piece_name(p);
      if (!piece.source.tensor.empty()) entry.info.shape = piece.source.shape;
      else if (vector) entry.info.shape = {piece.rows};
      else entry.info.shape = row.transposed ? std::vector{row.inputs, piece.rows} : std::vector{piece.rows, row.inputs};
    }
    Part& part = parts_[tensor].emplace_back(Part{.param = param, .piece = p});
    if (!local) continue;
    Route route{.tensor = static_cast<int>(tensor), .param = param, .slice = TRY(params::slice_of(row, p, topology_)), .matrix = !vector, .transposed = row.transposed && !vector,
                .first_input = piece.source.first_input, .rows = piece.rows, .inputs = row.inputs, .piece = p, .first_row = piece.source.first_output, .read = {0, row.inputs}};
    route.slice.row_begin += piece.source.first_output;
    route.slice.row_end += piece.source.first_output;
    part.route = static_cast<int>(plan_.routes.size());
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
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    if (std::ranges::any_of(table_.ignored, [&](const params::IgnoreRule& rule) { return ::fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0; })) return {};
    return fail(Code::kInvalidArgument, "\"{}\" is no tensor of this model; `inflight inspect MODEL --names` lists them", name);
  }
  const std::size_t t = found->second;
  if (given_[t]) return fail(Code::kInvalidArgument, "\"{}\" came twice in one update", name);
  const checkpoint::TensorInfo& info = expected_[t].info;
  const bool row_vector = info.shape.size() == 1 && tensor.shape.size() == 2 && tensor.shape[0] == 1 && tensor.shape[1] == info.shape[0];  // as checkpoints may have it
  if (!row_vector && !std::ranges::equal(tensor.shape, info.shape))
    return fail(Code::kInvalidArgument, "\"{}\" has shape [{}], but the model needs [{}]", name, fmt::join(tensor.shape, ", "), fmt::join(info.shape, ", "));
  if (tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kF32)
    return fail(Code::kInvalidArgument, "\"{}\" is {}; an update takes BF16, F16 and F32", name, dtype_name(tensor.dtype));
  expect_dtype(t, tensor.dtype);
  if (static_cast<std::int64_t>(tensor.data.size()) != info.bytes())
    return fail(Code::kInvalidArgument, "\"{}\" [{}] in {} has {} bytes, but {} came", name, fmt::join(info.shape, ", "), dtype_name(tensor.dtype), info.bytes(), tensor.data.size());
  for (const Part& part : parts_[t]) {
    const quant::Format* format = plan_.params.slots[part.param].format;
    if (format && std::ranges::find(quant::forms(), format) != quant::forms().end())
      return fail(Code::kUnsupported, "{} is kept as {}, which nothing is quantized to; open the model with --quantization to update it", table_.rows[part.param].full_name(), format->name);
    if (format == &quant::bf16_format() && tensor.dtype != DType::kBF16)
      return fail(Code::kInvalidArgument, "\"{}\" is {}, but {} is kept in BF16, which would round it; send BF16", name, dtype_name(tensor.dtype), table_.rows[part.param].full_name());
  }
  given_[t] = true;
  if (!ranks_) {
    for (const Part& part : parts_[t]) TRY(sink_->accept_whole(static_cast<std::size_t>(part.route), tensor.data.data(), &pool_));
    return {};
  }
  tell({.kind = Kind::kTensor, .dtype = tensor.dtype, .tensor = static_cast<std::int64_t>(t)});
  share(t, tensor.data.data());
  if (auto error = ranks_->error()) return std::unexpected(*std::move(error));
  if (error_) return std::unexpected(*error_);
  return {};
}

void Update::expect_dtype(std::size_t tensor, DType dtype) {
  checkpoint::TensorInfo& info = expected_[tensor].info;
  info.dtype = dtype;
  info.begin = 0;
  info.end = row_bytes(dtype, info.elements());
}

void Update::tell(Word word) { ranks_->broadcast(&word, sizeof word, 0); }

void Update::note(Result<void> done) {
  if (!done && !error_) error_ = std::move(done).error();
}

void Update::share(std::size_t t, const std::byte* data) {
  const std::int64_t width = dtype_bits(expected_[t].info.dtype) / 8;
  for (const Part& part : parts_[t]) {
    const ParamSpec& row = table_.rows[part.param];
    const quant::Format* format = plan_.params.slots[part.param].format;
    const std::int64_t rows = row.pieces[part.piece].rows, first = row.pieces[part.piece].source.first_output;
    float absmax = 0;
    const bool one_scale = format && format->shared && format->shared->rows == 0;
    if (one_scale) {
      if (data) note(attempt([&]() -> Result<void> { absmax = TRY(largest(part, t, data)); return {}; }));
      ranks_->broadcast(&absmax, sizeof absmax, 0);
    }
    const std::int64_t step = format ? std::max(kRunBytes / std::max<std::int64_t>(row.inputs * width, 1) / kRowStep * kRowStep, kRowStep) : std::max<std::int64_t>(rows, 1);
    for (std::int64_t at = 0; at < rows && !ranks_->error(); at += step) {
      const std::int64_t count = std::min(step, rows - at);
      const std::byte* run = data ? rows_of(part, t, data, first + at, count) : run_.data();
      ranks_->broadcast(const_cast<std::byte*>(run), count * row.inputs * width, 0);  // of rank 0's nothing changes
      if (part.route >= 0 && !error_) note(attempt([&] { return accept(part, first + at, count, run, one_scale ? std::span(&absmax, 1) : std::span<const float>()); }));
    }
  }
}

const std::byte* Update::rows_of(const Part& part, std::size_t t, const std::byte* data, std::int64_t first, std::int64_t count) {
  const ParamSpec& row = table_.rows[part.param];
  const checkpoint::TensorInfo& info = expected_[t].info;
  const std::int64_t width = dtype_bits(info.dtype) / 8;
  if (!row.transposed || row.role == Role::kVector) return data + first * row.inputs * width;
  const std::int64_t stride = file_row_bytes(info);
  const std::byte* begin = data + row.pieces[part.piece].source.first_input * stride + first * width;
  pool_.parallel_for(count, quant::kPanelRows, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t at = from; at < to; at += quant::kPanelRows)
      transpose(width, begin + at * width, stride, row.inputs, std::min(quant::kPanelRows, to - at), run_.data() + at * row.inputs * width, row.inputs);
  });
  return run_.data();
}

// A number that is not finite is found where its slice is stored, and named there; meanwhile it counts as nothing.
Result<float> Update::largest(const Part& part, std::size_t t, const std::byte* data) {
  const ParamSpec& row = table_.rows[part.param];
  const std::int64_t rows = row.pieces[part.piece].rows, first = row.pieces[part.piece].source.first_output, width = dtype_bits(expected_[t].info.dtype) / 8;
  const std::int64_t step = std::max(kRunBytes / std::max<std::int64_t>(row.inputs * width, 1) / kRowStep * kRowStep, kRowStep);
  std::vector<float> most(static_cast<std::size_t>(rows));
  for (std::int64_t at = 0; at < rows; at += step) {
    const std::int64_t count = std::min(step, rows - at);
    const std::byte* run = rows_of(part, t, data, first + at, count);
    pool_.parallel_for(count, quant::kPanelRows, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; r += quant::kPanelRows)
        (void)quant::absmax(kernels_, {.data = run + r * row.inputs * width, .dtype = expected_[t].info.dtype, .stride = row.inputs, .rows = static_cast<int>(std::min(quant::kPanelRows, to - r)), .inputs = row.inputs},
                            0, most.data() + at + r);
    });
  }
  return most.empty() ? 0.0f : std::ranges::max(most);
}

// Panels by all threads, behind those rows that end a panel others began.
Result<void> Update::accept(const Part& part, std::int64_t first, std::int64_t count, const std::byte* rows, std::span<const float> absmax) {
  const auto r = static_cast<std::size_t>(part.route);
  const Route& route = plan_.routes[r];
  if (!route.matrix) return sink_->accept({r, 0, 1}, rows, 0);
  const std::int64_t begin = std::max(first, route.slice.row_begin), end = std::min(first + count, route.slice.row_end);
  if (begin >= end) return {};
  const auto range = [&](std::int64_t from, std::int64_t n) { return sink_->accept_rows({r, from, n}, {.first = first, .data = rows, .absmax = absmax}); };
  const std::int64_t local = route.slice.local_row + begin - route.slice.row_begin;
  const std::int64_t lead = std::min((quant::kPanelRows - local % quant::kPanelRows) % quant::kPanelRows, end - begin);
  if (lead != 0) TRY(range(begin, lead));
  FirstError error;
  pool_.parallel_for(end - begin - lead, kRowStep, [&](std::int64_t from, std::int64_t to) {
    if (auto done = range(begin + lead + from, to - from); !done) error.report(static_cast<std::size_t>(from), std::move(done).error());
  });
  if (error.failed()) return std::unexpected(error.take());
  return {};
}

Result<void> Update::apply(quant::ParamStore& store) {
  if (failed_) return fail(Code::kInvalidArgument, "a tensor of this update was refused; the weights are unchanged");
  const std::vector<std::size_t> touched = TRY(this->touched());
  if (ranks_) tell({.kind = Kind::kApply});
  ended_ = true;
  return put_in_place(touched, store);
}

Result<void> Update::follow(quant::ParamStore& store) {
  for (;;) {
    ranks_->state("waits for new weights");
    Word word;
    ranks_->broadcast(&word, sizeof word, 0);
    if (auto error = ranks_->error()) return std::unexpected(*std::move(error));
    const auto t = static_cast<std::size_t>(word.tensor);
    switch (word.kind) {
      case Kind::kTensor:
        given_[t] = true;
        expect_dtype(t, word.dtype);
        share(t, nullptr);
        break;
      case Kind::kApply: return put_in_place(TRY(touched()), store);  // rank 0 found nothing missing
      case Kind::kDrop: return {};
    }
  }
}

// Parameters of which tensors came, and those that follow from them.
Result<std::vector<std::size_t>> Update::touched() const {
  if (std::ranges::find(given_, true) == given_.end()) return fail(Code::kInvalidArgument, "the update holds no tensor of the model");
  std::vector<std::string> missing;
  std::vector<std::size_t> touched;
  for (std::size_t i = 0; i < table_.rows.size(); ++i) {
    const ParamSpec& row = table_.rows[i];
    if (row.derivation) continue;
    std::vector<std::string> absent;
    for (std::size_t p = 0; p < row.pieces.size(); ++p)
      if (!given_[tensors_.at(row.piece_name(p))]) absent.push_back(row.piece_name(p));
    if (absent.size() == row.pieces.size()) continue;
    touched.push_back(i);
    missing.insert(missing.end(), absent.begin(), absent.end());
  }
  if (!missing.empty())
    return fail(Code::kInvalidArgument, "the update is incomplete: \"{}\"{} did not come, and tensors that share a parameter with it did; the weights are unchanged", missing[0],
                missing.size() > 1 ? fmt::format(" and {} more", missing.size() - 1) : "");
  for (std::size_t i = 0; i < table_.rows.size(); ++i)
    if (const auto& derivation = table_.rows[i].derivation; derivation && std::ranges::find(touched, derivation->source) != touched.end()) touched.push_back(i);
  return touched;
}

Result<void> Update::put_in_place(const std::vector<std::size_t>& touched, quant::ParamStore& store) {
  TRY(complete(touched));
  for (const std::size_t i : touched) store.take(i, store_);
  return {};
}

Result<void> Update::complete(const std::vector<std::size_t>& touched) {
  TRY(agree(error_ ? Result<void>(std::unexpected(*error_)) : Result<void>()));
  if (ranks_) {  // a matrix keeps FP32 group scales on all ranks, or on none
    const auto in_groups = [&](std::size_t i) { return !store_.vector(i) && store_.matrix(i).group != 0 && store_.matrix(i).outputs > 0 && !table_.rows[i].derivation; };
    std::vector<float> wide(touched.size());
    for (std::size_t k = 0; k < touched.size(); ++k) wide[k] = in_groups(touched[k]) && !quant::fit_fp16(store_.matrix(touched[k])) ? 1.0f : 0.0f;
    ranks_->all_reduce_max(wide.data(), static_cast<std::int64_t>(wide.size()));
    if (auto error = ranks_->error()) return std::unexpected(*std::move(error));
    for (std::size_t k = 0; k < touched.size(); ++k)
      if (in_groups(touched[k])) quant::finish(store_.matrix(touched[k]), wide[k] != 0);
  }
  return agree(attempt([&] { return derive(touched); }));
}

Result<void> Update::derive(const std::vector<std::size_t>& touched) {
  for (const std::size_t i : touched) {
    const auto& derivation = table_.rows[i].derivation;
    if (derivation && !quant::derive(kernels_, store_.matrix(derivation->source), *derivation, store_.matrix(i)))
      return fail(Code::kCorrupt, "{} does not fit BF16, which {} is kept in; use --compute fp32", table_.rows[derivation->source].full_name(), table_.rows[i].full_name());
  }
  return {};
}

Result<void> Update::agree(const Result<void>& mine) const {
  if (!ranks_) return mine;
  const auto first = comm::first_error(*ranks_, mine ? std::nullopt : std::optional(mine.error()));
  if (auto error = ranks_->error()) return std::unexpected(*std::move(error));
  if (!first) return {};
  return fail(first->error.code, "rank {} could not take the new weights, and all ranks keep those they had: {}", first->rank, first->error.message);
}

}  // namespace inflight::loader
