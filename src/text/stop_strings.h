// Stop strings on decoded text: ends the text before the earliest stop string, across any cut into pieces.
//
//     text::StopMatcher stops({"\n\n", "User:"});
//     emit(stops.feed(piece));
//     if (stops.stopped()) ...       // finish_reason "stop"
//     else emit(stops.flush());      // at EOS or at the length limit
//
// The joined output is the whole text up to the earliest start of a stop string (the longest of those that start there matters not:
// the text ends at the same place), without it. Held back is only a tail that may be the beginning of a stop string.
// Empty stop strings are ignored. Once stopped, further text is swallowed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace inflight::text {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  std::string feed(std::string_view text);  // the text that is safe to show
  std::string flush();                      // what was held back; "" when stopped
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string that ended the text; "" while none did

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace inflight::text
