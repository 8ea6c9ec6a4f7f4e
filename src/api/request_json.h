// A generation request written as one JSON object: {"prompt": "..."} or {"messages": [...]} or {"ids": [...]}, plus any sampling field.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/sampling.h"
#include "base/json.h"
#include "base/result.h"

namespace inflight::api {

struct Messages {
  OrderedJson list;  // [{"role": "user", "content": "..."}, ...] as text::normalize_messages leaves it
};

// What to answer: a text, a conversation, or token ids as they are.
using Prompt = std::variant<std::string, Messages, std::vector<std::int32_t>>;

struct JsonRequest {
  Prompt prompt;
  SamplingFields sampling;
};

// `text`: one JSON object. `where` begins every error ("prompts.jsonl line 3"). Unknown fields are errors that name the field and the nearest one.
Result<JsonRequest> parse_request(std::string_view text, std::string_view where);

}  // namespace inflight::api
