#include "base/json.h"

#include "base/file.h"

namespace inflight {
namespace {

const Json* find(const JsonView& view, std::string_view key) {
  const auto at = view.object->find(key);
  return at == view.object->end() || at->is_null() ? nullptr : &*at;
}

std::unexpected<Error> missing(const JsonView& view, std::string_view key) {
  return fail(Code::kCorrupt, "{}: required key \"{}\" is missing; is this the config.json of the checkpoint?", view.where, key);
}

std::unexpected<Error> wrong_type(const JsonView& view, std::string_view key, std::string_view wanted, const Json& got) {
  std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return fail(Code::kCorrupt, "{}: \"{}\" must be {}, but is {}", view.where, key, wanted, text);
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, int max_depth) {
  // Depth is bounded before parsing: the parser's own recursion would otherwise be the input's to choose.
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) return fail(Code::kCorrupt, "{}: JSON nested deeper than {} levels at byte {}", where, max_depth, i);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  // The parser takes a NUL for the end of its input and would accept whatever follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) return fail(Code::kCorrupt, "{}: not valid JSON: a NUL byte at byte {}", where, nul);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    std::string reason = e.what();
    if (const auto at = reason.find("] "); at != std::string::npos) reason = reason.substr(at + 2);
    for (char& c : reason)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    return fail(Code::kCorrupt, "{}: not valid JSON: {}", where, reason);
  }
}

Result<Json> read_json_file(const std::string& path) {
  const std::string text = TRY(read_file(path));
  return parse_json(text, path);
}

bool JsonView::has(std::string_view key) const { return find(*this, key) != nullptr; }

Result<std::int64_t> JsonView::integer(std::string_view key) const {
  const Json* value = find(*this, key);
  if (!value) return missing(*this, key);
  if (value->is_number_integer() && (!value->is_number_unsigned() || value->get<std::uint64_t>() <= INT64_MAX)) return value->get<std::int64_t>();
  if (value->is_number_float()) {  // some exporters write 4096.0
    const double number = value->get<double>();
    if (number >= -0x1p53 && number <= 0x1p53 && static_cast<double>(static_cast<std::int64_t>(number)) == number) return static_cast<std::int64_t>(number);
  }
  return wrong_type(*this, key, "an integer", *value);
}

Result<std::int64_t> JsonView::integer_or(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : Result<std::int64_t>(fallback);
}

Result<double> JsonView::number(std::string_view key) const {
  const Json* value = find(*this, key);
  if (!value) return missing(*this, key);
  if (!value->is_number()) return wrong_type(*this, key, "a number", *value);
  return value->get<double>();
}

Result<double> JsonView::number_or(std::string_view key, double fallback) const { return has(key) ? number(key) : Result<double>(fallback); }

Result<bool> JsonView::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = find(*this, key);
  if (!value) return fallback;
  if (!value->is_boolean()) return wrong_type(*this, key, "true or false", *value);
  return value->get<bool>();
}

Result<std::string> JsonView::string(std::string_view key) const {
  const Json* value = find(*this, key);
  if (!value) return missing(*this, key);
  if (!value->is_string()) return wrong_type(*this, key, "a string", *value);
  return value->get<std::string>();
}

Result<std::string> JsonView::string_or(std::string_view key, std::string fallback) const {
  return has(key) ? string(key) : Result<std::string>(std::move(fallback));
}

}  // namespace inflight
