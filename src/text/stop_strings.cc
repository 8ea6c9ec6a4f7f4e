#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace inflight::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::feed(std::string_view text) {
  if (stopped_) return {};
  held_ += text;

  // Walk the possible starts in order. A start where a stop string is complete ends the text; one where a stop string has
  // begun but is not complete makes everything from there wait: a later complete match must not overtake it.
  std::size_t at = 0;
  for (; at < held_.size(); ++at) {
    const std::string_view rest = std::string_view(held_).substr(at);
    const auto complete = std::ranges::find_if(stops_, [&](const std::string& stop) { return rest.starts_with(stop); });
    if (complete != stops_.end()) {
      stopped_ = true;
      matched_ = *complete;
      held_.resize(at);
      return std::exchange(held_, {});
    }
    if (std::ranges::any_of(stops_, [&](const std::string& stop) { return std::string_view(stop).starts_with(rest); })) break;
  }
  std::string safe = held_.substr(0, at);
  held_.erase(0, at);
  return safe;
}

std::string StopMatcher::flush() {
  if (stopped_ || held_.empty()) return {};
  // The text ends here, so the beginning of a stop string at `at` never completes; a shorter one inside the held text may be complete.
  std::string held = std::exchange(held_, {});
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held.find(stop);
    if (at < end) {
      end = at;
      matched_ = stop;
      stopped_ = true;
    }
  }
  if (stopped_) held.resize(end);
  return held;
}

}  // namespace inflight::text
