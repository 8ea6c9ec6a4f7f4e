// For tests: what calibration sees of a model, beside what it sees of another.
#pragma once
#include <gtest/gtest.h>

#include "engine/collector.h"
#include "engine/open_model.h"

namespace inflight::engine {

// forward(opened) as it is and, where experts are left that no token chose, through all of them.
template <class Forward>
Calibration calibrated(OpenedModel& opened, const Forward& forward) {
  Collector collector(opened.table, *opened.pool);
  opened.runtime->observer = &collector;
  forward(opened);
  if (collector.begin_forced_pass()) forward(opened);
  opened.runtime->observer = nullptr;
  return collector.snapshot();
}

// The same points and channels, values within 1e-4 of the point's largest.
inline void expect_same_points(const Calibration& got, const Calibration& want) {
  ASSERT_EQ(got.points.size(), want.points.size());
  for (const auto& [point, stats] : want.points) {
    SCOPED_TRACE(point);
    const PointStats& other = got.points.at(point);
    EXPECT_EQ(other.origin, stats.origin);
    EXPECT_NEAR(other.amax, stats.amax, 1e-4f * stats.amax);
    ASSERT_EQ(other.channels.size(), stats.channels.size());
    for (std::size_t k = 0; k < stats.channels.size(); ++k) EXPECT_NEAR(other.channels[k], stats.channels[k], 1e-4f * stats.amax) << k;
  }
}

}  // namespace inflight::engine
