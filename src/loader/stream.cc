// The streaming loader. Memory: one chunk buffer a thread or, past the page cache, a ring of buffers; the destination arena, and the FP32 scales of the parameters in progress.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "loader/exchange.h"
#include "loader/first_error.h"
#include "loader/load.h"
#include "loader/page_cache.h"
#include "loader/read_ahead.h"
#include "loader/shared_reads.h"
#include "loader/sink.h"
#include "loader/stored_columns.h"
#include "tensor/buffer.h"

namespace inflight::loader {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TensorInfo;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDirectAlignment = 4096;  // O_DIRECT: offset, length and address
// Chunks of the page cache that a thread takes at once: neighbours end in the same huge page, and two threads that meet an untouched one both clear
// 2 MiB, one of them in vain.
constexpr std::size_t kRun = 8;
constexpr int kReaders = 2;  // requests in flight to the disk: more brought nothing

// Whether rows of the file are read in part, as a rank may need them: direct reads would be of all.
bool in_parts(const Route& route) {
  if (route.exchange) return true;
  return route.form >= 0 ? route.read.end - route.read.begin != route.inputs : route.matrix && route.slice.col_end - route.slice.col_begin != route.inputs;
}

// Reads one chunk's rows into `buffer`; returns where the data starts and how far apart the rows lie. stored: what is wanted of rows in a stored form of ours.
struct ReadRows {
  const std::byte* data;
  std::int64_t stride;
};
Result<ReadRows> read_chunk(const InputFile& file, const TensorInfo& tensor, const Route& route, const Chunk& chunk, std::byte* buffer, StoredColumns stored = {}) {
  const std::int64_t row_bytes = file_row_bytes(tensor);
  const std::int64_t begin = tensor.begin + (route.matrix ? chunk.row * row_bytes : 0);
  const std::int64_t bytes = (route.matrix ? chunk.rows : 1) * row_bytes;
  if (stored.end == 0) stored.end = row_bytes;
  if (file.direct()) {
    const std::int64_t aligned = begin / kDirectAlignment * kDirectAlignment;
    const std::int64_t end = (begin + bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    TRY(file.read_at(buffer, static_cast<std::size_t>(end - aligned), aligned, static_cast<std::size_t>(begin + bytes - aligned)));
    return ReadRows{buffer + (begin - aligned), row_bytes};
  }
  const std::int64_t columns = file_columns(tensor);
  const std::int64_t wanted = route.slice.col_end - route.slice.col_begin;
  if (route.matrix && route.stored < 0 && wanted < columns) {  // this rank needs some columns of each row
    const std::int64_t width = row_bytes / columns;
    for (std::int64_t r = 0; r < chunk.rows; ++r)
      TRY(file.read_at(buffer + r * wanted * width, static_cast<std::size_t>(wanted * width), begin + r * row_bytes + route.slice.col_begin * width));
    return ReadRows{buffer, wanted * width};
  }
  if (stored.bytes() < row_bytes) {
    for (std::int64_t r = 0; r < chunk.rows; ++r)
      TRY(file.read_at(buffer + r * stored.bytes(), static_cast<std::size_t>(stored.bytes()), begin + r * row_bytes + stored.begin));
    return ReadRows{buffer, stored.bytes()};
  }
  TRY(file.read_at(buffer, static_cast<std::size_t>(bytes), begin));
  return ReadRows{buffer, row_bytes};
}

// A tile of a transposed tensor: some columns of the slice's inputs.
Result<ReadRows> read_tile(const InputFile& file, const TensorInfo& tensor, const Route& route, const Chunk& chunk, std::byte* buffer) {
  const std::int64_t row_bytes = file_row_bytes(tensor), width = dtype_bits(tensor.dtype) / 8;
  const std::int64_t inputs = route.slice.col_end - route.slice.col_begin, tile_bytes = chunk.rows * width;
  const std::int64_t begin = tensor.begin + (route.first_input + route.slice.col_begin) * row_bytes + chunk.row * width;
  if (tile_bytes == row_bytes) {
    TRY(file.read_at(buffer, static_cast<std::size_t>(inputs * row_bytes), begin));
  } else {
    for (std::int64_t k = 0; k < inputs; ++k) TRY(file.read_at(buffer + k * tile_bytes, static_cast<std::size_t>(tile_bytes), begin + k * row_bytes));
  }
  return ReadRows{buffer, tile_bytes};
}

// The codes of some outputs of a matrix in a stored form.
Result<ReadRows> read_codes(const InputFile& file, const TensorInfo& tensor, const FormLines& lines, std::byte* buffer) {
  if (!file.direct()) {
    const quant::FormBytes bytes = TRY(read_form(file, tensor, lines, buffer));
    return ReadRows{bytes.data, bytes.stride};
  }
  const std::int64_t begin = tensor.begin + lines.begin * lines.line_bytes, end = begin + lines.total();  // whole lines: others do not come from such files
  const std::int64_t aligned = begin / kDirectAlignment * kDirectAlignment, aligned_end = (end + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  TRY(file.read_at(buffer, static_cast<std::size_t>(aligned_end - aligned), aligned, static_cast<std::size_t>(end - aligned)));
  return ReadRows{buffer + (begin - aligned), lines.line_bytes};
}

// Puts a chunk's codes away together with what the other tensors of its matrix say of these outputs.
Result<void> accept_form(const Checkpoint& checkpoint, const LoadPlan& plan, const Chunk& chunk, const ReadRows& codes, Sink& sink) {
  const FormSource& source = plan.forms[static_cast<std::size_t>(plan.routes[chunk.route].form)];
  std::vector<quant::FormBytes> bytes(source.tensors.size());
  std::vector<std::vector<std::byte>> buffers(source.tensors.size());
  const FormArea area = form_area(plan, chunk);
  for (std::size_t t = 0; t < source.tensors.size(); ++t) {
    if (source.places[t] < 0) continue;
    const checkpoint::Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(source.places[t])];
    const FormLines lines = form_lines(source, t, tensor.info, area);
    if (t == 0) {
      bytes[t] = {codes.data, codes.stride, lines.origin, tensor.info.dtype};
      continue;
    }
    buffers[t].resize(static_cast<std::size_t>(lines.total()));
    bytes[t] = TRY(read_form(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)], tensor.info, lines, buffers[t].data()));
  }
  return sink.accept_form(chunk, bytes);
}

// Where what is read of a chunk lies in its file.
FileRange range_of(const Checkpoint& checkpoint, const LoadPlan& plan, const Chunk& chunk) {
  const Route& route = plan.routes[chunk.route];
  const TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
  if (route.form >= 0) {
    const FormLines lines = form_lines(plan.forms[static_cast<std::size_t>(route.form)], 0, tensor, form_area(plan, chunk));
    return {tensor.begin + lines.begin * lines.line_bytes + lines.offset, tensor.begin + (lines.end - 1) * lines.line_bytes + lines.offset + lines.bytes};
  }
  const std::int64_t row_bytes = file_row_bytes(tensor);
  if (!route.transposed) return {tensor.begin + chunk.row * row_bytes, tensor.begin + (chunk.row + chunk.rows) * row_bytes};
  const std::int64_t begin = tensor.begin + (route.first_input + route.slice.col_begin) * row_bytes, width = dtype_bits(tensor.dtype) / 8;
  return {begin + chunk.row * width, begin + (route.slice.col_end - route.slice.col_begin - 1) * row_bytes + (chunk.row + chunk.rows) * width};
}

// A matrix whose scales follow from all of its numbers: they are read once into `staging`, or twice where that is too small for them, and looked at twice.
// `chunk` holds all rows. check: false ends it early.
Result<void> read_matrix(const InputFile& file, const TensorInfo& tensor, const Route& route, const Chunk& chunk, const Buffer& staging, Sink& sink) {
  const std::int64_t row = (route.slice.col_end - route.slice.col_begin) * dtype_bits(tensor.dtype) / 8;
  const std::int64_t step = std::max<std::int64_t>(kCachedChunkBytes / std::max<std::int64_t>(row, 1) / quant::kPanelRows * quant::kPanelRows, quant::kPanelRows);
  const bool stays = chunk.rows * row <= static_cast<std::int64_t>(staging.bytes());
  Sink::Scan scan = sink.begin_scan(chunk);
  for (const bool first : {true, false}) {
    for (std::int64_t at = 0; at < chunk.rows; at += step) {
      const Chunk part{chunk.route, chunk.row + at, std::min(step, chunk.rows - at)};
      std::byte* place = staging.data() + (stays ? at * row : 0);
      if (first || !stays) TRY(read_chunk(file, tensor, route, part, place));
      TRY(first ? sink.scan(chunk, part, place, row, scan) : sink.accept_scanned(part, place, row));
    }
    if (first) TRY(sink.set_scales(chunk, scan));
  }
  return {};
}

class FileBytes final : public TensorBytes {
 public:
  FileBytes(const Checkpoint& checkpoint, const std::vector<bool>& cold) : checkpoint_(checkpoint), cold_(cold) {}
  void expect(int tensor, FileRange range) const override {
    const checkpoint::Tensor& t = checkpoint_.tensors()[static_cast<std::size_t>(tensor)];
    if (cold_[static_cast<std::size_t>(t.shard)]) read_soon(checkpoint_.shards()[static_cast<std::size_t>(t.shard)], {t.info.begin + range.begin, t.info.begin + range.end});
  }
  Result<void> read(int tensor, std::int64_t offset, std::int64_t bytes, std::byte* into) const override {
    const checkpoint::Tensor& t = checkpoint_.tensors()[static_cast<std::size_t>(tensor)];
    return checkpoint_.shards()[static_cast<std::size_t>(t.shard)].read_at(into, static_cast<std::size_t>(bytes), t.info.begin + offset);
  }

 private:
  const Checkpoint& checkpoint_;
  const std::vector<bool>& cold_;
};

Result<LoadReport> load_parameters(const LoadContext& context, const Progress& progress) {
  const auto start = Clock::now();
  const Checkpoint& checkpoint = context.checkpoint;
  LoadReport report;

  // Cold shards get a second descriptor that bypasses the page cache; files may refuse that, and then are read as usual.
  // Tiles of transposed tensors are rows of a few kilobytes: what one tile leaves of a page, the next one takes from the page cache.
  std::vector<bool> tiled(checkpoint.shards().size());
  for (const Route& route : context.plan.routes)
    if (!route.exchange && !route.shared_read && (in_tiles(context.plan, route) || in_two_looks(context.plan, route))) tiled[static_cast<std::size_t>(checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].shard)] = true;
  std::vector<InputFile> files;
  std::vector<bool> cold;
  std::vector<std::int64_t> chunk_bytes;
  for (const InputFile& shard : checkpoint.shards()) {
    cold.push_back(is_cold(shard));
    files.push_back(TRY(InputFile::open(shard.path(), !tiled[files.size()] && cold.back())));
    if (files.back().size() != shard.size())
      return fail(Code::kCorrupt, "\"{}\" changed from {} to {} bytes while it was being loaded", shard.path(), shard.size(), files.back().size());
    chunk_bytes.push_back(files.back().direct() ? kDirectChunkBytes : kCachedChunkBytes);
    report.direct_io |= files.back().direct();
  }
  const std::vector<Chunk> chunks = cut_chunks(checkpoint, context.plan, chunk_bytes);
  std::int64_t largest = 0, matrix_bytes = 0;
  for (const Chunk& chunk : chunks) {
    const Route& route = context.plan.routes[chunk.route];
    if (in_two_looks(context.plan, route)) {
      const std::int64_t bytes = chunk.rows * (route.slice.col_end - route.slice.col_begin) * dtype_bits(checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info.dtype) / 8;
      const std::int64_t part = std::max(kCachedChunkBytes, bytes / std::max<std::int64_t>(chunk.rows, 1) * quant::kPanelRows);
      matrix_bytes = std::max(matrix_bytes, bytes <= kMatrixStagingBytes / context.pool.threads() ? bytes : part);
      continue;
    }
    largest = std::max(largest, chunk_buffer_bytes(context.plan, checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info, route, chunk));
  }

  Sink sink(checkpoint.tensors(), context.plan, context.table, context.kernels, context.store);
  FirstError error;
  std::atomic<std::int64_t> bytes_done{0};
  const auto file_of = [&](const Chunk& chunk) -> const InputFile& {
    const Route& route = context.plan.routes[chunk.route];
    const auto shard = static_cast<std::size_t>(checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].shard);
    return in_parts(route) ? checkpoint.shards()[shard] : files[shard];
  };
  const auto read = [&](const Chunk& chunk, std::byte* buffer) {
    const Route& route = context.plan.routes[chunk.route];
    const TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
    if (route.form >= 0) return read_codes(file_of(chunk), tensor, form_lines(context.plan.forms[static_cast<std::size_t>(route.form)], 0, tensor, form_area(context.plan, chunk)), buffer);
    if (route.transposed) return read_tile(file_of(chunk), tensor, route, chunk, buffer);
    const bool columns = route.matrix && route.stored >= 0;
    return read_chunk(file_of(chunk), tensor, route, chunk, buffer, columns ? stored_columns(context.plan.params.slots[route.param], route, tensor.dtype) : StoredColumns{});
  };
  // Bytes of chunk i are done; false: nobody wants the rest.
  const auto advance = [&](std::int64_t bytes, std::size_t i, int worker, Clock::time_point& reported) {
    const std::int64_t done = bytes_done.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (worker == 0 && (progress || context.ranks) && Clock::now() - reported > std::chrono::milliseconds(50)) {
      reported = Clock::now();
      if (context.ranks) {
        context.ranks->tick();
        if (auto failed = context.ranks->error()) return error.report(i, *std::move(failed)), false;
      }
      if (progress && !progress(std::min(done, context.plan.source_bytes), context.plan.source_bytes)) return error.report(i, Error{Code::kCancelled, "loading was stopped"}), false;
    }
    return true;
  };
  // Puts chunk i away; false: an error was reported, nothing more is to be done.
  const auto consume = [&](std::size_t i, const ReadRows& rows, std::byte* buffer, int worker, Clock::time_point& reported) {
    const Route& route = context.plan.routes[chunks[i].route];
    const std::int64_t inputs = route.slice.col_end - route.slice.col_begin;
    auto accepted = route.form >= 0    ? accept_form(checkpoint, context.plan, chunks[i], rows, sink)
                    : route.transposed ? sink.accept_transposed(chunks[i], rows.data, rows.stride, buffer + inputs * rows.stride)
                                     : sink.accept(chunks[i], rows.data, rows.stride);
    if (!accepted) return error.report(i, std::move(accepted).error()), false;
    const std::int64_t bytes = route.form >= 0 ? chunk_buffer_bytes(context.plan, checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info, route, chunks[i]) : route.transposed ? inputs * rows.stride : rows.stride * chunks[i].rows;
    return advance(bytes, i, worker, reported);
  };

  std::vector<std::size_t> ahead, cached;  // chunks past the page cache, and the others
  for (std::size_t i = 0; i < chunks.size(); ++i) (file_of(chunks[i]).direct() ? ahead : cached).push_back(i);
  const auto buffer_bytes = static_cast<std::size_t>(largest + 2 * kDirectAlignment);
  std::vector<ReadRows> rows_read(ahead.size());
  std::unique_ptr<ReadAhead> ring;
  if (!ahead.empty()) {
    ring = TRY(ReadAhead::create(ahead.size(), context.pool.threads() + kReadAheadBuffers, buffer_bytes, [&](std::size_t item, std::byte* buffer) -> Result<void> {
      rows_read[item] = TRY(read(chunks[ahead[item]], buffer));
      return {};
    }));
  }
  // The disk reads what comes next while this is quantized.
  const auto read_cached_soon = [&](std::size_t at) {
    if (at >= cached.size()) return;
    const Chunk& chunk = chunks[cached[at]];
    if (cold[static_cast<std::size_t>(checkpoint.tensors()[static_cast<std::size_t>(context.plan.routes[chunk.route].tensor)].shard)]) read_soon(file_of(chunk), range_of(checkpoint, context.plan, chunk));
  };
  const std::size_t distance = 2 * kRun * static_cast<std::size_t>(context.pool.threads());
  std::atomic<std::size_t> next{0};
  context.pool.run([&](int worker) {
    auto reported = start;
    for (int reader = worker; ring && reader < kReaders; reader += context.pool.threads()) {
      if (auto added = ring->add_reader(); !added) {
        error.report(0, std::move(added).error());
        return ring->stop();
      }
    }
    while (ring) {
      auto item = ring->take();
      if (!item) break;
      if (!item->read) error.report(ahead[item->index], std::move(item->read).error());
      else if (!error.failed()) (void)consume(ahead[item->index], rows_read[item->index], item->data, worker, reported);
      ring->release(item->index);
      if (error.failed()) return ring->stop();
    }
    if (cached.empty()) return;
    auto buffer = Buffer::map(buffer_bytes), matrix = Buffer::map(static_cast<std::size_t>(matrix_bytes));
    if (!buffer) return error.report(0, std::move(buffer).error());
    if (!matrix) return error.report(0, std::move(matrix).error());
    for (;;) {
      const std::size_t first = next.fetch_add(kRun, std::memory_order_relaxed), last = std::min(first + kRun, cached.size());
      if (first >= cached.size()) return;
      for (std::size_t at = first; at < last; ++at) {
        if (error.failed()) return;
        if (at < distance) read_cached_soon(at);
        read_cached_soon(at + distance);
        const Chunk& chunk = chunks[cached[at]];
        if (const Route& route = context.plan.routes[chunk.route]; in_two_looks(context.plan, route)) {
          const TensorInfo& tensor = checkpoint.tensors()[static_cast<std::size_t>(route.tensor)].info;
          if (auto done = read_matrix(file_of(chunk), tensor, route, chunk, *matrix, sink); !done) return error.report(cached[at], std::move(done).error());
          if (!advance(chunk.rows * (route.slice.col_end - route.slice.col_begin) * dtype_bits(tensor.dtype) / 8, cached[at], worker, reported)) return;
          continue;
        }
        auto rows = read(chunks[cached[at]], buffer->data());
        if (!rows) return error.report(cached[at], std::move(rows).error());
        if (!consume(cached[at], *rows, buffer->data(), worker, reported)) return;
      }
    }
  });
  ring.reset();
  if (error.failed()) return std::unexpected(error.take());
  auto reported = start;  // of worker 0 alone
  const Advance advance_together = [&](std::int64_t bytes, int worker) { return advance(bytes, chunks.size(), worker, reported); };
  const FileBytes bytes(checkpoint, cold);
  TRY(load_exchanged(context, sink, bytes, advance_together));
  TRY(load_shared_reads(context, sink, bytes, advance_together));
  for (std::size_t shard = 0; shard < files.size(); ++shard) TRY(checkpoint.verify_unchanged(static_cast<int>(shard)));
  TRY(sink.check_complete());
  if (progress && !progress(context.plan.source_bytes, context.plan.source_bytes)) return fail(Code::kCancelled, "loading was stopped");

  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.source_bytes = context.plan.source_bytes;
  report.weight_bytes = context.store.weight_bytes();
  report.tensors_loaded = context.plan.tensors_loaded;
  report.tensors_elsewhere = context.plan.tensors_elsewhere;
  report.ignored = context.plan.ignored;
  return report;
}

}  // namespace

Result<LoadReport> load_streaming(const LoadContext& context, const Progress& progress) { return load_together(context, progress, load_parameters); }

}  // namespace inflight::loader
