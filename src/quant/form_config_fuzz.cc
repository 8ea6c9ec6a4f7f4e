// Any bytes as a quantization_config, and any string in it as a pattern: a value or an error, in bounded time.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quant/name_pattern.h"
#include "quant/stored_forms.h"

namespace {

using inflight::Json;

void check(bool claim) {
  if (!claim) __builtin_trap();
}

constexpr std::string_view kModules[] = {"model.layers.0.mlp.down_proj", "model.layers.11.mlp.experts.3.up_proj", "lm_head", "model.embed_tokens", ""};

void read_all(const Json& value, int depth) {
  if (value.is_string()) {
    const auto pattern = inflight::quant::NamePattern::parse(value.get<std::string>());
    check(pattern.has_value() || !pattern.error().message.empty());
    for (const std::string_view module : kModules)
      if (pattern && pattern->matches_components(module)) check(pattern->matches(module));
  }
  if (depth < 6 && value.is_structured())
    for (const Json& inner : value) read_all(inner, depth + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = inflight::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json) return 0;
  read_all(*json, 0);
  const Json config = {{"quantization_config", *json}};
  const auto parsed = inflight::quant::FormConfig::parse({&config, "fuzz"});
  if (!parsed) {
    check(!parsed.error().message.empty());
    return 0;
  }
  if (!*parsed) return 0;
  for (const std::string_view module : kModules) {
    const auto choice = (*parsed)->choice(module);
    check(choice.has_value() || !choice.error().message.empty());
    if (!choice || !*choice) continue;
    check((*choice)->form != nullptr);
    for (const std::int64_t n : {1, 24, 128})
      if (const auto tensors = (*choice)->form->tensors((*choice)->settings, n, 3 * n + 4)) check(!tensors->empty() && !(*tensors)[0].optional);
  }
  return 0;
}
