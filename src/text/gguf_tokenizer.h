// The tokenizer and chat template that a GGUF file carries, in the form that a model folder's files have.
//
// Tokenizers of ggml's model "gpt2" (byte-level BPE; how text is cut before it is known by tokenizer.ggml.pre) and "llama" (SentencePiece's BPE: merges follow from the
// scores as in transformers' converter). Where the file carries a whole tokenizer.json (tokenizer.huggingface.json), that is taken.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace inflight::text {

struct GgufTokenizer {
  std::string json;            // as tokenizer.json
  SpecialTokenNames names;
  OrderedJson options = OrderedJson::object();  // what inflight_text_tokenizer_load takes
};

struct GgufChatTemplate {
  bool found = false, has_tool_use = false;
  std::string main, tool_use;
  SpecialTokenNames names;
};

bool is_gguf_file(const std::string& path);  // a regular file whose name ends in .gguf

// kNotFound: the file has no tokenizer. kUnsupported: a kind that is not read, by name, with those that are. kCorrupt: its parts contradict each other.
Result<GgufTokenizer> read_gguf_tokenizer(const std::string& path);
Result<GgufChatTemplate> read_gguf_chat_template(const std::string& path);

// The files of a model folder that say the same: name and content of tokenizer.json, tokenizer_config.json and, where there is a template, chat_template.jinja.
Result<std::vector<std::pair<std::string, std::string>>> gguf_companions(const std::string& path);

}  // namespace inflight::text
