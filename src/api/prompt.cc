#include "api/prompt.h"

namespace inflight::api {

Result<PromptEncoder> PromptEncoder::load(const std::string& model_folder, PromptOptions options) {
  text::Tokenizer tokenizer = TRY(text::Tokenizer::load(model_folder));
  text::ChatTemplate chat = TRY(text::ChatTemplate::load(model_folder));
  return PromptEncoder(std::move(tokenizer), std::move(chat), std::move(options));
}

Result<std::vector<std::int32_t>> PromptEncoder::encode(const Prompt& prompt) const {
  std::vector<std::int32_t> ids;
  if (const auto* given = std::get_if<std::vector<std::int32_t>>(&prompt)) {
    ids = *given;
  } else if (const auto* conversation = std::get_if<Messages>(&prompt)) {
    if (options_.raw) return fail(Code::kInvalidArgument, "\"messages\" need the chat template, which --raw turns off");
    ids = TRY(encode_messages(conversation->list));
  } else {
    const std::string& text = std::get<std::string>(prompt);
    if (options_.raw) ids = TRY(tokenizer_.encode(text, /*add_special_tokens=*/true));
    else ids = TRY(encode_messages(OrderedJson::array({{{"role", "user"}, {"content", text}}})));
  }
  if (ids.empty()) return fail(Code::kInvalidArgument, "the prompt is empty: it has no tokens");
  return ids;
}

Result<std::vector<std::int32_t>> PromptEncoder::encode_messages(const OrderedJson& messages) const {
  const std::string text = TRY(chat_.render({.messages = messages, .tools = nullptr, .add_generation_prompt = true, .variables = options_.variables}));
  return tokenizer_.encode(text, /*add_special_tokens=*/false);
}

}  // namespace inflight::api
