// Which sampling is in effect: what the request says, else what the model's generation_config.json says, else neutral values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"

namespace inflight::api {

// What a request asks for; an empty field leaves the choice to the model's file.
struct SamplingFields {
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<std::int64_t> top_k, max_tokens, min_tokens;
  std::optional<bool> ignore_eos;
  std::optional<std::uint64_t> seed;
  std::optional<std::vector<std::string>> stop;  // empty strings are dropped: they would match everything

  // Fields that are set here win over those of `below`.
  SamplingFields over(const SamplingFields& below) const;
};

// Reads one JSON field ("temperature": 0.7; "stop": "x" or ["x", "y"]; null: not given).
// false: no sampling field has that name. An error names the field and what it must be.
Result<bool> read_sampling_field(std::string_view key, const Json& value, SamplingFields& fields);

// Names of all sampling fields.
const std::vector<std::string_view>& sampling_field_names();

struct SamplingDefaults {
  SamplingFields fields;           // of generation_config.json
  bool greedy = true;              // the file asks for greedy decoding (do_sample absent or false, temperature 0, top_k 1, top_p 0.01 or less), or there is none
  std::vector<std::string> notes;  // settings of the file that nothing here honours
};

// nullptr: no file, or it is to be ignored. An error names the key that has a wrong type.
Result<SamplingDefaults> sampling_defaults(const Json* generation_config);

// Request over file. A greedy file's temperature, top_k, top_p and min_p do not reach a request that names one of these itself:
// a hidden top_k of 1 must not beat the temperature that was asked for. The ranges are checked.
Result<engine::SamplingParams> resolve_sampling(const SamplingDefaults& defaults, const SamplingFields& request);

// "greedy" or "temperature 0.7, top_p 0.8, top_k 20", then whatever else is not neutral.
std::string describe(const engine::SamplingParams& params);

}  // namespace inflight::api
