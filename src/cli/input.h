// Text that comes from outside: standard input, files that must be UTF-8, lists of token ids.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace inflight::cli {

// Everything up to its end.
Result<std::string> read_standard_input();

// A file, or a pipe such as the shell's <(command).
Result<std::string> read_input(const std::string& path);

// An error that names `where` and the first byte that is not UTF-8.
Result<void> check_utf8(std::string_view text, std::string_view where);

// "1,2,3", or the path of a file with a JSON list of token ids. At least one id, each from 0 to 2^31 - 1.
Result<std::vector<std::int32_t>> read_token_ids(const std::string& list_or_path);

}  // namespace inflight::cli
