// What calibration runs over: a text, or JSON lines.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace inflight::cli {

// Token ids of windows of up to `window` tokens; only the first `most` of them (0: all). The last window of a text or line may be shorter.
// A path that ends in .jsonl: a line is an object with one of `prompt` (rendered as a user message), `messages`, `text` (as it is, with the special tokens that the
// tokenizer adds) and `ids`; sampling fields are allowed, and say nothing here. Any other file is text, without special tokens.
Result<std::vector<std::vector<std::int32_t>>> read_calibration_data(const std::string& path, const std::string& model_folder, std::int64_t window, std::int64_t most);

}  // namespace inflight::cli
