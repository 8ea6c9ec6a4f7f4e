#include "checkpoint/json_events.h"

#include <utility>

namespace inflight::checkpoint {
namespace {

// nlohmann's events, with depth counted and the number kinds told apart. Its parser does not recurse, so depth is only a matter of policy.
class Adapter final : public nlohmann::json_sax<Json> {
 public:
  Adapter(JsonReader& reader, int max_depth) : reader_(reader), max_depth_(max_depth) {}

  bool null() override { return reader_.on_value({JsonKind::kNull}, depth_); }
  bool boolean(bool) override { return reader_.on_value({JsonKind::kBoolean}, depth_); }
  bool number_integer(number_integer_t) override { return reader_.on_value({JsonKind::kOtherNumber}, depth_); }
  bool number_unsigned(number_unsigned_t number) override { return reader_.on_value({JsonKind::kUnsigned, number}, depth_); }
  bool number_float(number_float_t, const string_t&) override { return reader_.on_value({JsonKind::kOtherNumber}, depth_); }
  bool string(string_t& text) override { return reader_.on_value({JsonKind::kString, 0, &text}, depth_); }
  bool binary(binary_t&) override { return reader_.reject("binary value"); }
  bool start_object(std::size_t) override { return enter(JsonKind::kObject); }
  bool start_array(std::size_t) override { return enter(JsonKind::kArray); }
  bool key(string_t& text) override { return reader_.on_key(text, depth_); }
  bool end_object() override { return reader_.on_end(--depth_); }
  bool end_array() override { return reader_.on_end(--depth_); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& problem) override {
    std::string_view reason = problem.what();
    if (const auto at = reason.find("] "); at != std::string_view::npos) reason = reason.substr(at + 2);
    return reader_.reject("not valid JSON at byte {}: {}", position, show(reason, 160));
  }

 private:
  bool enter(JsonKind kind) {
    if (depth_ >= max_depth_) return reader_.reject("JSON nested deeper than {} levels", max_depth_);
    return reader_.on_value({kind}, depth_++);
  }

  JsonReader& reader_;
  const int max_depth_;
  int depth_ = 0;
};

}  // namespace

std::string_view json_kind_name(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBoolean:
      return "true or false";
    case JsonKind::kUnsigned:
      return "an integer";
    case JsonKind::kOtherNumber:
      return "a negative, fractional or too large number";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kObject:
      return "an object";
    case JsonKind::kArray:
      return "an array";
  }
  return "?";
}

std::string show(std::string_view text, std::size_t max) {
  std::string out = "\"";
  for (const char c : text.substr(0, max)) {
    if (c >= 0x20 && c <= 0x7e)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  if (text.size() > max) out += "...";
  return out + '"';
}

Result<void> read_json_events(std::string_view text, JsonReader& reader, int max_depth) {
  // The parser takes a NUL for the end of the text and skips a byte order mark; both would hide bytes from us.
  if (const auto at = text.find('\0'); at != std::string_view::npos) return fail(Code::kCorrupt, "not valid JSON at byte {}: NUL byte", at);
  if (text.starts_with("\xef\xbb\xbf")) return fail(Code::kCorrupt, "not valid JSON at byte 0: starts with a byte order mark");
  Adapter adapter(reader, max_depth);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &adapter) && !reader.error()) return {};
  } catch (const Json::exception& problem) {
    reader.reject("not valid JSON: {}", show(problem.what(), 160));
  }
  if (reader.error()) return std::unexpected(*reader.error());
  return fail(Code::kCorrupt, "not valid JSON");
}

}  // namespace inflight::checkpoint
