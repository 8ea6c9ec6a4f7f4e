#include "cli/token_text.h"

#include <fmt/format.h>

#include <vector>

namespace inflight::cli {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 1;
};

// The first character; a byte that starts none counts as one of its own.
CodePoint first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t bytes = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 1;
  if (bytes == 1 || bytes > text.size()) return {lead, 1};
  std::uint32_t value = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  return {value, bytes};
}

bool within(std::uint32_t value, std::uint32_t first, std::uint32_t last) { return value >= first && value <= last; }

bool is_hidden(std::uint32_t c) {
  return c < 0x20 || within(c, 0x7f, 0x9f) || within(c, 0x200b, 0x200f) || within(c, 0x2028, 0x202e) || within(c, 0x2060, 0x206f) || c == 0xfeff;
}

// The blocks of Unicode's East Asian Width W and F, and of combining marks, that texts really have.
std::size_t width_of(std::uint32_t c) {
  if (within(c, 0x300, 0x36f) || within(c, 0xfe00, 0xfe0f) || within(c, 0x20d0, 0x20ff) || c == 0x200d) return 0;
  const bool wide = within(c, 0x1100, 0x115f) || within(c, 0x2e80, 0x303e) || within(c, 0x3041, 0xa4cf) || within(c, 0xac00, 0xd7a3) || within(c, 0xf900, 0xfaff) || within(c, 0xfe30, 0xfe6f) ||
                    within(c, 0xff01, 0xff60) || within(c, 0xffe0, 0xffe6) || within(c, 0x1f300, 0x1f64f) || within(c, 0x1f900, 0x1f9ff) || within(c, 0x20000, 0x3fffd);
  return wide ? 2 : 1;
}

}  // namespace

Result<std::string> token_text(const text::Tokenizer& tokenizer, std::span<const std::int32_t> before, std::int32_t id) {
  constexpr std::string_view kBroken = "\xef\xbf\xbd";  // U+FFFD
  std::vector<std::int32_t> ids(before.begin(), before.end());
  const std::string head = TRY(tokenizer.decode(ids, /*skip_special=*/false));
  ids.push_back(id);
  std::string text = TRY(tokenizer.decode(ids, false));
  if (text.starts_with(head)) text.erase(0, head.size());
  else text = TRY(tokenizer.decode(std::span(&id, 1), false));
  if (text.empty() || text.find(kBroken) != std::string::npos) text = tokenizer.token_of(id);
  if (text.empty()) text = fmt::format("<{}>", id);  // a row of the vocabulary without a token
  return text;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (; !text.empty();) {
    const CodePoint c = first_of(text);
    if (c.value == '\n') line += "\\n";
    else if (c.value == '\r') line += "\\r";
    else if (c.value == '\t') line += "\\t";
    else if (is_hidden(c.value)) line += c.value < 0x100 ? fmt::format("\\x{:02x}", c.value) : fmt::format("\\u{:04x}", c.value);
    else line += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  return line;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (; !text.empty();) {
    const CodePoint c = first_of(text);
    width += width_of(c.value);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string fitted(std::string_view text, std::size_t width) {
  const std::size_t whole = display_width(text);
  if (whole <= width) return std::string(text) + std::string(width - whole, ' ');
  std::string out;
  std::size_t used = 0;
  for (;;) {
    const CodePoint c = first_of(text);
    if (used + width_of(c.value) + 1 > width) break;
    used += width_of(c.value);
    out += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  out += "\xe2\x80\xa6";  // an ellipsis
  return out + std::string(width - used - 1, ' ');
}

}  // namespace inflight::cli
