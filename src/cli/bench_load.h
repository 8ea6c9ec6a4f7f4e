// The load part of `bench`: repeated loads, each followed by a plain read of the same bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/common_options.h"
#include "cli/machine.h"
#include "engine/open_model.h"

namespace inflight::cli {

struct LoadMeasurement {
  std::vector<double> seconds;            // of each load: first read to last parameter complete
  std::vector<double> plain_bytes_per_s;  // of each plain read
  std::int64_t source_bytes = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t peak_anon_bytes = 0;       // of the first load
  double median_seconds() const;
  double best_seconds() const;
  double median_plain() const;
};

// Loads `repeat` times; the last load stays in `opened`. `watch` runs since the process started and is stopped after the first load.
Result<LoadMeasurement> measure_load(const ModelArguments& arguments, const std::string& folder, int repeat, AnonWatch& watch, std::unique_ptr<engine::OpenedModel>& opened);

// Bytes per second at which the pool's threads read the data of every shard into freshly mapped memory.
Result<double> plain_read_rate(const std::string& folder, ThreadPool& pool);

double median(std::vector<double> values);  // 0 when empty

}  // namespace inflight::cli
