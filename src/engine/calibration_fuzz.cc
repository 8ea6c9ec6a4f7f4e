// Any bytes as a calibration file of each form: numbers that hold together, or an error.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/e4m3.h"
#include "engine/calibration.h"

namespace {

using inflight::engine::Calibration;

void check(bool claim) {
  if (!claim) __builtin_trap();
}

void check_result(const inflight::Result<Calibration>& result) {
  if (!result) return check(!result.error().message.empty());
  check(!result->points.empty());
  Calibration twice = *result;
  check(twice.merge(*result).has_value());
  int clips = 0;
  for (const auto& [point, stats] : result->points) {
    check(!point.empty() && std::isfinite(stats.amax) && stats.amax >= 0);
    if (++clips > 4) continue;
    check(stats.percentile(99.9) >= 0 && stats.percentile(99.9) <= stats.amax);
    const float clip = stats.mse_clip(inflight::kE4m3Max);
    check(clip >= 0 && clip <= stats.amax);
    check(inflight::engine::PointStats::scale(clip, inflight::kE4m3Max) >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_result(inflight::engine::parse_calibration_text(text, "fuzz"));
  check_result(inflight::engine::parse_calibration_json(text, "fuzz"));
  static const int file = memfd_create("calibration", 0);
  check(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  check_result(inflight::engine::read_calibration(fmt::format("/proc/self/fd/{}", file)));
  return 0;
}
