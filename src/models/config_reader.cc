#include "models/config_reader.h"

#include <array>
#include <charconv>
#include <string>

namespace inflight::models {

Result<std::int64_t> positive(const JsonView& config, std::string_view key) {
  const std::int64_t value = TRY(config.integer(key));
  if (value <= 0 || value > (std::int64_t{1} << 31)) return fail(Code::kCorrupt, "{}: \"{}\" is {}; a number from 1 to 2^31 is needed", config.where, key, value);
  return value;
}

Result<bool> is_paddle_layout(const JsonView& config) {
  if (config.has("quantization_config") && (*config.object)["quantization_config"].contains("inflight")) return false;
  if (config.has("torch_dtype") || !config.has("dtype")) return false;
  const std::string version = TRY(config.string_or("transformers_version", ""));
  std::array<int, 3> parts{};
  const char* at = version.data();
  const char* const end = at + version.size();
  for (int& part : parts) {
    at = std::from_chars(at, end, part).ptr;
    if (at == end || *at != '.') break;
    ++at;
  }
  return parts <= std::array{4, 56, 0};
}

}  // namespace inflight::models
