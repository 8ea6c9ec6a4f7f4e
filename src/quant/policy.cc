#include "quant/policy.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/nearest.h"
#include "quant/fp8_formats.h"
#include "quant/integer_formats.h"
#include "quant/mix.h"

namespace inflight::quant {
namespace {

using params::ParamSpec;
using params::Role;

bool takes_format(Role role) { return role == Role::kLinear || role == Role::kExpert || role == Role::kHead; }

bool matches(const std::string& pattern, const std::string& name) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; }

bool matches(const std::string& pattern, const ParamSpec& row) {
  if (!takes_format(row.role)) return false;
  if (matches(pattern, row.scope.empty() ? row.name : row.scope + "." + row.name)) return true;
  for (std::size_t piece = 0; piece < row.pieces.size(); ++piece)
    if (matches(pattern, row.piece_base(piece))) return true;
  return false;
}

// "bf16" keeps what is stored.
Result<const Format*> wanted_format(std::string_view name) {
  const Format* format = TRY(find_format(name));
  if (std::ranges::find(formats(), format) == formats().end()) {
    std::vector<std::string_view> names;
    for (const Format* known : formats()) names.push_back(known->name);
    return fail(Code::kInvalidArgument, "\"{}\" is what weights of other tools are kept in, and nothing is quantized to it here; {}", name, known_names_hint(name, names));
  }
  return format == &bf16_format() ? nullptr : format;
}

Result<void> read_object(std::string_view text, FormatPolicy& policy) {
  const auto parsed = parse_json(text, "--quantization");  // an object: it starts with a brace
  if (!parsed)
    return fail(Code::kInvalidArgument, "{}\n  expected e.g. {{\"quantization\": \"mix_quant\", \"dense_quant_type\": \"wint8\", \"moe_quant_type\": \"wint4\"}}", parsed.error().message);
  const Json& json = *parsed;
  constexpr std::array<std::string_view, 4> kKeys = {"quantization", "dense_quant_type", "moe_quant_type", "kv_cache_quant_type"};
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(kKeys, key) == kKeys.end()) return fail(Code::kInvalidArgument, "--quantization: key \"{}\" is not known; {}", key, known_names_hint(key, kKeys));
    if (!value.is_string() && !value.is_null()) return fail(Code::kInvalidArgument, "--quantization: \"{}\" must be a string, not {}", key, value.dump());
  }
  const JsonView view{&json, "--quantization"};
  const std::string kind = TRY(view.string("quantization"));
  if (!TRY(view.string_or("kv_cache_quant_type", "")).empty())
    return fail(Code::kUnsupported, "--quantization: a quantized KV cache (kv_cache_quant_type \"{}\") is not supported; leave it out and see --kv-cache-dtype", TRY(view.string("kv_cache_quant_type")));
  if (kind != "mix_quant") {
    if (json.size() != 1) return fail(Code::kInvalidArgument, "--quantization: \"dense_quant_type\" and \"moe_quant_type\" belong to \"quantization\": \"mix_quant\", not to \"{}\"", kind);
    policy.linear = policy.expert = TRY(wanted_format(kind));
    return {};
  }
  const auto part = [&](std::string_view key) -> Result<const Format*> {
    const std::string name = TRY(view.string_or(key, ""));
    if (name.empty()) return nullptr;
    auto format = wanted_format(name);
    if (!format) return fail_at(fmt::format("--quantization: {}", key), std::move(format).error());
    return *format;
  };
  policy.linear = TRY(part("dense_quant_type"));
  policy.expert = TRY(part("moe_quant_type"));
  if (!policy.linear && !policy.expert) return fail(Code::kInvalidArgument, "--quantization: mix_quant needs \"dense_quant_type\" or \"moe_quant_type\", or both");
  return {};
}

}  // namespace

const Format* FormatPolicy::of(const ParamSpec& row) const {
  if (row.role == Role::kEmbedding) return embedding;
  if (!takes_format(row.role)) return nullptr;
  for (auto o = overrides.rbegin(); o != overrides.rend(); ++o)
    if (matches(o->pattern, row)) return o->format;
  return row.role == Role::kLinear ? linear : row.role == Role::kExpert ? expert : head;
}

Result<void> FormatPolicy::check_overrides(const params::ParamTable& table) const {
  for (const Override& o : overrides) {
    if (std::ranges::any_of(table.rows, [&](const ParamSpec& row) { return matches(o.pattern, row); })) continue;
    const auto example = std::ranges::find_if(table.rows, [](const ParamSpec& row) { return takes_format(row.role); });
    return fail(Code::kInvalidArgument, "--quantization-override: \"{}\" matches no weight of this model; names look like \"{}\" (inflight inspect MODEL lists them; norms, routers and embeddings are never quantized)",
                o.pattern, example == table.rows.end() ? "model.layers.0.mlp.down_proj" : example->piece_base(0));
  }
  return {};
}

void FormatPolicy::settle(const params::ParamTable& table) {
  if (!mix) return;
  mix = false;
  const std::vector<Override> chosen = mix_overrides(table);
  overrides.insert(overrides.begin(), chosen.begin(), chosen.end());  // the user's come last and win
}

bool FormatPolicy::agrees(const FormatPolicy& other, const params::ParamTable& table) const {
  return std::ranges::all_of(table.rows, [&](const ParamSpec& row) { return of(row) == other.of(row); });
}

Result<void> FormatPolicy::set_fp8_target(std::string_view target) {
  constexpr std::array<std::string_view, 2> kKnown = {"ocp", "gaudi"};
  if (std::ranges::find(kKnown, target) == kKnown.end()) return fail(Code::kInvalidArgument, "unknown --fp8-target \"{}\"; {}", target, known_names_hint(target, kKnown));
  if (target == "ocp") return {};
  const auto retarget = [](const Format*& format) {
    if (format == &tensor_wise_fp8_format()) format = &tensor_wise_fp8_gaudi_format();
    if (format == &block_wise_fp8_format()) format = &block_wise_fp8_gaudi_format();
  };
  retarget(linear);
  retarget(expert);
  retarget(head);
  for (Override& o : overrides) retarget(o.format);
  return {};
}

Result<FormatPolicy> make_policy(std::string_view quantization, std::string_view lm_head, const std::vector<std::string>& overrides) {
  FormatPolicy policy;
  if (quantization.starts_with('{')) TRY(read_object(quantization, policy));
  else if (quantization == kMixName) policy = {.linear = &wlut4_format(), .expert = &wlut4_format(), .mix = true};
  else if (!quantization.empty()) policy.linear = policy.expert = TRY(wanted_format(quantization));
  if (lm_head.empty() || lm_head == "auto") {
    const auto integer = [](const Format* format) { return format && format->quantized() && format->codes != Codes::kE4M3; };
    policy.head = integer(policy.linear) || integer(policy.expert) ? &wint8_format() : nullptr;
  } else {
    auto head = wanted_format(lm_head);
    if (!head) return fail_at("--lm-head (\"auto\" or a format)", std::move(head).error());
    policy.head = *head;
  }
  for (const std::string& text : overrides) {
    const std::size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return fail(Code::kInvalidArgument, "--quantization-override \"{}\": expected PATTERN=FORMAT, e.g. '{}'", text, kOverrideExample);
    auto format = wanted_format(std::string_view(text).substr(equals + 1));
    if (!format) return fail_at(fmt::format("--quantization-override \"{}\"", text), std::move(format).error());
    policy.overrides.push_back({text.substr(0, equals), *format});
  }
  return policy;
}

}  // namespace inflight::quant
