// Regular expressions over module names, as configuration files of Python tools hold them. Time is bounded: there is no backtracking.
// Known: literals . [] | ( ) (?: ) (?P<n> ) (?= ) (?! ) * + ? {m,n} (greedy or lazy: the same here) ^ $ \A \Z \b \B \d \w \s and their capitals, escaped
// punctuation. Not known, an error: references to groups, looking behind, flags.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace inflight::quant {

class NamePattern {
 public:
  struct Node;  // the parsed expression

  static Result<NamePattern> parse(std::string_view text);
  // Python's re.match: some part of `name` that begins at its first letter fits.
  bool matches(std::string_view name) const;
  // The same, and the part ends where a dotted component of the name begins or ends.
  bool matches_components(std::string_view name) const;

 private:
  std::shared_ptr<const Node> root_;
};

}  // namespace inflight::quant
