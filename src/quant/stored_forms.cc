// Every stored form of other tools. What config.json says of them: form_config.cc.
#include "quant/stored_forms.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/form_bytes.h"

namespace inflight::quant {

std::span<const std::string_view> codes_suffixes() {
  static constexpr std::array<std::string_view, 3> kSuffixes = {"qweight", "weight_packed", "quant_weight"};
  return kSuffixes;
}

Result<void> set_order(FormSettings& settings, std::span<const std::int32_t> group_of_input) {
  settings.order = nullptr;
  const auto inputs = static_cast<std::int64_t>(group_of_input.size());
  const std::int64_t group = settings.group == 0 ? std::max<std::int64_t>(inputs, 1) : settings.group, groups = (inputs + group - 1) / group;
  if (std::ranges::all_of(group_of_input, [](std::int32_t g) { return g == -1; })) return {};  // never set by its tool
  std::vector<std::int64_t> members(static_cast<std::size_t>(groups), 0);
  bool sorted = true;
  for (std::int64_t k = 0; k < inputs; ++k) {
    const std::int32_t g = group_of_input[static_cast<std::size_t>(k)];
    if (g < 0 || g >= groups) return fail(Code::kCorrupt, "input {} is in group {}; {} inputs in groups of {} make groups 0..{}", k, g, inputs, group, groups - 1);
    ++members[static_cast<std::size_t>(g)];
    sorted &= g == k / group;
  }
  if (sorted) return {};
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t expected = std::min(group, inputs - g * group);
    if (members[static_cast<std::size_t>(g)] != expected)
      return fail(Code::kCorrupt, "group {} has {} inputs, expected {} ({} inputs in groups of {})", g, members[static_cast<std::size_t>(g)], expected, inputs, group);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(inputs));
  for (std::int64_t g = 0; g < groups; ++g) members[static_cast<std::size_t>(g)] = g * group;  // where its next input goes
  for (std::int32_t k = 0; k < inputs; ++k) order[static_cast<std::size_t>(members[static_cast<std::size_t>(group_of_input[static_cast<std::size_t>(k)])]++)] = k;
  settings.order = std::make_shared<const std::vector<std::int32_t>>(std::move(order));
  return {};
}

void dequantize_parts(const RowParts& parts, float* out) {
  const std::int64_t groups = parts.groups(), group = parts.group == 0 ? std::max<std::int64_t>(parts.inputs, 1) : parts.group;
  float values[256];
  const int middle = zero_code(parts.kind);
  for (int code = 0; code < 256; ++code) {
    if (parts.kind != CodeKind::kE4M3) {
      values[code] = static_cast<float>(code - middle);
    } else {  // 4 bits of exponent, bias 7, 3 of mantissa; no infinities
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      const float magnitude = (code & 0x7f) == 0x7f ? NAN : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      values[code] = code & 0x80 ? -magnitude : magnitude;
    }
  }
  for (int r = 0; r < parts.rows; ++r)
    for (std::int64_t g = 0; g < groups; ++g) {
      const float scale = parts.scales[r * groups + g], offset = parts.offsets ? parts.offsets[r * groups + g] : 0;
      for (std::int64_t j = g * group; j < std::min(parts.inputs, (g + 1) * group); ++j)
        out[r * parts.inputs + (parts.order ? parts.order[j] : j)] = std::fma(scale, values[parts.codes[r * parts.inputs + j]], offset);
    }
}

// Each belongs to a file of its own; what stands here serves until that file is there.
__attribute__((weak)) const StoredForm& gguf_form() {
  static constexpr StoredForm kNone{};
  return kNone;
}
__attribute__((weak)) FormSettings gguf_settings(DType) { return {}; }

}  // namespace inflight::quant
