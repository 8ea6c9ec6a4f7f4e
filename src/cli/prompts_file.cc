#include "cli/prompts_file.h"

#include "cli/input.h"

namespace inflight::cli {

Result<std::vector<NumberedRequest>> parse_prompts(std::string_view text, std::string_view path) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::vector<NumberedRequest> requests;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    requests.push_back({number, TRY(api::parse_request(line, fmt::format("{} line {}", path, number)))});
  }
  if (requests.empty()) return fail(Code::kInvalidArgument, "{}: holds no request; every line is a JSON object such as {{\"prompt\": \"Hello\"}}", path);
  return requests;
}

std::string prompts_name(const std::string& path) { return path == "-" ? "standard input" : path; }

Result<std::vector<NumberedRequest>> read_prompts_file(const std::string& path) {
  return parse_prompts(path == "-" ? TRY(read_standard_input()) : TRY(read_input(path)), prompts_name(path));
}

}  // namespace inflight::cli
