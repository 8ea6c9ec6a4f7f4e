// From what the user wrote to token ids. A text is one user message, rendered with the opening of the answer and encoded without
// further special tokens (the template writes them); raw: the text itself, with the special tokens that the tokenizer adds.
// As in the reference, the text of a special token inside a message becomes that token, unless plain_content is on.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "api/request_json.h"
#include "base/json.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace inflight::api {

struct PromptOptions {
  bool raw = false;                                // --raw
  bool plain_content = false;                      // text of special tokens inside messages is ordinary text, not those tokens
  OrderedJson variables = OrderedJson::object();   // more template variables
};

// The text side of a model folder: tokenizer and chat template, loaded without weights.
class PromptEncoder {
 public:
  // A folder without a chat template loads: raw texts and token ids need none.
  static Result<PromptEncoder> load(const std::string& model_folder, PromptOptions options);

  // Never empty. A conversation with raw on is an error; so is text for a model without a template (the message names --raw).
  Result<std::vector<std::int32_t>> encode(const Prompt& prompt) const;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const text::ChatTemplate& chat() const { return chat_; }

 private:
  PromptEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat, PromptOptions options)
      : tokenizer_(std::move(tokenizer)), chat_(std::move(chat)), options_(std::move(options)) {}
  Result<std::vector<std::int32_t>> encode_messages(const OrderedJson& messages) const;
  Result<std::vector<std::int32_t>> encode_plain(const OrderedJson& messages, const std::string& rendered) const;
  Result<std::string> render(const OrderedJson& messages) const;

  text::Tokenizer tokenizer_;
  text::ChatTemplate chat_;
  PromptOptions options_;
};

}  // namespace inflight::api
