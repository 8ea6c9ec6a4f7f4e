#include "cli/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "cli/launch.h"

namespace inflight::cli {
namespace {

// Bytes of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7), or 0.
std::size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto tail = [&](std::size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xbf; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const unsigned low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
    return byte(1) >= low && byte(1) <= high && tail(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const unsigned low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
    return byte(1) >= low && byte(1) <= high && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

Result<std::string> read_stream(int descriptor, std::string_view name) {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count == 0) return text;
    if (count < 0) {
      if (errno == EINTR) continue;
      return fail(Code::kNotFound, "cannot read {}: {}", name, std::strerror(errno));
    }
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > (std::size_t{1} << 30)) return fail(Code::kInvalidArgument, "{} is longer than 1 GiB", name);
  }
}

}  // namespace

Result<std::string> read_standard_input() {
  take_terminal();
  return read_stream(STDIN_FILENO, "standard input");
}

Result<std::string> read_input(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0 || !S_ISFIFO(status.st_mode)) return read_file(path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail(Code::kNotFound, "cannot open \"{}\": {}", path, std::strerror(errno));
  Result<std::string> text = read_stream(descriptor, path);
  ::close(descriptor);
  return text;
}

Result<void> check_utf8(std::string_view text, std::string_view where) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = sequence_bytes(text.substr(at));
    if (bytes == 0)
      return fail(Code::kInvalidArgument, "{}: not UTF-8: byte 0x{:02x} at offset {}; convert the text first (for example with iconv)", where, static_cast<unsigned char>(text[at]), at);
    at += bytes;
  }
  return {};
}

Result<std::vector<std::int32_t>> read_token_ids(const std::string& list_or_path) {
  std::vector<std::int32_t> ids;
  if (list_or_path.find_first_not_of("0123456789, ") == std::string::npos) {
    std::string_view rest = list_or_path;
    while (true) {
      const std::size_t comma = rest.find(',');
      std::string_view word = rest.substr(0, comma);
      while (word.starts_with(' ')) word.remove_prefix(1);
      while (word.ends_with(' ')) word.remove_suffix(1);
      std::int32_t id = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (word.empty() || error != std::errc() || end != word.data() + word.size())
        return fail(Code::kInvalidArgument, "--tokens \"{}\": \"{}\" is not a token id; expected numbers such as 1,2,3", list_or_path, word);
      ids.push_back(id);
      if (comma == std::string_view::npos) return ids;
      rest.remove_prefix(comma + 1);
    }
  }
  const Json list = TRY(read_json_file(list_or_path));
  if (!list.is_array() || list.empty()) return fail(Code::kInvalidArgument, "{}: must be a JSON list of at least one token id", list_or_path);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& value = list[i];
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX) || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > INT32_MAX)
      return fail(Code::kInvalidArgument, "{}: entry {} is not a token id, a whole number from 0 to {}", list_or_path, i, INT32_MAX);
    ids.push_back(value.get<std::int32_t>());
  }
  return ids;
}

}  // namespace inflight::cli
