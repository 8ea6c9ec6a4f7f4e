// How text is cut before byte-level BPE, by the name that GGUF files give it (tokenizer.ggml.pre): what the published tokenizer.json of such models says.
#pragma once
#include <string_view>

#include "base/result.h"

namespace inflight::text {

struct GgufPreTokenizer {
  std::string_view name;
  std::string_view steps;        // the JSON of the pre-tokenizers before the byte level, with commas; "": none
  bool gpt2_words = false;       // the byte level cuts words as GPT-2 does
  bool nfc = false;              // text is normalized to NFC first
  bool ignore_merges = false;    // a word that is a token is not taken apart
  bool add_bos = false;          // where the file does not say
};

// kUnsupported: with the names that are known.
Result<const GgufPreTokenizer*> find_gguf_pre_tokenizer(std::string_view name, std::string_view where);

}  // namespace inflight::text
