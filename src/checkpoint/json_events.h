// JSON as a stream of events, for files whose duplicates, negatives, floats and huge integers must be seen rather than smoothed over.
//
// A reader derives from JsonReader, answers on_key / on_value / on_end, and is run by read_json_events().
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace inflight::checkpoint {

enum class JsonKind { kNull, kBoolean, kUnsigned, kOtherNumber, kString, kObject, kArray };

// "a string", "an array", ... for messages.
std::string_view json_kind_name(JsonKind kind);

struct JsonValue {
  JsonKind kind = JsonKind::kNull;  // kOtherNumber: negative (-0 too), with a fraction or exponent, or above 2^64-1
  std::uint64_t number = 0;         // of kUnsigned
  std::string* text = nullptr;      // of kString; may be moved from
};

// Text of foreign origin, made fit for a message: quoted, printable ASCII with \xNN for the rest, cut after `max` bytes.
std::string show(std::string_view text, std::size_t max = 200);

class JsonReader {
 public:
  virtual ~JsonReader() = default;
  // Each returns false after calling reject(); reading then stops. `depth` counts the containers around the key or value: 0 is the root.
  virtual bool on_key(std::string& key, int depth) = 0;
  virtual bool on_value(const JsonValue& value, int depth) = 0;  // scalars, and the start of objects and arrays
  virtual bool on_end(int depth) = 0;                            // end of the container that began at `depth`

  template <class... Args>
  bool reject(fmt::format_string<Args...> format, Args&&... args) {
    return reject_as(Code::kCorrupt, fmt::format(format, std::forward<Args>(args)...));
  }
  bool reject_as(Code code, std::string message) {
    if (!error_) error_ = Error{code, std::move(message)};
    return false;
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_;
};

// Strict JSON: UTF-8, no byte order mark, no NUL, nothing after the value, at most `max_depth` levels. Errors are kCorrupt and do not name the file.
Result<void> read_json_events(std::string_view text, JsonReader& reader, int max_depth = 64);

}  // namespace inflight::checkpoint
