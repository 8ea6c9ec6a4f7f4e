#include "loader/sink.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/bf16.h"
#include "loader/chunk.h"
#include "loader/stored_columns.h"
#include "loader/transpose.h"
#include "quant/derive.h"

namespace inflight::loader {
namespace {

using checkpoint::TensorInfo;

float element(const std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + i * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data + i * 2, 2);
  return dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// "[row, column]" in the tensor's own dimensions.
std::string place_of(const TensorInfo& tensor, std::int64_t row, std::int64_t column) {
  std::string text = fmt::format("{}]", column);
  for (std::size_t d = tensor.shape.size() - 1; d-- > 0;) {
    text = fmt::format("{}, {}", d == 0 ? row : row % tensor.shape[d], text);
    row /= std::max<std::int64_t>(tensor.shape[d], 1);
  }
  return "[" + text;
}

}  // namespace

Sink::Sink(const std::vector<checkpoint::Tensor>& tensors, const LoadPlan& plan, const params::ParamTable& table, const quant::Kernels& kernels, quant::ParamStore& store, bool derives)
    : tensors_(tensors), plan_(plan), table_(table), kernels_(kernels), store_(store), progress_(std::make_unique<Progress[]>(table.rows.size())) {
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    if (derives && table.rows[i].derivation) derived_.push_back(i);
  for (const Route& route : plan.routes) {
    if (route.stored < 0 || (route.stored == 1 && tensors[static_cast<std::size_t>(route.tensor)].info.dtype != DType::kF16)) progress_[route.param].half_scales = false;
    progress_[route.param].rows_left += route.matrix ? route.slice.row_end - route.slice.row_begin : 1;
  }
}

Result<void> Sink::begin(const Route& route) {
  Result<void> begun;
  std::call_once(progress_[route.param].begun, [&] { begun = quant::begin(store_.matrix(route.param), progress_[route.param].half_scales); });
  return begun;
}

// The release/acquire pair makes all rows visible to the one thread that completes the parameter.
Result<void> Sink::count(const Route& route, std::int64_t rows) {
  if (progress_[route.param].rows_left.fetch_sub(rows, std::memory_order_acq_rel) != rows || !plan_.params.slots[route.param].format) return {};
  quant::finish(store_.matrix(route.param), plan_.wide_scales);
  return derive_from(route.param);
}

Result<void> Sink::accept(const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes) {
  const Route& route = plan_.routes[chunk.route];
  const TensorInfo& tensor = tensors_[static_cast<std::size_t>(route.tensor)].info;
  if (!plan_.params.slots[route.param].format) {
    TRY(accept_vector(route, tensor, data));
  } else {
    TRY(begin(route));
    TRY(route.stored < 0 ? quantize_rows(chunk, plain_rows(chunk, data, stride_bytes), plain_error(chunk)) : accept_stored(route, tensor, chunk, data, stride_bytes));
  }
  return count(route, chunk.rows);
}

Sink::Scan Sink::begin_scan(const Chunk& chunk) const {
  const Route& route = plan_.routes[chunk.route];
  const quant::Slot& slot = plan_.params.slots[route.param];
  const quant::SharedScales& shared = *slot.format->shared;
  const std::int64_t runs = shared.rows == 0 ? 1 : (chunk.rows + shared.rows - 1) / shared.rows;
  return {std::vector<float>(static_cast<std::size_t>(runs * shared.groups(slot.inputs)), 0.0f)};
}

Result<void> Sink::scan(const Chunk& whole, const Chunk& part, const std::byte* data, std::int64_t stride_bytes, Scan& scan) const {
  return scan_rows(whole, part, plain_rows(part, data, stride_bytes), plain_error(part), scan);
}

Result<void> Sink::set_scales(const Chunk& whole, const Scan& scan) {
  const Route& route = plan_.routes[whole.route];
  quant::Matrix& matrix = store_.matrix(route.param);
  const quant::SharedScales& shared = *matrix.format->shared;
  TRY(begin(route));
  const std::int64_t groups = shared.groups(matrix.inputs), step = shared.rows == 0 ? whole.rows : shared.rows;
  const std::int64_t first = route.slice.local_row + whole.row - route.slice.row_begin;
  for (std::int64_t run = 0; run * step < whole.rows; ++run)
    shared.set(matrix, first + run * step, first + std::min((run + 1) * step, whole.rows), std::span(scan.absmax).subspan(static_cast<std::size_t>(run * groups), static_cast<std::size_t>(groups)));
  return {};
}

Result<void> Sink::accept_scanned(const Chunk& part, const std::byte* data, std::int64_t stride_bytes) {
  TRY(store_rows(part, plain_rows(part, data, stride_bytes), plain_error(part)));
  return count(plan_.routes[part.route], part.rows);
}

Result<void> Sink::accept_whole(std::size_t r, const std::byte* data, ThreadPool* pool) {
  const Route& route = plan_.routes[r];
  const TensorInfo& tensor = tensors_[static_cast<std::size_t>(route.tensor)].info;
  const std::int64_t stride = file_row_bytes(tensor), width = dtype_bits(tensor.dtype) / 8, rows = route.slice.row_end - route.slice.row_begin;
  if (!route.matrix) return accept({r, 0, 1}, data, stride);
  const std::int64_t inputs = route.slice.col_end - route.slice.col_begin;
  const std::int64_t first_column = route.stored < 0 ? route.slice.col_begin * width : stored_columns(plan_.params.slots[route.param], route, tensor.dtype).begin;
  const auto range = [&](std::int64_t begin, std::int64_t count) -> Result<void> {
    if (!route.transposed) return accept({r, begin, count}, data + begin * stride + first_column, stride);
    std::vector<std::byte> panel(static_cast<std::size_t>(quant::kPanelRows * inputs * width));
    return accept_transposed({r, begin, count}, data + (route.first_input + route.slice.col_begin) * stride + begin * width, stride, panel.data());
  };
  const quant::SharedScales* shared = plan_.params.slots[route.param].format->shared;
  if (!pool || (shared && shared->rows == 0)) return range(route.slice.row_begin, rows);
  constexpr std::int64_t kRows = 16 * quant::kPanelRows;
  const std::int64_t lead = shared ? 0 : std::min((quant::kPanelRows - route.slice.local_row % quant::kPanelRows) % quant::kPanelRows, rows);  // up to the first whole panel
  static_assert(kRows % 128 == 0);  // shared scales cover 128 rows
  if (lead != 0) TRY(range(route.slice.row_begin, lead));
  std::mutex mutex;
  std::optional<Error> error;
  pool->parallel_for(rows - lead, kRows, [&](std::int64_t begin, std::int64_t end) {
    if (auto done = range(route.slice.row_begin + lead + begin, end - begin); !done) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::move(done).error();
    }
  });
  if (error) return std::unexpected(*std::move(error));
  return {};
}

Result<void> Sink::accept_form(const Chunk& chunk, std::span<const quant::FormBytes> bytes) {
  const Route& route = plan_.routes[chunk.route];
  const FormSource& source = plan_.forms[static_cast<std::size_t>(route.form)];
  quant::Matrix& matrix = store_.matrix(route.param);
  TRY(begin(route));
  FormScratch scratch(source);
  const std::int64_t skip = route.slice.col_begin - matrix.lead - route.read.begin;  // columns that are read before those of the matrix
  const auto parts_of = [&](std::int64_t row, int n) -> Result<quant::RowParts> {
    quant::RowParts parts = scratch.parts(source, n, route.read);
    if (auto taken = source.form->take_apart(source.settings, bytes, row, parts); !taken)
      return fail_at(fmt::format("{} in {} form", source.base, source.form->name), std::move(taken).error());
    return parts;
  };
  if (keeps(source, *matrix.format)) {
    TRY(for_each_panel(chunk, [&](std::int64_t at, int n, std::int64_t local) -> Result<void> {
      quant::RowParts parts = TRY(parts_of(chunk.row + at, n));
      keep_inputs(parts, skip, matrix.inputs, matrix.lead);
      matrix.format->import_parts(kernels_, parts, local, matrix);
      return {};
    }));
  } else {
    TRY(quantize_part(chunk, skip, [&](std::int64_t row, int n) -> Result<float*> {
      quant::dequantize_parts(TRY(parts_of(row, n)), scratch.numbers());
      return scratch.numbers();
    }));
  }
  return count(route, chunk.rows);
}

Result<void> Sink::accept_rows(const Chunk& chunk, const WholeRows& rows) {
  const Route& route = plan_.routes[chunk.route];
  const quant::Slot& slot = plan_.params.slots[route.param];
  const DType dtype = tensors_[static_cast<std::size_t>(route.tensor)].info.dtype;
  const std::int64_t width = dtype_bits(dtype) / 8, stride = route.inputs * width;
  const auto at = [&](std::int64_t row) { return rows.data + (row - rows.first) * stride; };
  const bool part = route.slice.col_end - route.slice.col_begin != route.inputs;
  if (!slot.format->shared && !(part && slot.format->store_part)) return accept(chunk, at(chunk.row) + route.slice.col_begin * width, stride);
  TRY(begin(route));
  std::vector<float> numbers(static_cast<std::size_t>(quant::kPanelRows * route.inputs));
  TRY(quantize_part(chunk, route.slice.col_begin - slot.lead, [&](std::int64_t row, int n) -> Result<float*> {
    for (std::int64_t i = 0; i < n * route.inputs; ++i) numbers[static_cast<std::size_t>(i)] = element(at(row), dtype, i);
    return numbers.data();
  }, rows.absmax));
  return count(route, chunk.rows);
}

Result<void> Sink::quantize_part(const Chunk& chunk, std::int64_t skip, const std::function<Result<float*>(std::int64_t row, int n)>& numbers_of, std::span<const float> absmax_of_all) {
  const Route& route = plan_.routes[chunk.route];
  quant::Matrix& matrix = store_.matrix(route.param);
  const quant::Format& format = *matrix.format;
  const std::int64_t width = route.read.end - route.read.begin, first_group = format.scale_inputs() == 0 ? 0 : skip / format.scale_inputs();
  const auto not_finite = [&](std::int64_t row, std::int64_t column, float value) {
    if (route.form < 0) return std::unexpected(plain_error(chunk)(row - chunk.row, route.read.begin + column - route.slice.col_begin, value));
    const FormSource& source = plan_.forms[static_cast<std::size_t>(route.form)];
    return std::unexpected(Error{Code::kCorrupt, fmt::format("{} in {} form holds {} in row {}, column {}; weights must be finite. Is the file damaged?", source.base, source.form->name, value, row,
                                                             route.read.begin + column)});
  };
  if (const quant::SharedScales* shared = format.shared; shared && !absmax_of_all.empty()) {
    const std::int64_t local = route.slice.local_row + chunk.row - route.slice.row_begin;
    shared->set(matrix, local, local + chunk.rows, absmax_of_all);
  } else if (shared) {
    const FormArea area = form_area(plan_, chunk);
    const std::int64_t run = shared->rows == 0 ? std::max<std::int64_t>(area.count, 1) : shared->rows;
    const auto groups = static_cast<std::size_t>(shared->groups(width));
    std::vector<float> most(groups), rows(static_cast<std::size_t>(quant::kPanelRows) * groups);
    for (std::int64_t begin = area.first; begin < area.first + area.count; begin += run) {
      const std::int64_t end = std::min(begin + run, area.first + area.count);
      std::ranges::fill(most, 0.0f);
      for (std::int64_t row = begin; row < end; row += quant::kPanelRows) {
        const auto n = static_cast<int>(std::min(quant::kPanelRows, end - row));
        const float* numbers = TRY(numbers_of(row, n));
        if (const std::int64_t bad = shared->absmax(kernels_, {.data = numbers, .dtype = DType::kF32, .stride = width, .rows = n, .inputs = width}, rows.data()); bad >= 0)
          return not_finite(row + bad / width, bad % width, numbers[bad]);
        for (std::size_t i = 0; i < static_cast<std::size_t>(n) * groups; ++i) most[i % groups] = std::max(most[i % groups], rows[i]);
      }
      const std::int64_t local = route.slice.local_row - route.slice.row_begin, from = std::max(begin, chunk.row), to = std::min(end, chunk.row + chunk.rows);
      shared->set(matrix, local + from, local + to, std::span(most).subspan(static_cast<std::size_t>(first_group), static_cast<std::size_t>(shared->groups(matrix.inputs))));
    }
  }
  const bool part = route.slice.col_end - route.slice.col_begin != route.inputs;
  return for_each_panel(chunk, [&](std::int64_t at, int n, std::int64_t local) -> Result<void> {
    float* numbers = TRY(numbers_of(chunk.row + at, n));
    quant::SourceRows source{.data = numbers + skip, .dtype = DType::kF32, .stride = width, .rows = n, .inputs = matrix.inputs};
    std::int64_t bad;
    if (part && format.store_part) {
      const std::int64_t covered = format.scale_inputs() == 0 ? width : format.scale_inputs(), groups = format.scale_inputs() == 0 ? 1 : (matrix.inputs + covered - 1) / covered;
      std::vector<float> absmax(static_cast<std::size_t>(n * groups), 0.0f);
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t k = first_group * covered; k < std::min((first_group + groups) * covered, width); ++k) {
          const float value = numbers[r * width + k];
          if (!std::isfinite(value)) return not_finite(chunk.row + at + r, k, value);
          float& most = absmax[static_cast<std::size_t>(r * groups + k / covered - first_group)];
          most = std::max(most, std::fabs(value));
        }
      if (format.whole_groups != 0) source.inputs = std::min((matrix.inputs + format.whole_groups - 1) / format.whole_groups * format.whole_groups, width - skip);
      else
        for (std::int64_t r = 0; r < n; ++r) std::fill_n(numbers + r * width + skip, matrix.lead, 0.0f);
      bad = format.store_part(kernels_, source, absmax.data(), local, matrix);
    } else {
      for (std::int64_t r = 0; r < n; ++r) std::fill_n(numbers + r * width + skip, matrix.lead, 0.0f);
      bad = format.store(kernels_, source, local, matrix);
    }
    if (bad < 0) return {};
    const std::int64_t row = bad / source.inputs, column = skip + bad % source.inputs;
    return not_finite(chunk.row + at + row, column, numbers[row * width + column]);
  });
}

Result<void> Sink::for_each_panel(const Chunk& chunk, const std::function<Result<void>(std::int64_t at, int n, std::int64_t local)>& visit) const {
  const params::Slice& slice = plan_.routes[chunk.route].slice;
  for (std::int64_t done = 0; done < chunk.rows;) {
    const std::int64_t local = slice.local_row + chunk.row - slice.row_begin + done;
    const auto rows = static_cast<int>(std::min(quant::kPanelRows - local % quant::kPanelRows, chunk.rows - done));
    TRY(visit(done, rows, local));
    done += rows;
  }
  return {};
}

Result<void> Sink::scan_rows(const Chunk& whole, const Chunk& part, const Rows& rows, const NotFinite& not_finite, Scan& scan) const {
  const quant::Slot& slot = plan_.params.slots[plan_.routes[whole.route].param];
  const quant::SharedScales& shared = *slot.format->shared;
  const auto groups = static_cast<std::size_t>(shared.groups(slot.inputs));
  std::vector<float> most(static_cast<std::size_t>(quant::kPanelRows) * groups);
  return for_each_panel(part, [&](std::int64_t at, int n, std::int64_t) -> Result<void> {
    const quant::SourceRows source = TRY(rows(at, n));
    if (const std::int64_t bad = shared.absmax(kernels_, source, most.data()); bad >= 0)
      return std::unexpected(not_finite(at + bad / source.inputs, bad % source.inputs, element(static_cast<const std::byte*>(source.data), source.dtype, bad / source.inputs * source.stride + bad % source.inputs)));
    for (int r = 0; r < n; ++r) {
      const std::int64_t run = shared.rows == 0 ? 0 : (part.row - whole.row + at + r) / shared.rows;
      float* out = scan.absmax.data() + static_cast<std::size_t>(run) * groups;
      for (std::size_t g = 0; g < groups; ++g) out[g] = std::max(out[g], most[static_cast<std::size_t>(r) * groups + g]);
    }
    return {};
  });
}

Result<void> Sink::store_rows(const Chunk& chunk, const Rows& rows, const NotFinite& not_finite) {
  quant::Matrix& matrix = store_.matrix(plan_.routes[chunk.route].param);
  return for_each_panel(chunk, [&](std::int64_t at, int n, std::int64_t local) -> Result<void> {
    const quant::SourceRows source = TRY(rows(at, n));
    if (const std::int64_t bad = matrix.format->store(kernels_, source, local, matrix); bad >= 0)
      return std::unexpected(not_finite(at + bad / source.inputs, bad % source.inputs, element(static_cast<const std::byte*>(source.data), source.dtype, bad / source.inputs * source.stride + bad % source.inputs)));
    return {};
  });
}

Result<void> Sink::quantize_rows(const Chunk& chunk, const Rows& rows, const NotFinite& not_finite) {
  if (plan_.params.slots[plan_.routes[chunk.route].param].format->shared) {
    Scan scan = begin_scan(chunk);
    TRY(scan_rows(chunk, chunk, rows, not_finite, scan));
    TRY(set_scales(chunk, scan));
  }
  return store_rows(chunk, rows, not_finite);
}

Sink::Rows Sink::plain_rows(const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes) const {
  const Route& route = plan_.routes[chunk.route];
  const DType dtype = tensors_[static_cast<std::size_t>(route.tensor)].info.dtype;
  const std::int64_t width = dtype_bits(dtype) / 8, inputs = plan_.params.slots[route.param].inputs;
  return [=](std::int64_t at, int n) -> Result<quant::SourceRows> {
    return quant::SourceRows{.data = data + at * stride_bytes, .dtype = dtype, .stride = stride_bytes / width, .rows = n, .inputs = inputs};
  };
}

Result<quant::Matrix*> Sink::open(std::size_t r) {
  TRY(begin(plan_.routes[r]));
  return &store_.matrix(plan_.routes[r].param);
}

Error Sink::not_finite(const Chunk& chunk, const quant::SourceRows& rows, std::int64_t bad, std::int64_t lead) const {
  const std::int64_t row = bad / rows.inputs, column = bad % rows.inputs;
  return plain_error(chunk)(row, column - lead, element(static_cast<const std::byte*>(rows.data), rows.dtype, row * rows.stride + column));
}

Sink::NotFinite Sink::plain_error(const Chunk& chunk) const {
  const Route& route = plan_.routes[chunk.route];
  const TensorInfo& tensor = tensors_[static_cast<std::size_t>(route.tensor)].info;
  return [&route, &tensor, first = chunk.row](std::int64_t row, std::int64_t column, float value) {
    row += first;
    column += route.slice.col_begin;
    if (route.transposed) {
      column += route.first_input;
      std::swap(row, column);
    }
    return Error{Code::kCorrupt, fmt::format("\"{}\" holds {} at {}; weights must be finite. Is the file damaged?", tensor.name, value, place_of(tensor, row, column))};
  };
}

Result<void> Sink::derive_from(std::size_t source) {
  for (const std::size_t i : derived_) {
    if (table_.rows[i].derivation->source != source) continue;
    if (!quant::derive(kernels_, store_.matrix(source), *table_.rows[i].derivation, store_.matrix(i)))
      return fail(Code::kCorrupt, "{} does not fit BF16, which {} is kept in; use --compute fp32", table_.rows[source].full_name(), table_.rows[i].full_name());
  }
  return {};
}

Result<void> Sink::accept_transposed(const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes, std::byte* panel) {
  const Route& route = plan_.routes[chunk.route];
  const DType dtype = tensors_[static_cast<std::size_t>(route.tensor)].info.dtype;
  const std::int64_t width = dtype_bits(dtype) / 8, inputs = route.slice.col_end - route.slice.col_begin;
  TRY(begin(route));
  TRY(quantize_rows(chunk, [&](std::int64_t at, int n) -> Result<quant::SourceRows> {
    transpose(width, data + at * width, stride_bytes, inputs, n, panel, inputs);
    return quant::SourceRows{.data = panel, .dtype = dtype, .stride = inputs, .rows = n, .inputs = inputs};
  }, plain_error(chunk)));
  return count(route, chunk.rows);
}

Result<void> Sink::accept_vector(const Route& route, const TensorInfo& tensor, const std::byte* data) {
  float* out = store_.vector(route.param) + route.slice.local_row;
  for (std::int64_t i = route.slice.row_begin; i < route.slice.row_end; ++i) {
    const float value = element(data, tensor.dtype, i);
    if (!std::isfinite(value)) return fail(Code::kCorrupt, "\"{}\" holds {} at element {}; weights must be finite. Is the file damaged?", tensor.name, value, i);
    out[i - route.slice.row_begin] = value;
  }
  return {};
}

Result<void> Sink::accept_stored(const Route& route, const TensorInfo& tensor, const Chunk& chunk, const std::byte* data, std::int64_t stride_bytes) {
  quant::Matrix& matrix = store_.matrix(route.param);
  if (!route.matrix) {  // the piece's shape, for readers that need it: it must agree with ours
    std::int64_t shape[2];
    std::memcpy(shape, data, sizeof shape);
    if (shape[0] != route.rows || shape[1] != route.inputs)
      return fail(Code::kCorrupt, "\"{}\" says [{}, {}], but the model needs [{}, {}]", tensor.name, shape[0], shape[1], route.rows, route.inputs);
    return {};
  }
  const StoredColumns columns = stored_columns(plan_.params.slots[route.param], route, tensor.dtype);
  std::vector<std::byte> edged;
  if (columns.code_bits != 0) {
    edged.resize(static_cast<std::size_t>(chunk.rows * columns.bytes()));
    for (std::int64_t r = 0; r < chunk.rows; ++r) set_edges(columns, data + r * stride_bytes, edged.data() + r * columns.bytes());
    data = edged.data();
    stride_bytes = columns.bytes();
  }
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    const std::int64_t local = route.slice.local_row + chunk.row - route.slice.row_begin + r;
    if (route.stored == 0 && matrix.format->import_codes) {
      const auto rows = static_cast<int>(std::min(quant::kPanelRows - local % quant::kPanelRows, chunk.rows - r));
      if (matrix.format->import_codes(kernels_, matrix, local, rows, data + r * stride_bytes, stride_bytes)) {
        r += rows - 1;
        continue;
      }
    }
    auto imported = matrix.format->import_row(matrix, local, static_cast<std::size_t>(route.stored), tensor.dtype, data + r * stride_bytes);
    if (!imported) return fail_at(fmt::format("\"{}\"", tensor.name), std::move(imported).error());
  }
  return {};
}

Result<void> Sink::check_complete() const {
  for (std::size_t i = 0; i < table_.rows.size(); ++i)
    if (progress_[i].rows_left.load() != 0)
      return fail(Code::kInternal, "parameter {} never completed: {} rows did not arrive", table_.rows[i].full_name(), progress_[i].rows_left.load());
  return {};
}

}  // namespace inflight::loader
