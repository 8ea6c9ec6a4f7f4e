// Which token ids end an answer: the union of every source, because each of them is wrong or incomplete in some published model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace inflight::api {

struct StopId {
  std::int32_t id = 0;
  std::string token;   // as the vocabulary spells it; "" when the tokenizer has no such id
  std::string source;  // "config", "tokenizer", "chat template"
};

// config_ids: eos_token_id of config.json and generation_config.json.
// A well-known end-of-turn marker (<|im_end|>, <|eot_id|>, <end_of_turn>, ...) counts when it is a special token of the
// tokenizer and the template writes it into a conversation. Sorted by id, each id once with its first source.
std::vector<StopId> stop_set(const std::vector<std::int32_t>& config_ids, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat);

std::vector<std::int32_t> ids_of(const std::vector<StopId>& stops);

// "2 <|im_end|> (config), 0 <|endoftext|> (tokenizer)"
std::string describe(const std::vector<StopId>& stops);

}  // namespace inflight::api
