// Which matrices stay as stored when the others become FP8: those whose rounding, of weights and inputs, moves the model's answers most for the memory that it saves.
// Measured, one matrix (or the routed experts of one layer) at a time: mean KL of the next token from the unquantized model's, over some of a calibration's tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/window_runner.h"

namespace inflight::engine {

struct PrecisionCandidate {
  std::vector<std::string> names;  // of matrices, as --quantization-override takes them
  std::int64_t weights = 0;
  double divergence = 0;           // mean KL where it alone is FP8
};

struct PrecisionMeasure {
  std::vector<PrecisionCandidate> matrices;
  double cache = 0;      // where keys and values alone are FP8
  double attention = 0;  // and queries and probabilities too
  // Queries stay when rounding them adds more than kQueriesPart to what all FP8 costs, each measured by itself.
  bool plain_queries() const;
};
inline constexpr double kQueriesPart = 0.05;

// plain: the model as stored; quantized: with static FP8, of the same folder. Both are as they were afterwards. go_on: false ends it with kCancelled.
Result<PrecisionMeasure> measure_precision(OpenedModel& plain, OpenedModel& quantized, const EngineOptions& options, const Windows& windows, const std::function<bool()>& go_on);

// Which matrices stay: names of those that stay: in the order of divergence for a weight, as long as all that stay have at most `share` of all weights (one that does not fit is passed over).
std::vector<std::string> choose_plain(std::vector<PrecisionCandidate> candidates, double share);

// Parts of windows to measure with: the beginnings of at most kMeasuredWindows, spread over all.
inline constexpr std::size_t kMeasuredWindows = 4, kMeasuredTokens = 64;
Windows measured_windows(const Windows& windows);

}  // namespace inflight::engine
