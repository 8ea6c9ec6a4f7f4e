#include "loader/exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "loader/parallel.h"
#include "loader/transpose.h"
#include "tensor/buffer.h"

namespace inflight::loader {
namespace {

using checkpoint::TensorInfo;
using params::ParamSpec;
using params::Slice;

constexpr std::int64_t kBatchMagnitudes = 4 << 20;
constexpr std::int64_t kPartBytes = 512 << 10;    // that a thread takes at a time
constexpr std::int64_t kRowStep = 128;            // batches begin at multiples of it: whole panels, and whole blocks of FP8

std::int64_t pieces(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }
std::int64_t groups_of(const quant::Format& format, std::int64_t inputs) { return format.scale_inputs() == 0 ? 1 : pieces(inputs, format.scale_inputs()); }
std::int64_t runs_of(const quant::Format& format, std::int64_t rows) { return format.scale_rows() == 0 ? 1 : pieces(rows, format.scale_rows()); }

// How rows of a slice lie while they wait: `ld` numbers a row, the first of which is column `first` of the piece. Columns [read_begin, read_end) are read,
// those before are zeros.
struct Columns {
  std::int64_t first = 0, ld = 0, read_begin = 0, read_end = 0;
};

Columns columns_of(const quant::Format& format, const Slice& slice, std::int64_t inputs) {
  const std::int64_t first = slice.col_begin / format.lead_step() * format.lead_step();
  const std::int64_t whole = format.whole_groups;
  const std::int64_t end = whole == 0 ? slice.col_end : std::min(pieces(slice.col_end, whole) * whole, inputs);
  return {first, end - first, whole == 0 ? slice.col_begin : first, end};
}

// Whether [begin, end) of `all` is whole groups of `group`; 0: all are one.
bool whole_groups(std::int64_t begin, std::int64_t end, std::int64_t all, std::int64_t group) {
  if (group == 0) return begin == 0 && end == all;
  return begin % group == 0 && (end % group == 0 || end == all);
}

// Ranks that cut the row, one topology each; none where it is whole everywhere.
std::vector<params::Topology> cutters(const ParamSpec& row, const params::Topology& topology) {
  std::vector<params::Topology> ranks;
  if (!params::is_cut(row, topology)) return ranks;
  for (int rank = 0; rank < topology.tp_size; ++rank) {
    ranks.push_back(topology);
    ranks.back().tp_rank = rank;
  }
  return ranks;
}

}  // namespace

Result<void> plan_exchange(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology,
                           const std::vector<const quant::Format*>& stored_format, LoadPlan& plan, const ExchangeLimits& limits) {
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> route_of;  // by parameter and piece
  for (std::size_t r = 0; r < plan.routes.size(); ++r)
    if (plan.routes[r].stored < 0) route_of[{plan.routes[r].param, plan.routes[r].piece}] = r;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ParamSpec& row = table.rows[i];
    const quant::Format* format = plan.params.slots[i].format;
    if (!format || stored_format[i] || row.derivation || !(format->store_part || format->shared)) continue;
    const auto ranks = cutters(row, topology);
    for (std::size_t p = 0; p < row.pieces.size() && !ranks.empty(); ++p) {
      const auto found = route_of.find({i, p});  // every rank has one of a row that is cut, of no outputs even
      if (found == route_of.end() || plan.routes[found->second].form >= 0) continue;
      Route& route = plan.routes[found->second];
      const std::int64_t rows = row.pieces[p].rows, width = dtype_bits(checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info.dtype) / 8;
      bool whole = true;
      std::int64_t most_rows = 0, row_bytes = 0;
      for (const params::Topology& rank : ranks) {
        const Slice slice = TRY(params::slice_of(row, p, rank));
        if (slice.row_begin == slice.row_end) continue;
        whole = whole && whole_groups(slice.row_begin, slice.row_end, rows, format->scale_rows()) && whole_groups(slice.col_begin, slice.col_end, row.inputs, format->scale_inputs()) &&
                (format->whole_groups == 0 || (slice.col_begin == 0 && slice.col_end == row.inputs));
        most_rows = std::max(most_rows, slice.row_end - slice.row_begin);
        row_bytes = std::max(row_bytes, columns_of(*format, slice, row.inputs).ld * width);
      }
      if (whole) continue;
      route.exchange = true;
      const Columns columns = columns_of(*format, route.slice, row.inputs);
      plan.source_bytes += (route.slice.row_end - route.slice.row_begin) * (columns.read_end - columns.read_begin - route.slice.col_end + route.slice.col_begin) * width;
      // Where all ranks have all rows, those can be dealt out to batches.
      const bool by_rows = row.split == params::Split::kInputs && format->scale_rows() != 0;
      const std::int64_t step = by_rows ? std::max(limits.batch_bytes / std::max<std::int64_t>(row_bytes, 1) / kRowStep * kRowStep, kRowStep) : rows;
      for (std::int64_t at = 0; at < rows; at += step) {
        Exchange part{.route = found->second, .first = at, .rows = std::min(step, rows - at)};
        const std::int64_t bytes = (by_rows ? part.rows : most_rows) * row_bytes, magnitudes = runs_of(*format, part.rows) * groups_of(*format, row.inputs);
        if (plan.batches.empty() || plan.batches.back().bytes + bytes > limits.batch_bytes || plan.batches.back().magnitudes + magnitudes > kBatchMagnitudes) plan.batches.emplace_back();
        ExchangeBatch& batch = plan.batches.back();
        part.magnitudes = batch.magnitudes;
        batch.magnitudes += magnitudes;
        batch.bytes += bytes;
        batch.twice = batch.bytes > limits.staging_bytes;  // of one part then
        batch.parts.push_back(part);
      }
    }
  }
  return {};
}

namespace {

// Rows of a route that a thread reads, scans and quantizes.
struct Part {
  const Exchange* exchange;
  Chunk chunk;
  Columns columns;
  std::int64_t width;      // bytes of a number
  std::int64_t place;      // of its numbers in the staging
  std::int64_t bytes() const { return chunk.rows * columns.ld * width; }
  std::int64_t read_bytes() const { return chunk.rows * (columns.read_end - columns.read_begin) * width; }
};

class Loader {
 public:
  Loader(const LoadContext& context, Sink& sink, const TensorBytes& bytes, const Advance& advance) : context_(context), plan_(context.plan), sink_(sink), bytes_(bytes), advance_(advance) {}

  Result<void> load() {
    std::int64_t staging = 0, part = 0, tile = 0;
    for (const ExchangeBatch& batch : plan_.batches) {
      std::int64_t bytes = 0;
      for (const Part& p : parts_of(batch)) {
        bytes += p.bytes();
        if (batch.twice) part = std::max(part, p.bytes());
        if (plan_.routes[p.chunk.route].transposed) tile = std::max(tile, p.read_bytes());
      }
      if (!batch.twice) staging = std::max(staging, bytes);
    }
    staging_ = TRY(Buffer::map(static_cast<std::size_t>(staging)));
    for (int worker = 0; worker < context_.pool.threads(); ++worker) {
      rows_.push_back(TRY(Buffer::map(static_cast<std::size_t>(part))));
      tiles_.push_back(TRY(Buffer::map(static_cast<std::size_t>(tile))));
    }
    std::vector<Part> parts = parts_of(plan_.batches[0]);
    TRY(expect_all(parts));
    for (std::size_t b = 0; b < plan_.batches.size(); ++b) {
      std::vector<Part> next = b + 1 < plan_.batches.size() ? parts_of(plan_.batches[b + 1]) : std::vector<Part>{};
      TRY(load_batch(plan_.batches[b], parts, next));
      parts = std::move(next);
    }
    return {};
  }

 private:
  const quant::Format& format_of(const Part& part) const { return *plan_.params.slots[plan_.routes[part.chunk.route].param].format; }

  std::vector<Part> parts_of(const ExchangeBatch& batch) const {
    std::vector<Part> parts;
    std::int64_t place = 0;
    for (const Exchange& exchange : batch.parts) {
      const Route& route = plan_.routes[exchange.route];
      const std::int64_t width = dtype_bits(tensor_of(route).dtype) / 8;
      const Columns columns = columns_of(*plan_.params.slots[route.param].format, route.slice, route.inputs);
      const std::int64_t begin = std::max(route.slice.row_begin, route.first_row + exchange.first), end = std::min(route.slice.row_end, route.first_row + exchange.first + exchange.rows);
      // A tile of a transposed tensor is wide, so that its rows are long reads, while all threads have some.
      const std::int64_t bytes = route.transposed ? std::clamp<std::int64_t>(batch.bytes / context_.pool.threads(), kPartBytes, kTransposedTileBytes) : kPartBytes;
      const std::int64_t step = std::max(bytes / std::max<std::int64_t>(columns.ld * width, 1) / quant::kPanelRows * quant::kPanelRows, quant::kPanelRows);
      for (std::int64_t at = begin; at < end; at += step) {
        parts.push_back({&exchange, {exchange.route, at, std::min(step, end - at)}, columns, width, place});
        place += parts.back().bytes();
      }
    }
    return parts;
  }

  const TensorInfo& tensor_of(const Route& route) const { return context_.checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info; }

  // Where the part's numbers lie, from the tensor's first byte.
  FileRange range_of(const Part& part) const {
    const Route& route = plan_.routes[part.chunk.route];
    const Columns& c = part.columns;
    const std::int64_t row_bytes = file_row_bytes(tensor_of(route)), wanted = c.read_end - c.read_begin, width = part.width;
    const std::int64_t begin = route.transposed ? (route.first_input + c.read_begin) * row_bytes + part.chunk.row * width : part.chunk.row * row_bytes + c.read_begin * width;
    return {begin, begin + (route.transposed ? (wanted - 1) * row_bytes + part.chunk.rows * width : (part.chunk.rows - 1) * row_bytes + wanted * width)};
  }
  Result<void> expect_all(const std::vector<Part>& parts) {
    return each(context_.pool, parts, [this](const Part& part, int) -> Result<void> {
      expect(part);
      return {};
    });
  }
  void expect(const Part& part) const { bytes_.expect(plan_.routes[part.chunk.route].tensor, range_of(part)); }

  // The numbers of the part, [rows][ld].
  Result<void> read_part(const Part& part, std::byte* out, std::byte* tile) const {
    const Route& route = plan_.routes[part.chunk.route];
    const Columns& c = part.columns;
    const std::int64_t row_bytes = file_row_bytes(tensor_of(route)), width = part.width, wanted = c.read_end - c.read_begin, zeros = (c.read_begin - c.first) * width, ld = c.ld * width;
    const std::int64_t begin = range_of(part).begin;
    for (std::int64_t r = 0; zeros != 0 && r < part.chunk.rows; ++r) std::memset(out + r * ld, 0, static_cast<std::size_t>(zeros));
    if (route.transposed) {
      const std::int64_t line = part.chunk.rows * width;
      if (line == row_bytes) {
        TRY(bytes_.read(route.tensor, begin, wanted * line, tile));
      } else {
        for (std::int64_t k = 0; k < wanted; ++k) TRY(bytes_.read(route.tensor, begin + k * row_bytes, line, tile + k * line));
      }
      for (std::int64_t r = 0; r < part.chunk.rows; r += quant::kPanelRows)
        transpose(width, tile + r * width, line, wanted, std::min(quant::kPanelRows, part.chunk.rows - r), out + r * ld + zeros, c.ld);
      return {};
    }
    if (wanted * width == row_bytes && zeros == 0) return bytes_.read(route.tensor, begin, part.chunk.rows * row_bytes, out);
    for (std::int64_t r = 0; r < part.chunk.rows; ++r) TRY(bytes_.read(route.tensor, begin + r * row_bytes, wanted * width, out + r * ld + zeros));
    return {};
  }

  // Rows [at, at + n) of the part, at most 16.
  quant::SourceRows rows_of(const Part& part, const std::byte* numbers, std::int64_t at, int n) const {
    return {.data = numbers + at * part.columns.ld * part.width, .dtype = tensor_of(plan_.routes[part.chunk.route]).dtype, .stride = part.columns.ld, .rows = n, .inputs = part.columns.ld};
  }

  // Magnitudes of the batch that row `at` of the part belongs to: those of its own columns.
  float* magnitudes_of(const Part& part, std::int64_t at) {
    const quant::Format& format = format_of(part);
    const Route& route = plan_.routes[part.chunk.route];
    const std::int64_t row = part.chunk.row + at - route.first_row - part.exchange->first, run = format.scale_rows() == 0 ? 0 : row / format.scale_rows();
    const std::int64_t first_group = format.scale_inputs() == 0 ? 0 : part.columns.first / format.scale_inputs();
    return magnitudes_.data() + part.exchange->magnitudes + run * groups_of(format, route.inputs) + first_group;
  }

  Result<void> scan(const Part& part, const std::byte* numbers) {
    const quant::Format& format = format_of(part);
    const std::int64_t groups = groups_of(format, part.columns.ld);
    std::vector<float> most(static_cast<std::size_t>(quant::kPanelRows * groups));
    std::unique_lock lock(shared_magnitudes_, std::defer_lock);
    for (std::int64_t at = 0; at < part.chunk.rows; at += quant::kPanelRows) {
      const auto n = static_cast<int>(std::min(quant::kPanelRows, part.chunk.rows - at));
      const quant::SourceRows rows = rows_of(part, numbers, at, n);
      if (const std::int64_t bad = quant::absmax(context_.kernels, rows, format.scale_inputs(), most.data()); bad >= 0)
        return std::unexpected(sink_.not_finite({part.chunk.route, part.chunk.row + at, n}, rows, bad, plan_.params.slots[plan_.routes[part.chunk.route].param].lead));
      if (format.shared) lock.lock();  // other parts may have the same scales
      for (int r = 0; r < n; ++r) {
        float* out = magnitudes_of(part, at + r);
        for (std::int64_t g = 0; g < groups; ++g) out[g] = std::max(out[g], most[static_cast<std::size_t>(r * groups + g)]);
      }
      if (format.shared) lock.unlock();
    }
    return {};
  }

  Result<void> quantize(const Part& part, const std::byte* numbers) {
    const quant::Format& format = format_of(part);
    quant::Matrix& matrix = *TRY(sink_.open(part.chunk.route));
    const std::int64_t groups = groups_of(format, matrix.inputs);
    std::vector<float> most(static_cast<std::size_t>(quant::kPanelRows * groups));
    TRY(sink_.for_each_panel(part.chunk, [&](std::int64_t at, int n, std::int64_t local) -> Result<void> {
      for (int r = 0; r < n; ++r) {
        const std::span<const float> own(magnitudes_of(part, at + r), static_cast<std::size_t>(groups));
        if (format.shared) format.shared->set(matrix, local + r, local + r + 1, own);
        else std::ranges::copy(own, most.begin() + r * groups);
      }
      const quant::SourceRows rows = rows_of(part, numbers, at, n);
      (void)(format.shared ? format.store(context_.kernels, rows, local, matrix) : format.store_part(context_.kernels, rows, most.data(), local, matrix));  // all are finite
      return {};
    }));
    return sink_.count(part.chunk.route, part.chunk.rows);
  }

  // next: parts of the batch that follows.
  Result<void> load_batch(const ExchangeBatch& batch, const std::vector<Part>& parts, const std::vector<Part>& next) {
    magnitudes_.assign(static_cast<std::size_t>(batch.magnitudes), 0.0f);
    if (parts.empty()) TRY(expect_all(next));
    const auto place = [&](const Part& part, int worker) { return !batch.twice ? staging_.data() + part.place : rows_[static_cast<std::size_t>(worker)].data(); };
    const auto read = [&](const Part& part, int worker) { return read_part(part, place(part, worker), tiles_[static_cast<std::size_t>(worker)].data()); };
    TRY(each(context_.pool, parts, [&](const Part& part, int worker) -> Result<void> {
      const auto i = static_cast<std::size_t>(&part - parts.data());  // and as much of the next batch
      for (std::size_t ahead = i * next.size() / parts.size(); ahead < (i + 1) * next.size() / parts.size(); ++ahead) expect(next[ahead]);
      TRY(read(part, worker));
      TRY(scan(part, place(part, worker)));
      if (!advance_(part.read_bytes(), worker)) return fail(Code::kCancelled, "loading was stopped");
      return {};
    }));
    context_.ranks->all_reduce_max(magnitudes_.data(), batch.magnitudes);
    if (auto error = context_.ranks->error()) return std::unexpected(*std::move(error));
    return each(context_.pool, parts, [&](const Part& part, int worker) -> Result<void> {
      if (batch.twice) TRY(read(part, worker));
      return quantize(part, place(part, worker));
    });
  }

  const LoadContext& context_;
  const LoadPlan& plan_;
  Sink& sink_;
  const TensorBytes& bytes_;
  const Advance& advance_;
  Buffer staging_;
  std::vector<Buffer> rows_, tiles_;  // a worker's, where a batch does not stay, and of transposed tensors
  std::vector<float> magnitudes_;     // of the batch, over all ranks once they are exchanged
  std::mutex shared_magnitudes_;
};

}  // namespace

std::int64_t exchange_bytes(const LoadPlan& plan, int threads) {
  std::int64_t staging = 0, magnitudes = 0;
  bool tiles = false;
  for (const ExchangeBatch& batch : plan.batches) {
    staging = std::max(staging, !batch.twice ? batch.bytes : threads * 2 * kPartBytes);
    magnitudes = std::max(magnitudes, batch.magnitudes * 4);
    for (const Exchange& part : batch.parts) tiles |= plan.routes[part.route].transposed;
  }
  return staging + magnitudes + (tiles ? threads * kTransposedTileBytes : 0);
}

Result<void> check_together(const LoadContext& context) {
  if (!context.ranks || context.ranks->size() == 1) return fail(Code::kInternal, "a part of a model is loaded without the ranks that hold the others");
  return {};
}

Result<void> load_exchanged(const LoadContext& context, Sink& sink, const TensorBytes& bytes, const Advance& advance) {
  if (context.plan.batches.empty()) return {};
  TRY(check_together(context));
  return Loader(context, sink, bytes, advance).load();
}

namespace {

// The parameters of `plan` that are marked, group scales to stay FP32.
LoadPlan of_params(const LoadPlan& plan, const std::vector<bool>& marked) {
  LoadPlan part{.params = plan.params, .forms = plan.forms, .wide_scales = true};
  std::vector<std::size_t> place(plan.routes.size());
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    if (!marked[plan.routes[r].param]) continue;
    place[r] = part.routes.size();
    part.routes.push_back(plan.routes[r]);
  }
  for (const ExchangeBatch& batch : plan.batches) {
    ExchangeBatch kept{.magnitudes = batch.magnitudes, .bytes = batch.bytes, .twice = batch.twice};
    for (Exchange exchange : batch.parts) {
      if (!marked[plan.routes[exchange.route].param]) continue;
      exchange.route = place[exchange.route];
      kept.parts.push_back(exchange);
    }
    if (!kept.parts.empty()) part.batches.push_back(std::move(kept));
  }
  for (const SharedBatch& batch : plan.shared_reads) {
    SharedBatch kept{.bytes = batch.bytes};
    for (SharedRead read : batch.reads) {
      if (!marked[plan.routes[read.route].param]) continue;
      read.route = place[read.route];
      kept.reads.push_back(read);
    }
    if (!kept.reads.empty()) part.shared_reads.push_back(std::move(kept));
  }
  return part;
}

// Loads again, in FP32, the group scales that one rank could round to FP16 while another could not: on one rank the whole matrix keeps them.
Result<void> agree_on_scales(const LoadContext& context, const Road& load) {
  const std::size_t n = context.table.rows.size();
  std::vector<float> found(2 * n, 0.0f);  // some rank's are wide; some rank's are not
  for (std::size_t i = 0; i < n; ++i)
    if (const quant::Matrix& matrix = context.store.matrix(i); matrix.format && matrix.group != 0 && matrix.outputs > 0 && !matrix.format->exact_scales) found[matrix.scales_fp16 ? n + i : i] = 1;
  context.ranks->all_reduce_max(found.data(), static_cast<std::int64_t>(found.size()));
  if (auto error = context.ranks->error()) return std::unexpected(*std::move(error));
  std::vector<bool> differ(n);
  for (std::size_t i = 0; i < n; ++i) differ[i] = found[i] != 0 && found[n + i] != 0;
  if (std::ranges::find(differ, true) == differ.end()) return {};
  const LoadPlan again = of_params(context.plan, differ);
  TRY(load({context.checkpoint, again, context.table, context.kernels, context.pool, context.store, context.ranks}, {}));
  return {};
}

}  // namespace

Result<LoadReport> load_together(const LoadContext& context, const Progress& progress, const Road& load) {
  if (!context.ranks || context.ranks->size() == 1) return load(context, progress);
  context.ranks->state("loading");
  auto report = load(context, progress);
  if (report)
    if (auto agreed = agree_on_scales(context, load); !agreed) report = std::unexpected(std::move(agreed).error());
  if (report) report->weight_bytes = context.store.weight_bytes();
  else context.ranks->fail(report.error());
  context.ranks->barrier();
  if (auto error = context.ranks->error()) return std::unexpected(*std::move(error));
  return report;
}

}  // namespace inflight::loader
