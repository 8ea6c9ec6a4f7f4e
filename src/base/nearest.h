// "Did you mean": the known name closest to what was asked for.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace inflight {

// The known name with the smallest edit distance to `name`, or "" when none is near (distance over a third of its length + 1).
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// "known: a b c. Did you mean \"b\"?" (the second sentence only where a name is near).
std::string known_names_hint(std::string_view name, std::span<const std::string_view> known);

}  // namespace inflight
