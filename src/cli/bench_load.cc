#include "cli/bench_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "checkpoint/checkpoint.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/ranks.h"
#include "engine/memory_limit.h"
#include "tensor/buffer.h"

namespace inflight::cli {
namespace {

constexpr std::int64_t kChunk = std::int64_t{8} << 20;   // bytes of one read
constexpr std::int64_t kSlice = std::int64_t{1} << 30;   // memory mapped at a time where all of it does not fit

struct Range {
  const InputFile* file;
  std::int64_t offset, bytes, at;  // at: where it goes in the target
};

// The data of every shard, cut into reads.
std::vector<Range> ranges_of(const checkpoint::Checkpoint& checkpoint) {
  std::vector<Range> ranges;
  std::vector<std::int64_t> begin(checkpoint.shards().size(), -1);
  for (const checkpoint::Tensor& tensor : checkpoint.tensors())
    if (std::int64_t& first = begin[static_cast<std::size_t>(tensor.shard)]; first < 0 || tensor.info.begin < first) first = tensor.info.begin;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    const InputFile& file = checkpoint.shards()[i];
    for (std::int64_t offset = begin[i]; offset >= 0 && offset < file.size(); offset += kChunk) {
      const std::int64_t bytes = std::min(kChunk, file.size() - offset);
      ranges.push_back({&file, offset, bytes, at});
      at += bytes;
    }
  }
  return ranges;
}

Result<void> read_ranges(std::span<const Range> ranges, ThreadPool& pool) {
  const std::int64_t base = ranges.front().at;
  const Buffer target = TRY(Buffer::map(static_cast<std::size_t>(ranges.back().at + ranges.back().bytes - base)));
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Result<void> outcome;
  pool.run([&](int) {
    for (std::size_t i = next.fetch_add(1); i < ranges.size(); i = next.fetch_add(1)) {
      const Range& range = ranges[i];
      if (Result<void> read = range.file->read_at(target.data() + (range.at - base), static_cast<std::size_t>(range.bytes), range.offset); !read) {
        const std::lock_guard lock(mutex);
        outcome = std::move(read);
        return;
      }
    }
  });
  return outcome;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double LoadMeasurement::median_seconds() const { return median(seconds); }
double LoadMeasurement::best_seconds() const { return seconds.empty() ? 0 : *std::ranges::min_element(seconds); }
double LoadMeasurement::median_plain() const { return median(plain_bytes_per_s); }

Result<double> plain_read_rate(const std::string& folder, ThreadPool& pool) {
  const checkpoint::Checkpoint checkpoint = TRY(checkpoint::Checkpoint::open(folder));
  const std::vector<Range> ranges = ranges_of(checkpoint);
  if (ranges.empty()) return 0.0;
  const std::int64_t total = ranges.back().at + ranges.back().bytes;
  const std::int64_t slice = total < TRY(engine::available_memory()).bytes / 2 ? total : kSlice;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t first = 0; first < ranges.size();) {
    std::size_t last = first;
    while (last < ranges.size() && ranges[last].at + ranges[last].bytes - ranges[first].at <= slice) ++last;
    TRY(read_ranges(std::span(ranges).subspan(first, last - first), pool));
    first = last;
  }
  return static_cast<double>(total) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<LoadMeasurement> measure_load(const ModelArguments& arguments, const std::string& folder, int repeat, AnonWatch& watch, std::unique_ptr<engine::OpenedModel>& opened) {
  LoadMeasurement measured;
  for (int i = 0; i < repeat; ++i) {
    opened.reset();
    ProgressBar bar(fmt::format("load {} of {}", i + 1, repeat));
    opened = TRY(open_on_ranks(arguments, folder, [&bar](std::int64_t done, std::int64_t total) { return bar.bytes(done, total), true; }));
    if (i == 0) measured.peak_anon_bytes = watch.stop();
    measured.seconds.push_back(opened->report.seconds);
    measured.source_bytes = opened->report.source_bytes;
    measured.weight_bytes = opened->report.weight_bytes;
    measured.plain_bytes_per_s.push_back(TRY(plain_read_rate(folder, *opened->pool)));
  }
  return measured;
}

}  // namespace inflight::cli
