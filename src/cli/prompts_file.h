// A file of requests, one JSON object a line; blank lines are skipped.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "api/request_json.h"
#include "base/result.h"

namespace inflight::cli {

struct NumberedRequest {
  std::int64_t line = 0;  // from 1
  api::JsonRequest request;
};

// What messages call it: the path, or "standard input" for "-".
std::string prompts_name(const std::string& path);

// The whole file is checked before anything runs: the first bad line is the error, with its number. "-": standard input.
Result<std::vector<NumberedRequest>> read_prompts_file(const std::string& path);
Result<std::vector<NumberedRequest>> parse_prompts(std::string_view text, std::string_view path);

}  // namespace inflight::cli
