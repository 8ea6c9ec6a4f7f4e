// A calibration by layer and kind of point, experts of a layer taken together.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/calibration.h"

namespace inflight::cli {

// One point, or the experts' points of a layer together.
struct PointSummary {
  engine::PointStats stats;   // merged; histogram as far as all have one
  std::int64_t points = 0;
  std::int64_t forced = 0, filled = 0;  // experts that no token was routed to, by where their numbers come from
  // dB, scaled by the maximum: of values up to the 99.99 percentile, the lowest of several points; NaN: unknown. Then of that point, of all values.
  double sqnr = 0, sqnr_of_all = 0;
  float clip = 0;             // of that point: the clip that loses least
};

// A channel far above the others of its point.
struct Outlier {
  std::string point;
  std::int64_t channel = 0;
  float amax = 0, median = 0;  // of the channel; of all channels of the point
};

struct CalibrationSummary {
  std::vector<std::string> kinds;               // "self_attn.qkv_proj", "mlp.experts.*.down_proj"; in the order of the forward pass
  std::vector<std::int64_t> layers;             // ascending, then -1: what belongs to no layer
  std::map<std::pair<std::int64_t, std::string>, PointSummary> cells;  // layer, kind
  std::vector<Outlier> outliers;                // the most prominent first, at most `kMostOutliers`

  const PointSummary* cell(std::int64_t layer, const std::string& kind) const {
    const auto at = cells.find({layer, kind});
    return at == cells.end() ? nullptr : &at->second;
  }
};

inline constexpr std::size_t kMostOutliers = 24;

CalibrationSummary summarize(const engine::Calibration& calibration, float bound);

}  // namespace inflight::cli
