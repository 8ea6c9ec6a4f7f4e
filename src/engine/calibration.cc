#include "engine/calibration.h"

#include <algorithm>
#include <cmath>

#include "base/e4m3.h"

namespace inflight::engine {
namespace {

// Points of a bin at which the error of rounding is looked at.
constexpr int kSamples = 4;

struct Loss {
  double signal = 0, error = 0;  // sums of squares
};

Loss loss_of(const PointStats& stats, float clip, float bound, float most) {
  Loss loss;
  const float scale = PointStats::scale(clip, bound), reciprocal = 1 / scale;
  const int end_bin = Bins::of(stats.amax), last = most < stats.amax ? Bins::of(most) : end_bin;
  for (int bin = 1; bin <= last; ++bin) {  // what is in bin 0 is as good as zero
    const std::int64_t count = stats.histogram[static_cast<std::size_t>(bin)];
    if (count == 0) continue;
    const double begin = Bins::begin(bin), end = bin == end_bin ? static_cast<double>(stats.amax) : static_cast<double>(Bins::begin(bin + 1)), weight = static_cast<double>(count) / kSamples;
    for (int i = 0; i < kSamples; ++i) {
      const auto x = static_cast<float>(begin + (end - begin) * (i + 0.5) / kSamples);
      const double error = static_cast<double>(x) - static_cast<double>(e4m3_to_float(float_to_e4m3(x * reciprocal, bound)) * scale);
      loss.signal += weight * x * x;
      loss.error += weight * error * error;
    }
  }
  return loss;
}

// What a file may count without ever overflowing a sum.
constexpr std::int64_t kMostValues = std::int64_t{1} << 60;

void add_counts(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::min(kMostValues, to[i] + from[i]);
}

}  // namespace

std::int64_t PointStats::values() const {
  std::int64_t sum = 0;
  for (const std::int64_t count : histogram) sum = std::min(kMostValues, sum + count);
  return sum;
}

float PointStats::percentile(double p) const {
  const std::int64_t all = values();
  if (all == 0 || p >= 100) return amax;
  const double wanted = std::max(p, 0.0) / 100 * static_cast<double>(all);
  double below = 0;
  for (int bin = 0; bin < Bins::kCount; ++bin) {
    const auto count = static_cast<double>(histogram[static_cast<std::size_t>(bin)]);
    if (count == 0 || below + count < wanted) {
      below += count;
      continue;
    }
    const float begin = Bins::begin(bin), end = bin + 1 < Bins::kCount ? std::min(Bins::begin(bin + 1), amax) : amax;
    return std::min(amax, begin + static_cast<float>((wanted - below) / count) * (end - begin));
  }
  return amax;
}

float PointStats::mse_clip(float bound) const {
  if (histogram.empty() || !(amax > 0)) return amax;
  float best = amax;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= 48; ++i) {
    const float clip = amax * std::exp2(static_cast<float>(-i) / 8);
    const double error = loss_of(*this, clip, bound, amax).error;
    if (error >= least) continue;
    least = error;
    best = clip;
  }
  return best;
}

double PointStats::sqnr(float clip, float bound, float most) const {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  if (histogram.empty()) return unknown;
  const Loss loss = loss_of(*this, clip, bound, most);
  if (loss.signal == 0) return unknown;
  return loss.error == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(loss.signal / loss.error);
}

Result<void> PointStats::merge(const PointStats& other) {
  if (!channels.empty() && !other.channels.empty() && channels.size() != other.channels.size())
    return fail(Code::kInvalidArgument, "{} channels here and {} there: they are of different models", channels.size(), other.channels.size());
  if (other.origin > origin) return {};
  if (other.origin < origin) {
    *this = other;
    return {};
  }
  amax = std::max(amax, other.amax);
  if (histogram.empty() || other.histogram.empty()) histogram.clear();
  else add_counts(histogram, other.histogram);
  if (channels.empty() || other.channels.empty()) channels.clear();
  for (std::size_t i = 0; i < channels.size(); ++i) channels[i] = std::max(channels[i], other.channels[i]);
  return {};
}

const PointStats* Calibration::find(std::string_view point) const {
  const auto at = points.find(std::string(point));
  return at == points.end() ? nullptr : &at->second;
}

Result<void> Calibration::merge(const Calibration& other) {
  for (const auto& [point, stats] : other.points) {
    const auto [at, added] = points.try_emplace(point, stats);
    if (added) continue;
    if (auto merged = at->second.merge(stats); !merged) return fail_at(point, std::move(merged).error());
  }
  windows.insert(windows.end(), other.windows.begin(), other.windows.end());
  // Numbers are counts and add up; other texts that differ are listed.
  for (const auto& [key, value] : other.metadata) {
    const auto [at, added] = metadata.try_emplace(key, value);
    if (added) continue;
    std::string& mine = at->second;
    const auto is_count = [](std::string_view text) { return !text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string_view::npos; };
    if (is_count(mine) && is_count(value)) mine = std::to_string(std::stoll(mine) + std::stoll(value));
    else if (mine != value && !(", " + mine + ", ").contains(", " + value + ", ")) mine += ", " + value;
  }
  fill_unseen_experts();
  return {};
}

ExpertPoint expert_point(std::string_view point) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = point.find(kExperts);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = point.substr(at + kExperts.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits > 9 || digits == rest.size() || rest[digits] != '.') return {};
  return {point.substr(0, at), std::stoll(std::string(rest.substr(0, digits)))};
}

std::int64_t Calibration::fill_unseen_experts() {
  // Of each layer: its experts together, and those without a number.
  std::map<std::string, PointStats, std::less<>> others;
  std::vector<PointStats*> unseen;
  std::vector<std::string> layer_of;
  for (auto& [point, stats] : points) {
    const ExpertPoint expert = expert_point(point);
    if (expert.expert < 0) continue;
    if (stats.amax > 0 && stats.origin != Origin::kOthers) {
      const auto [at, added] = others.try_emplace(std::string(expert.layer), stats);
      if (added) continue;
      PointStats& sum = at->second;
      sum.amax = std::max(sum.amax, stats.amax);
      if (sum.histogram.empty() || stats.histogram.empty()) sum.histogram.clear();
      else add_counts(sum.histogram, stats.histogram);
    } else if (stats.amax == 0 || stats.origin == Origin::kOthers) {
      unseen.push_back(&stats);
      layer_of.emplace_back(expert.layer);
    }
  }
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < unseen.size(); ++i) {
    const auto at = others.find(layer_of[i]);
    if (at == others.end()) continue;
    *unseen[i] = {.amax = at->second.amax, .histogram = at->second.histogram, .channels = {}, .origin = Origin::kOthers};
    ++filled;
  }
  return filled;
}

}  // namespace inflight::engine
