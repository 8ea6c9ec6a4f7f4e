#include "cli/calibration_data.h"

#include <algorithm>
#include <optional>

#include "api/prompt.h"
#include "api/request_json.h"
#include "base/json.h"
#include "cli/input.h"
#include "text/tokenizer.h"

namespace inflight::cli {
namespace {

using Windows = std::vector<std::vector<std::int32_t>>;

// false: there are enough.
bool cut(const std::vector<std::int32_t>& ids, std::int64_t window, std::int64_t most, Windows& windows) {
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(window)) {
    if (most > 0 && static_cast<std::int64_t>(windows.size()) == most) return false;
    const std::size_t end = std::min(ids.size(), at + static_cast<std::size_t>(window));
    windows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at), ids.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return true;
}

Result<Windows> read_lines(const std::string& path, const std::string& folder, std::int64_t window, std::int64_t most) {
  const std::string all = TRY(read_input(path));
  std::string_view text = all;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::optional<api::PromptEncoder> encoder;  // ids need none
  Windows windows;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{} line {}", path, number);
    const Json object = TRY(parse_json(line, where));
    const bool plain = object.is_object() && object.contains("text");
    if (plain && (!object["text"].is_string() || object.contains("prompt") || object.contains("messages") || object.contains("ids")))
      return fail(Code::kInvalidArgument, "{}: `text` must be a string, without `prompt`, `messages` or `ids` beside it", where);
    const api::Prompt prompt = plain ? api::Prompt(std::string()) : TRY(api::parse_request(line, where)).prompt;
    std::vector<std::int32_t> ids;
    if (const auto* given = std::get_if<std::vector<std::int32_t>>(&prompt)) {
      ids = *given;
    } else {
      if (!encoder) encoder.emplace(TRY(api::PromptEncoder::load(folder, {})));
      auto encoded = plain ? encoder->tokenizer().encode(object["text"].get<std::string>(), /*add_special_tokens=*/true) : encoder->encode(prompt);
      if (!encoded) return fail_at(where, std::move(encoded).error());
      ids = *std::move(encoded);
    }
    if (!cut(ids, window, most, windows)) break;
  }
  return windows;
}

Result<Windows> read_text(const std::string& path, const std::string& folder, std::int64_t window, std::int64_t most) {
  const std::string text = TRY(read_input(path));
  TRY(check_utf8(text, path));
  const text::Tokenizer tokenizer = TRY(text::Tokenizer::load(folder));
  Windows windows;
  cut(TRY(tokenizer.encode(text, /*add_special_tokens=*/false)), window, most, windows);
  return windows;
}

}  // namespace

Result<Windows> read_calibration_data(const std::string& path, const std::string& model_folder, std::int64_t window, std::int64_t most) {
  Windows windows = TRY(path.ends_with(".jsonl") ? read_lines(path, model_folder, window, most) : read_text(path, model_folder, window, most));
  if (windows.empty()) return fail(Code::kInvalidArgument, "\"{}\" has no tokens to calibrate on", path);
  return windows;
}

}  // namespace inflight::cli
