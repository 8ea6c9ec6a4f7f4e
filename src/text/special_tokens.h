// What tokenizer_config.json and special_tokens_map.json say about named tokens.
#pragma once
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace inflight::text {

struct TokenizerConfig {
  SpecialTokenNames names;
  OrderedJson options = OrderedJson::object();  // what inflight_text_tokenizer_load takes
};

// Both files may be absent. A file that is not JSON, or has a token of the wrong type, is kCorrupt.
Result<TokenizerConfig> read_tokenizer_config(const std::string& model_folder);

}  // namespace inflight::text
