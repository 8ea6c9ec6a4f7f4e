#include "engine/collector.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "params/points.h"

namespace inflight::engine {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
constexpr std::string_view kHeadPoint = "lm_head";  // also where the head is the embedding's table

// 3 for "model.layers.3.mlp"; -1 where there is no such part.
std::int64_t layer_number(std::string_view scope) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t at = scope.find(kLayers);
  std::int64_t number = -1;
  if (at != std::string_view::npos) std::from_chars(scope.data() + at + kLayers.size(), scope.data() + scope.size(), number);
  return number;
}

}  // namespace

Collector::Collector(const params::ParamTable& table, ThreadPool& pool) : table_(table), pool_(pool), parts_(static_cast<std::size_t>(pool.threads())) {
  for (Part& part : parts_) part.counts.assign(Bins::kCount, 0);
  // Experts are there from the start: that nobody sees one is worth knowing.
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::string point = params::input_point(table.rows[row]);
    if (table.rows[row].expert >= 0 && expert_point(point).expert >= 0) points_[point];
  }
}

std::string Collector::point_of(std::size_t row, Place place) const {
  const params::ParamSpec& spec = table_.rows[row];
  if (place == Place::kInput) return spec.role == params::Role::kHead ? std::string(kHeadPoint) : params::input_point(spec);
  return spec.scope + "." + std::string(place == Place::kQuery ? params::kQueryPoint : place == Place::kKey ? params::kKeyPoint : params::kValuePoint);
}

void Collector::see(std::size_t row, Place place, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns) {
  if (tokens == 0 || columns == 0) return;
  const std::lock_guard lock(mutex_);
  PointStats*& stats = found_[{row, place}];
  if (!stats) stats = &points_[point_of(row, place)];
  if (forcing_ && (stats->origin != Origin::kForced || table_.rows[row].expert < 0)) return;

  const auto n = static_cast<std::size_t>(columns);
  for (Part& part : parts_) part.channels.assign(n, 0);
  pool_.parallel_for(tokens, 1, [&](int worker, std::int64_t begin, std::int64_t end) {
    Part& part = parts_[static_cast<std::size_t>(worker)];
    for (std::int64_t t = begin; t < end; ++t) {
      const float* row_of = x + t * ldx;
      for (std::size_t k = 0; k < n; ++k) part.channels[k] = std::max(part.channels[k], std::bit_cast<std::uint32_t>(row_of[k]) & kMagnitude);
      for (std::size_t k = 0; k < n; ++k) ++part.counts[static_cast<std::size_t>(Bins::of(row_of[k]))];
    }
  });

  std::uint32_t most = 0;
  for (const Part& part : parts_)
    for (const std::uint32_t bits : part.channels) most = std::max(most, bits);
  if (most >= kInfinity && not_finite_.empty()) not_finite_ = point_of(row, place);
  stats->histogram.resize(Bins::kCount);
  stats->channels.resize(n);
  for (Part& part : parts_) {
    for (std::size_t k = 0; k < n && most < kInfinity; ++k) stats->channels[k] = std::max(stats->channels[k], std::bit_cast<float>(part.channels[k]));
    for (std::size_t bin = 0; bin < part.counts.size() && most < kInfinity; ++bin) stats->histogram[bin] += part.counts[bin];
    std::ranges::fill(part.counts, 0);
  }
  if (most < kInfinity) stats->amax = std::max(stats->amax, std::bit_cast<float>(most));
}

std::span<const std::int32_t> Collector::forced_experts(std::int64_t layer) const {
  const auto at = forced_.find(layer);
  if (at == forced_.end()) return {};
  return at->second;
}

bool Collector::begin_forced_pass() {
  const std::lock_guard lock(mutex_);
  forcing_ = true;
  for (auto& [point, stats] : points_) {
    const ExpertPoint expert = expert_point(point);
    if (expert.expert < 0 || !stats.histogram.empty()) continue;
    stats.origin = Origin::kForced;
    forced_[layer_number(expert.layer)].push_back(static_cast<std::int32_t>(expert.expert));
  }
  return !forced_.empty();
}

Calibration Collector::snapshot() const {
  const std::lock_guard lock(mutex_);
  Calibration calibration{.points = points_, .metadata = {}};
  // What only zeros came by keeps its maximum of 0; what nothing came by is nothing.
  std::erase_if(calibration.points, [](const auto& entry) { return entry.second.histogram.empty() && expert_point(entry.first).expert < 0; });
  calibration.fill_unseen_experts();
  return calibration;
}

std::vector<ExpertCoverage> Collector::coverage() const {
  const std::lock_guard lock(mutex_);
  std::vector<ExpertCoverage> layers;
  for (const auto& [point, stats] : points_) {
    const ExpertPoint expert = expert_point(point);
    if (expert.expert < 0) continue;
    const auto at = std::ranges::find(layers, expert.layer, &ExpertCoverage::layer);
    ExpertCoverage& layer = at != layers.end() ? *at : layers.emplace_back(ExpertCoverage{std::string(expert.layer), layer_number(expert.layer)});
    ++layer.experts;
    if (stats.origin == Origin::kSeen && !stats.histogram.empty()) ++layer.seen;
  }
  std::ranges::sort(layers, {}, &ExpertCoverage::number);
  return layers;
}

}  // namespace inflight::engine
