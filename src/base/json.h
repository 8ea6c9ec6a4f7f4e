// JSON values (nlohmann) with readers that never throw and say which key of which file is wrong.
#pragma once
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace inflight {

using Json = nlohmann::json;                  // keys sorted
using OrderedJson = nlohmann::ordered_json;   // keys in insertion order (chat templates need it)

// Parses text; an error names `where` (a path) and the byte at which parsing failed. At most `max_depth` nested levels.
Result<Json> parse_json(std::string_view text, std::string_view where, int max_depth = 64);
Result<Json> read_json_file(const std::string& path);

// A JSON object together with the file it came from; every getter names both in its error.
// A key that is absent or null counts as missing.
struct JsonView {
  const Json* object = nullptr;
  std::string where;  // "config.json"

  bool has(std::string_view key) const;  // present and not null
  Result<std::int64_t> integer(std::string_view key) const;
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t fallback) const;
  Result<double> number(std::string_view key) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string(std::string_view key) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
};

}  // namespace inflight
