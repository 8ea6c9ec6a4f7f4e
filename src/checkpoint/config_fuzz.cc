// Any bytes as a config.json: parsing and every getter, on every key that is there and one that is not, give a value or an error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace {

using inflight::Json;
using inflight::JsonView;

void check(bool claim) {
  if (!claim) __builtin_trap();
}

template <class T>
bool answered(const inflight::Result<T>& result) {
  return result.has_value() || !result.error().message.empty();
}

void read_all(const Json& object, int depth) {
  const JsonView view{&object, "fuzz"};
  std::vector<std::string> keys = {"hidden_size"};
  if (object.is_object())
    for (const auto& [key, value] : object.items()) keys.push_back(key);
  for (const std::string& key : keys) {
    check(answered(view.integer(key)) && answered(view.number(key)) && answered(view.string(key)) && answered(view.integer_or(key, 1)));
    check(answered(view.number_or(key, 1)) && answered(view.boolean_or(key, true)) && answered(view.string_or(key, "x")));
    if (!view.has(key)) check(!view.integer(key) && view.integer_or(key, 7) == 7);
  }
  if (depth < 3 && object.is_structured())
    for (const Json& value : object) read_all(value, depth + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = inflight::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (json)
    read_all(*json, 0);
  else
    check(!json.error().message.empty());
  return 0;
}
