#include "loader/shared_reads.h"

#include <algorithm>

#include "loader/exchange.h"
#include "loader/parallel.h"
#include "tensor/buffer.h"

namespace inflight::loader {
namespace {

using checkpoint::Checkpoint;

constexpr std::int64_t kBatchBytes = 32 << 20;  // that wait at once, but for matrices that cannot be taken apart
constexpr std::int64_t kReadBytes = 512 << 10;  // that a thread takes at a time
constexpr std::int64_t kRowStep = 128;          // outputs are taken in multiples of it: whole words, panels and blocks
constexpr std::int64_t kAlignment = 64;

// Lines of one tensor of the form, which all ranks hold in the end: rank r reads [r * share, (r + 1) * share) of them.
struct Lines {
  std::size_t tensor;    // of the form
  FormLines lines;
  std::int64_t share;    // lines of a rank; the last ranks' may be fewer
  std::int64_t place;    // in the staging: [ranks * share][lines.bytes]
  std::int64_t count() const { return lines.end - lines.begin; }
};

std::vector<Lines> lines_of(const Checkpoint& checkpoint, const LoadPlan& plan, const SharedRead& read, int ranks, std::int64_t place) {
  const Route& route = plan.routes[read.route];
  const FormSource& source = plan.forms[static_cast<std::size_t>(route.form)];
  std::vector<Lines> all;
  for (std::size_t t = 0; t < source.tensors.size(); ++t) {
    if (source.places[t] < 0) continue;
    const FormLines lines = form_lines(source, t, checkpoint.tensors()[static_cast<std::size_t>(source.places[t])].info, {route.first_row + read.first, read.rows, route.read});
    const std::int64_t share = (lines.end - lines.begin + ranks - 1) / ranks;
    all.push_back({t, lines, share, place});
    place += (ranks * share * lines.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return all;
}

std::int64_t staging_of(const std::vector<Lines>& all, int ranks) {
  const Lines& last = all.back();
  return last.place - all.front().place + (ranks * last.share * last.lines.bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Whether what a rank reads of a route is all of the piece, whatever its slice.
bool needs_all(const LoadPlan& plan, const params::ParamSpec& row, const Route& route) {
  if (const quant::SharedScales* shared = shared_scales(plan, route); shared && shared->rows == 0) return true;
  if (row.split != params::Split::kInputs) return false;
  const FormSource& source = plan.forms[static_cast<std::size_t>(route.form)];
  const quant::Format& format = *plan.params.slots[route.param].format;
  return source.settings.order || (format.quantized() && !keeps(source, format) && format.scale_inputs() == 0);
}

}  // namespace

void plan_shared_reads(const Checkpoint& checkpoint, const params::ParamTable& table, const params::Topology& topology, LoadPlan& plan) {
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    Route& route = plan.routes[r];
    const params::ParamSpec& row = table.rows[route.param];
    if (route.form < 0 || !params::is_cut(row, topology) || !needs_all(plan, row, route)) continue;
    route.shared_read = true;
    const quant::SharedScales* shared = shared_scales(plan, route);
    const auto staging = [&](std::int64_t first, std::int64_t rows) { return staging_of(lines_of(checkpoint, plan, {r, first, rows}, topology.tp_size, 0), topology.tp_size); };
    std::int64_t step = route.rows;
    if (!shared || shared->rows != 0) step = std::max(kRowStep, step * (kBatchBytes / 2) / std::max(staging(0, route.rows), kBatchBytes / 2) / kRowStep * kRowStep);
    for (std::int64_t at = 0; at < route.rows; at += step) {
      SharedRead read{.route = r, .first = at, .rows = std::min(step, route.rows - at)};
      const std::int64_t bytes = staging(read.first, read.rows);
      if (plan.shared_reads.empty() || plan.shared_reads.back().bytes + bytes > kBatchBytes) plan.shared_reads.emplace_back();
      SharedBatch& batch = plan.shared_reads.back();
      read.place = batch.bytes;
      batch.bytes += bytes;
      batch.reads.push_back(read);
    }
  }
}

std::int64_t shared_source_bytes(const Checkpoint& checkpoint, const LoadPlan& plan, std::size_t route, const params::Topology& topology) {
  std::int64_t bytes = 0;
  for (const SharedBatch& batch : plan.shared_reads)
    for (const SharedRead& read : batch.reads)
      if (read.route == route)
        for (const Lines& l : lines_of(checkpoint, plan, read, topology.tp_size, 0)) bytes += std::clamp<std::int64_t>(l.count() - topology.tp_rank * l.share, 0, l.share) * l.lines.bytes;
  return bytes;
}

std::int64_t shared_read_bytes(const LoadPlan& plan) {
  std::int64_t bytes = 0;
  for (const SharedBatch& batch : plan.shared_reads) bytes = std::max(bytes, batch.bytes);
  return bytes;
}

namespace {

// Lines [begin, end) of those of one tensor, which this rank reads at a time.
struct Reading {
  int tensor;  // of the checkpoint
  Lines all;
  std::int64_t begin, end;
};

class Loader {
 public:
  Loader(const LoadContext& context, Sink& sink, const TensorBytes& bytes, const Advance& advance) : context_(context), plan_(context.plan), sink_(sink), bytes_(bytes), advance_(advance) {}

  Result<void> load() {
    staging_ = TRY(Buffer::map(static_cast<std::size_t>(shared_read_bytes(plan_))));
    std::vector<Reading> readings = readings_of(plan_.shared_reads[0]);
    TRY(expect(readings));
    for (std::size_t b = 0; b < plan_.shared_reads.size(); ++b) {
      std::vector<Reading> next = b + 1 < plan_.shared_reads.size() ? readings_of(plan_.shared_reads[b + 1]) : std::vector<Reading>{};
      TRY(expect(next));
      TRY(load_batch(plan_.shared_reads[b], readings));
      readings = std::move(next);
    }
    return {};
  }

 private:
  int ranks() const { return context_.ranks->size(); }
  std::vector<Lines> lines(const SharedRead& read) const { return lines_of(context_.checkpoint, plan_, read, ranks(), read.place); }
  const FormSource& source_of(const SharedRead& read) const { return plan_.forms[static_cast<std::size_t>(plan_.routes[read.route].form)]; }

  // This rank's share of a batch.
  std::vector<Reading> readings_of(const SharedBatch& batch) const {
    std::vector<Reading> readings;
    for (const SharedRead& read : batch.reads)
      for (const Lines& l : lines(read)) {
        const std::int64_t begin = std::min(context_.ranks->rank() * l.share, l.count()), end = std::min(begin + l.share, l.count());
        const std::int64_t step = std::max<std::int64_t>(kReadBytes / std::max<std::int64_t>(l.lines.bytes, 1), 1);
        for (std::int64_t at = begin; at < end; at += step) readings.push_back({source_of(read).places[l.tensor], l, at, std::min(at + step, end)});
      }
    return readings;
  }

  Result<void> expect(const std::vector<Reading>& readings) {
    return each(context_.pool, readings, [&](const Reading& reading, int) -> Result<void> {
      const FormLines& f = reading.all.lines;
      bytes_.expect(reading.tensor, {(f.begin + reading.begin) * f.line_bytes + f.offset, (f.begin + reading.end - 1) * f.line_bytes + f.offset + f.bytes});
      return {};
    });
  }

  Result<void> read(const Reading& reading) const {
    const FormLines& f = reading.all.lines;
    std::byte* out = staging_.data() + reading.all.place + reading.begin * f.bytes;
    const std::int64_t at = (f.begin + reading.begin) * f.line_bytes + f.offset;
    if (f.whole()) return bytes_.read(reading.tensor, at, (reading.end - reading.begin) * f.bytes, out);
    for (std::int64_t i = 0; i < reading.end - reading.begin; ++i) TRY(bytes_.read(reading.tensor, at + i * f.line_bytes, f.bytes, out + i * f.bytes));
    return {};
  }

  // What this rank keeps of a batch, in chunks for threads: rows that share scales stay together.
  struct Part {
    const SharedRead* read;
    Chunk chunk;
  };
  std::vector<Part> parts_of(const SharedBatch& batch) const {
    std::vector<Part> parts;
    for (const SharedRead& read : batch.reads) {
      const Route& route = plan_.routes[read.route];
      const quant::SharedScales* shared = shared_scales(plan_, route);
      const std::int64_t begin = std::max(route.slice.row_begin, route.first_row + read.first), end = std::min(route.slice.row_end, route.first_row + read.first + read.rows);
      const std::int64_t step = shared && shared->rows == 0 ? std::max<std::int64_t>(end - begin, 1) : kRowStep;
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t rows = std::min(step - (step == kRowStep ? (at - route.first_row) % kRowStep : 0), end - at);
        parts.push_back({&read, {read.route, at, rows}});
        at += rows;
      }
    }
    return parts;
  }

  Result<void> load_batch(const SharedBatch& batch, const std::vector<Reading>& readings) {
    TRY(each(context_.pool, readings, [&](const Reading& reading, int worker) -> Result<void> {
      TRY(read(reading));
      if (!advance_((reading.end - reading.begin) * reading.all.lines.bytes, worker)) return fail(Code::kCancelled, "loading was stopped");
      return {};
    }));
    for (const SharedRead& read : batch.reads)
      for (const Lines& l : lines(read)) {
        std::byte* all = staging_.data() + l.place;
        const std::int64_t bytes = l.share * l.lines.bytes;
        context_.ranks->all_gather(all + context_.ranks->rank() * bytes, bytes, all);
      }
    if (auto error = context_.ranks->error()) return std::unexpected(*std::move(error));
    return each(context_.pool, parts_of(batch), [&](const Part& part, int) -> Result<void> {
      const FormSource& source = source_of(*part.read);
      std::vector<quant::FormBytes> bytes(source.tensors.size());
      for (const Lines& l : lines(*part.read))
        bytes[l.tensor] = {staging_.data() + l.place, l.lines.bytes, l.lines.origin, context_.checkpoint.tensors()[static_cast<std::size_t>(source.places[l.tensor])].info.dtype};
      return sink_.accept_form(part.chunk, bytes);
    });
  }

  const LoadContext& context_;
  const LoadPlan& plan_;
  Sink& sink_;
  const TensorBytes& bytes_;
  const Advance& advance_;
  Buffer staging_;
};

}  // namespace

Result<void> load_shared_reads(const LoadContext& context, Sink& sink, const TensorBytes& bytes, const Advance& advance) {
  if (context.plan.shared_reads.empty()) return {};
  TRY(check_together(context));
  return Loader(context, sink, bytes, advance).load();
}

}  // namespace inflight::loader
