#include "cli/calibration_summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "nn/observer.h"

namespace inflight::cli {
namespace {

constexpr float kStandsOut = 8;  // times the median channel

struct Place {
  std::int64_t layer = -1;
  std::string kind;
};

// "model.layers.3.mlp.experts.7.down_proj": layer 3, "mlp.experts.*.down_proj".
Place place_of(const std::string& point) {
  constexpr std::string_view kLayers = "layers.";
  Place place;
  std::string_view rest = point;
  if (const std::size_t at = rest.find(kLayers); at != std::string_view::npos) {
    const char *begin = rest.data() + at + kLayers.size(), *end = rest.data() + rest.size();
    std::int64_t layer = -1;
    const auto [stop, error] = std::from_chars(begin, end, layer);
    if (error == std::errc() && layer >= 0 && stop != end && *stop == '.') {
      place.layer = layer;
      rest = std::string_view(stop + 1, end);
    }
  }
  place.kind = rest;
  const engine::ExpertPoint expert = engine::expert_point(place.kind);
  if (expert.expert < 0) return place;
  const std::size_t at = place.kind.find(".experts.") + 9;
  place.kind.replace(at, place.kind.find('.', at) - at, "*");
  return place;
}

void add(PointSummary& cell, const engine::PointStats& stats, float bound) {
  const double sqnr = stats.sqnr(stats.absmax(), bound, stats.percentile(99.99));
  if (cell.points == 0 || sqnr < cell.sqnr || std::isnan(cell.sqnr)) {
    cell.sqnr = sqnr;
    cell.sqnr_of_all = stats.sqnr(stats.absmax(), bound);
    cell.clip = stats.mse_clip(bound);
  }
  cell.forced += stats.origin == engine::Origin::kForced;
  cell.filled += stats.origin == engine::Origin::kOthers;
  if (cell.points++ == 0) {
    cell.stats = stats;
    return;
  }
  engine::PointStats other = stats;
  other.channels.clear();  // of several experts they say nothing together
  other.origin = cell.stats.origin;
  cell.stats.channels.clear();
  if (!cell.stats.merge(other)) cell.stats.amax = std::max(cell.stats.amax, stats.amax);
}

}  // namespace

CalibrationSummary summarize(const engine::Calibration& calibration, float bound) {
  CalibrationSummary summary;
  for (const auto& [point, stats] : calibration.points) {
    const Place place = place_of(point);
    add(summary.cells[{place.layer, place.kind}], stats, bound);
    if (std::ranges::find(summary.kinds, place.kind) == summary.kinds.end()) summary.kinds.push_back(place.kind);
    if (std::ranges::find(summary.layers, place.layer) == summary.layers.end()) summary.layers.push_back(place.layer);
    if (stats.channels.size() < 2) continue;
    std::vector<float> sorted = stats.channels;
    std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2));
    const float median = sorted[sorted.size() / 2];
    for (std::size_t channel = 0; channel < stats.channels.size() && median > 0; ++channel)
      if (stats.channels[channel] > kStandsOut * median) summary.outliers.push_back({point, static_cast<std::int64_t>(channel), stats.channels[channel], median});
  }
  std::ranges::sort(summary.layers, {}, [](std::int64_t layer) { return std::pair(layer < 0, layer); });
  std::ranges::sort(summary.kinds, {}, [](const std::string& kind) { return std::pair(nn::order_of_point(kind), kind); });
  std::ranges::sort(summary.outliers, std::greater(), [](const Outlier& outlier) { return outlier.amax / outlier.median; });
  if (summary.outliers.size() > kMostOutliers) summary.outliers.resize(kMostOutliers);
  return summary;
}

}  // namespace inflight::cli
