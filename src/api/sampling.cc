#include "api/sampling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace inflight::api {
namespace {

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

std::unexpected<Error> wrong(std::string_view key, std::string_view wanted, const Json& got) {
  return fail(Code::kInvalidArgument, "\"{}\" must be {}, but is {}", key, wanted, shown(got));
}

Result<void> read(std::string_view key, const Json& value, std::optional<double>& into) {
  if (!value.is_number()) return wrong(key, "a number", value);
  into = value.get<double>();
  return {};
}

Result<void> read(std::string_view key, const Json& value, std::optional<std::int64_t>& into) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (fits) {
    into = value.get<std::int64_t>();
    return {};
  }
  if (value.is_number_float()) {  // 50.0 is an integer too
    const double number = value.get<double>();
    if (number >= -0x1p53 && number <= 0x1p53 && static_cast<double>(static_cast<std::int64_t>(number)) == number) {
      into = static_cast<std::int64_t>(number);
      return {};
    }
  }
  return wrong(key, "an integer", value);
}

Result<void> read(std::string_view key, const Json& value, std::optional<bool>& into) {
  if (!value.is_boolean()) return wrong(key, "true or false", value);
  into = value.get<bool>();
  return {};
}

Result<void> read(std::string_view key, const Json& value, std::optional<std::uint64_t>& into) {
  if (!value.is_number_integer()) return wrong(key, "an integer", value);
  into = value.is_number_unsigned() ? value.get<std::uint64_t>() : static_cast<std::uint64_t>(value.get<std::int64_t>());
  return {};
}

Result<void> read(std::string_view key, const Json& value, std::optional<std::vector<std::string>>& into) {
  std::vector<std::string> strings;
  if (value.is_string()) {
    strings.push_back(value.get<std::string>());
  } else if (value.is_array()) {
    for (const Json& element : value) {
      if (!element.is_string()) return wrong(key, "a string or a list of strings", value);
      strings.push_back(element.get<std::string>());
    }
  } else {
    return wrong(key, "a string or a list of strings", value);
  }
  std::erase(strings, "");
  into = std::move(strings);
  return {};
}

// Calls visit(name, member of each object...) for every field: the one list of them.
template <class Visit, class... Fields>
void for_each_field(Visit&& visit, Fields&... fields) {
  visit("temperature", fields.temperature...);
  visit("top_p", fields.top_p...);
  visit("top_k", fields.top_k...);
  visit("min_p", fields.min_p...);
  visit("repetition_penalty", fields.repetition_penalty...);
  visit("presence_penalty", fields.presence_penalty...);
  visit("frequency_penalty", fields.frequency_penalty...);
  visit("max_tokens", fields.max_tokens...);
  visit("min_tokens", fields.min_tokens...);
  visit("ignore_eos", fields.ignore_eos...);
  visit("seed", fields.seed...);
  visit("stop", fields.stop...);
}

// Settings of transformers' generation that change what is generated and that nothing here does; with their neutral value.
struct Unhonoured {
  std::string_view key;
  double neutral;
};
constexpr Unhonoured kUnhonoured[] = {{"num_beams", 1},          {"typical_p", 1},       {"epsilon_cutoff", 0},     {"eta_cutoff", 0},
                                      {"penalty_alpha", 0},      {"no_repeat_ngram_size", 0}, {"diversity_penalty", 0}, {"top_h", 0},
                                      {"encoder_repetition_penalty", 1}, {"num_return_sequences", 1}};
constexpr std::string_view kUnhonouredLists[] = {"bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
                                                 "sequence_bias", "stop_strings", "constraints", "force_words_ids"};

}  // namespace

SamplingFields SamplingFields::over(const SamplingFields& below) const {
  SamplingFields merged = below;
  for_each_field([](std::string_view, auto& field, const auto& above) { if (above) field = above; }, merged, *this);
  return merged;
}

Result<bool> read_sampling_field(std::string_view key, const Json& value, SamplingFields& fields) {
  bool known = false;
  Result<void> outcome;
  const auto visit = [&](std::string_view name, auto& field) {
    if (name != key) return;
    known = true;
    if (!value.is_null()) outcome = read(key, value, field);
  };
  for_each_field(visit, fields);
  if (!outcome) return std::unexpected(std::move(outcome.error()));
  return known;
}

const std::vector<std::string_view>& sampling_field_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    SamplingFields fields;
    for_each_field([&](std::string_view name, auto&) { all.push_back(name); }, fields);
    return all;
  }();
  return names;
}

Result<SamplingDefaults> sampling_defaults(const Json* generation_config) {
  SamplingDefaults defaults;
  if (!generation_config) return defaults;
  const JsonView view{generation_config, "generation_config.json"};
  if (!generation_config->is_object()) return fail(Code::kCorrupt, "{}: must be a JSON object", view.where);
  for (const std::string_view key : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}) {
    if (!view.has(key)) continue;
    const Result<bool> read = read_sampling_field(key, (*generation_config)[std::string(key)], defaults.fields);
    if (!read) return fail_at(view.where, Error{Code::kCorrupt, read.error().message});
  }
  const SamplingFields& fields = defaults.fields;
  defaults.greedy = !TRY(view.boolean_or("do_sample", false)) || fields.temperature.value_or(1) < 1e-5 || fields.top_k.value_or(0) == 1 || fields.top_p.value_or(1) <= 0.01;
  for (const Unhonoured& setting : kUnhonoured)
    if (view.has(setting.key) && (*generation_config)[std::string(setting.key)] != Json(setting.neutral))
      defaults.notes.push_back(fmt::format("generation_config.json sets {} to {}, which is not supported and has no effect", setting.key, shown((*generation_config)[std::string(setting.key)])));
  for (const std::string_view key : kUnhonouredLists)
    if (view.has(key)) defaults.notes.push_back(fmt::format("generation_config.json sets {}, which is not supported and has no effect", key));
  return defaults;
}

Result<engine::SamplingParams> resolve_sampling(const SamplingDefaults& defaults, const SamplingFields& request) {
  engine::SamplingParams params;
  const SamplingFields& file = defaults.fields;
  const bool asks = request.temperature || request.top_p || request.top_k || request.min_p;
  if (!defaults.greedy) {
    params.temperature = file.temperature.value_or(1.0);
    params.top_p = file.top_p.value_or(1.0);
    params.top_k = file.top_k.value_or(0);
    params.min_p = file.min_p.value_or(0.0);
  } else if (!asks) {
    params.temperature = 0;
  }
  params.temperature = request.temperature.value_or(params.temperature);
  params.top_p = request.top_p.value_or(params.top_p);
  params.top_k = request.top_k.value_or(params.top_k);
  params.min_p = request.min_p.value_or(params.min_p);
  params.repetition_penalty = request.repetition_penalty.value_or(file.repetition_penalty.value_or(1.0));
  params.presence_penalty = request.presence_penalty.value_or(0.0);
  params.frequency_penalty = request.frequency_penalty.value_or(0.0);
  params.max_tokens = request.max_tokens.value_or(0);
  params.min_tokens = request.min_tokens.value_or(0);
  params.ignore_eos = request.ignore_eos.value_or(false);
  params.seed = request.seed;
  if (request.max_tokens && *request.max_tokens < 1) return fail(Code::kInvalidArgument, "max_tokens must be at least 1, but is {}", *request.max_tokens);
  TRY(engine::validate(params));
  return params;
}

std::string describe(const engine::SamplingParams& params) {
  const bool greedy = params.temperature < 1e-5 || params.top_k == 1 || params.top_p == 0;
  std::vector<std::string> parts;
  if (greedy) {
    parts.push_back("greedy");
  } else {
    parts.push_back(fmt::format("temperature {}", params.temperature));
    if (params.top_p < 1) parts.push_back(fmt::format("top_p {}", params.top_p));
    if (params.top_k > 0) parts.push_back(fmt::format("top_k {}", params.top_k));
    if (params.min_p > 0) parts.push_back(fmt::format("min_p {}", params.min_p));
  }
  if (params.repetition_penalty != 1) parts.push_back(fmt::format("repetition_penalty {}", params.repetition_penalty));
  if (params.presence_penalty != 0) parts.push_back(fmt::format("presence_penalty {}", params.presence_penalty));
  if (params.frequency_penalty != 0) parts.push_back(fmt::format("frequency_penalty {}", params.frequency_penalty));
  if (params.max_tokens > 0) parts.push_back(fmt::format("max_tokens {}", params.max_tokens));
  if (params.min_tokens > 0) parts.push_back(fmt::format("min_tokens {}", params.min_tokens));
  if (params.ignore_eos) parts.push_back("ignore_eos");
  if (params.seed && !greedy) parts.push_back(fmt::format("seed {}", *params.seed));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace inflight::api
