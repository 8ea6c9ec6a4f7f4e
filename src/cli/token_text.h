// Tokens as a reader sees them: the text that one adds, on one line, in a given width.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace inflight::cli {

// What `id` adds to the text after the tokens `before` (a few are enough): with its leading space where the tokenizer gives one. A token that is part of a character
// only, or has no text, is spelled as the vocabulary spells it.
Result<std::string> token_text(const text::Tokenizer& tokenizer, std::span<const std::int32_t> before, std::int32_t id);

// Control characters, line ends, and what turns the direction of text are written out (\n, \x1b, \u202e); backslashes stay as they are. text: UTF-8.
std::string one_line(std::string_view text);

// Columns of a terminal that the text takes: 2 for a wide character, 0 for a combining one.
std::size_t display_width(std::string_view text);
// Cut to `width` columns (the last is then an ellipsis), or filled with spaces up to it.
std::string fitted(std::string_view text, std::size_t width);

}  // namespace inflight::cli
