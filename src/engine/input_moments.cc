#include "engine/input_moments.h"

#include <algorithm>
#include <map>

#include "params/points.h"

namespace inflight::engine {
namespace {

constexpr std::size_t kFactors = 2;  // that are kept: experts take turns with what they share

// Sums what the points of one run are shown.
class MomentObserver : public nn::Observer {
 public:
  MomentObserver(const params::ParamTable& table, const quant::Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {
    for (const params::ParamSpec& row : table.rows) point_of_.push_back(params::input_point(row));
  }
  void see(std::size_t row, Place place, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns) override {
    if (place != Place::kInput) return;
    const auto found = sums.find(point_of_[row]);
    if (found != sums.end() && found->second.inputs() == columns) found->second.add(x, ldx, tokens, kernels_, pool_);
  }
  std::map<std::string, quant::SecondMoments> sums;

 private:
  const quant::Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<std::string> point_of_;  // by row
};

class Runs final : public InputMoments {
 public:
  Runs(OpenedModel& opened, WindowRunner runner, std::vector<Point> points, const Windows& windows, std::int64_t budget)
      : opened_(opened), runner_(std::move(runner)), points_(std::move(points)), windows_(windows), budget_(budget), observer_(opened.table, *opened.runtime->kernels, *opened.pool) {
    opened_.runtime->observer = &observer_;
  }
  ~Runs() override { opened_.runtime->observer = nullptr; }

  Result<const quant::RoundingFactor*> factor(const std::string& point, const std::function<bool()>& go_on) override {
    for (std::size_t i = 0; i < factors_.size(); ++i)
      if (factors_[i].first == point) {
        std::rotate(factors_.begin() + static_cast<std::ptrdiff_t>(i), factors_.begin() + static_cast<std::ptrdiff_t>(i) + 1, factors_.end());  // the last used is the last
        return &factors_.back().second;
      }
    auto found = observer_.sums.find(point);
    if (found == observer_.sums.end()) {
      TRY(run_from(point, go_on));
      found = observer_.sums.find(point);
    }
    if (found == observer_.sums.end() || found->second.tokens() == 0) return nullptr;
    if (factors_.size() == kFactors) factors_.erase(factors_.begin());
    factors_.emplace_back(point, TRY(quant::RoundingFactor::create(found->second, quant::kMomentDamping, *opened_.runtime->kernels, *opened_.pool)));
    return &factors_.back().second;
  }

 private:
  // The moments of this point and of those after it, as many as the budget holds.
  Result<void> run_from(const std::string& point, const std::function<bool()>& go_on) {
    observer_.sums.clear();
    std::int64_t bytes = 0;
    for (auto at = std::ranges::find(points_, point, &Point::name); at != points_.end(); ++at) {
      bytes += quant::SecondMoments::bytes(at->inputs);
      if (bytes > budget_ && !observer_.sums.empty()) break;
      observer_.sums.emplace(at->name, TRY(quant::SecondMoments::create(at->inputs)));
    }
    for (const std::vector<std::int32_t>& window : windows_) {
      if (go_on && !go_on()) return fail(Code::kCancelled, "stopped while the model ran over the calibration's tokens");
      runner_.run(window);
    }
    return {};
  }

  OpenedModel& opened_;
  WindowRunner runner_;
  std::vector<Point> points_;
  const Windows& windows_;
  std::int64_t budget_;
  MomentObserver observer_;
  std::vector<std::pair<std::string, quant::RoundingFactor>> factors_;
};

}  // namespace

Result<std::unique_ptr<InputMoments>> InputMoments::create(OpenedModel& opened, const EngineOptions& options, std::vector<Point> points, const Windows& windows, std::int64_t budget) {
  return std::make_unique<Runs>(opened, TRY(WindowRunner::create(opened, options, windows)), std::move(points), windows, budget);
}

}  // namespace inflight::engine
