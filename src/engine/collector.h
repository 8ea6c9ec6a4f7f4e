// Calibration as it happens: an observer that keeps PointStats of everything it is shown.
//
//     Collector collector(opened.table, *opened.pool);
//     opened.runtime->observer = &collector;
//     ... forward() over the data ...
//     if (collector.begin_forced_pass()) ... forward() over the data once more, for experts that no token was routed to ...
//     write_calibration(collector.snapshot(), "scales.safetensors");
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/calibration.h"
#include "nn/observer.h"
#include "params/param_spec.h"

namespace inflight::engine {

// Experts of a layer to which a token was routed.
struct ExpertCoverage {
  std::string layer;  // "model.layers.3.mlp"
  std::int64_t number = -1;  // of the layer
  std::int64_t seen = 0, experts = 0;
};

class Collector : public nn::Observer {
 public:
  // What is shown is counted by `pool`, which is idle then.
  Collector(const params::ParamTable& table, ThreadPool& pool);

  void see(std::size_t row, Place place, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns) override;
  std::span<const std::int32_t> forced_experts(std::int64_t layer) const override;

  // From now on only experts that were not seen are watched, and see all tokens. false: there is none.
  bool begin_forced_pass();

  // Numbers so far; unseen experts have those of the layer's others. Without metadata.
  Calibration snapshot() const;
  std::vector<ExpertCoverage> coverage() const;  // by layer; of routed tokens alone
  // The first point that was shown an infinity or NaN; "": none. What holds it is not counted.
  const std::string& not_finite() const { return not_finite_; }

 private:
  // What one worker found in its part.
  struct Part {
    std::vector<std::uint32_t> counts;    // [Bins::kCount]
    std::vector<std::uint32_t> channels;  // largest |x| of each column, as bits: those of numbers >= 0 are in the order of the numbers
  };

  std::string point_of(std::size_t row, Place place) const;

  const params::ParamTable& table_;
  ThreadPool& pool_;
  mutable std::mutex mutex_;
  std::map<std::string, PointStats> points_;
  std::map<std::pair<std::size_t, Place>, PointStats*> found_;  // points by what shows them
  std::vector<Part> parts_;                                     // of each worker
  std::map<std::int64_t, std::vector<std::int32_t>> forced_;    // layer's number: experts
  bool forcing_ = false;
  std::string not_finite_;
};

}  // namespace inflight::engine
