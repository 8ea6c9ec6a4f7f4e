// The chat template of a model folder: messages to prompt text, byte for byte as transformers' apply_chat_template.
//
//     text::ChatTemplate chat = TRY(text::ChatTemplate::load("/models/Qwen3-0.6B"));
//     OrderedJson messages = TRY(text::normalize_messages(request["messages"]));
//     std::string prompt = TRY(chat.render({.messages = messages, .variables = {{"enable_thinking", false}}}));
//     auto ids = TRY(tokenizer.encode(prompt, /*add_special_tokens=*/false));  // the template writes BOS itself
//
// Looked for in this order: chat_template.jinja, then "chat_template" of tokenizer_config.json: a string, or a list of
// {"name", "template"} of which "tool_use" serves requests with tools and "default" the others. Of a GGUF file: tokenizer.chat_template and
// tokenizer.chat_template.tool_use.
// Compiled when loaded: a syntax error, or a filter, test or method that does not exist, is an error with its line.
#pragma once
#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

struct inflight_text_template;

namespace inflight::text {

struct ChatRequest {
  OrderedJson messages;                            // [{"role", "content", ...}], at least one
  OrderedJson tools;                               // [{"type": "function", ...}], or null
  bool add_generation_prompt = true;               // end with the opening of the assistant's turn
  OrderedJson variables = OrderedJson::object();   // more template variables, {"enable_thinking": false}; they win over the named tokens
};

class ChatTemplate {
 public:
  // A folder without any template loads; has_template() is then false and render() an error that names --raw.
  static Result<ChatTemplate> load(const std::string& model_folder);
  // `where` stands for the file in messages. The named tokens become the variables bos_token, eos_token and so on.
  static Result<ChatTemplate> compile(const std::string& source, const std::string& where, const SpecialTokenNames& names = {});

  bool has_template() const { return main_ != nullptr; }
  // kInvalidArgument: no template, no messages, or what the template raised (its own words) or failed on (with the line).
  // Safe to call from several threads.
  Result<std::string> render(const ChatRequest& request) const;

 private:
  ChatTemplate() = default;
  std::shared_ptr<const inflight_text_template> main_;
  std::shared_ptr<const inflight_text_template> tool_use_;  // null: main_ serves requests with tools too
  std::string where_;                                       // the file the template is from, or the folder that has none
  OrderedJson named_tokens_ = OrderedJson::object();
};

// Messages as a request has them, made into what templates expect:
//   content     parts of type "text" are joined; null or missing becomes ""; any other part is an error naming message and part
//   tool_calls  "arguments" given as the text of a JSON object becomes that object
//   reasoning   "thinking" or "reasoning" is copied to "reasoning_content", the name templates read
//   other keys  that are null are dropped, so that no template prints None
// Key order is kept. kInvalidArgument where messages are not a list of objects with a "role".
Result<OrderedJson> normalize_messages(const OrderedJson& messages);

}  // namespace inflight::text
