// What a calibration says, for people: a table for the terminal and a page.
#pragma once
#include <string>

#include "engine/calibration.h"

namespace inflight::cli {

// A line a layer: the largest |x|, the 99.99 percentile of that point, and the point that E4M3 of `bound` (448 or 240) serves worst, scaled by its maximum.
std::string calibration_table(const engine::Calibration& calibration, float bound);

// HTML that needs nothing else: of each kind of point over the layers distribution, maximum and percentiles; signal-to-noise of each matrix; channels that stand out.
std::string calibration_page(const engine::Calibration& calibration, float bound);

}  // namespace inflight::cli
