// Second moments of what a model's matrices multiply, over the tokens of a calibration: the unquantized model runs over them as often as memory asks for, and a run
// keeps those of consecutive points. From them follow the factors that weights are rounded with (quant/compensated_rounding.h).
//
//     const auto moments = TRY(InputMoments::create(*opened, options, points, windows));
//     const quant::RoundingFactor* factor = TRY(moments->factor("model.layers.0.self_attn.qkv_proj", go_on));   // nullptr: no token came by
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/window_runner.h"
#include "quant/compensated_rounding.h"

namespace inflight::engine {

class InputMoments {
 public:
  struct Point {
    std::string name;         // params/points.h
    std::int64_t inputs = 0;
  };
  // Bytes of moments that one run keeps, unless a single point needs more.
  static constexpr std::int64_t kDefaultBudget = std::int64_t{1} << 30;

  // points: in the order in which they will be asked for, apart from those asked for again. options: those that `opened` was opened with; it shows `this` what it computes.
  // opened and windows must outlive the result.
  static Result<std::unique_ptr<InputMoments>> create(OpenedModel& opened, const EngineOptions& options, std::vector<Point> points, const Windows& windows, std::int64_t budget = kDefaultBudget);
  virtual ~InputMoments() = default;

  // Good until the next call. go_on is asked now and then; false: kCancelled.
  virtual Result<const quant::RoundingFactor*> factor(const std::string& point, const std::function<bool()>& go_on) = 0;
};

}  // namespace inflight::engine
