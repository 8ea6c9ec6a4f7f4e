#include "cli/format.h"

#include <fmt/format.h>

#include <cmath>

namespace inflight::cli {

std::string human_bytes(std::int64_t bytes) {
  if (bytes < 0) return "-" + human_bytes(-bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes) / 1000;
  int unit = 0;
  while (value >= 999.5 && unit < 4) value /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 0.01) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.995) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string human_rate(double per_second) {
  if (!(per_second > 0)) return "0";
  return fmt::format("{:.{}f}", per_second, per_second < 9.995 ? 2 : per_second < 99.95 ? 1 : 0);
}

std::string gigabytes_per_second(double bytes, double seconds) { return seconds > 0 ? fmt::format("{:.2f} GB/s", bytes / seconds / 1e9) : ""; }

std::string grouped(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace inflight::cli
