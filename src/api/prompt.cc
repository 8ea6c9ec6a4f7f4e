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
    if (options_.raw && options_.plain_content) return fail(Code::kInvalidArgument, "--plain-content is about messages; --raw has none");
    if (options_.raw) ids = TRY(tokenizer_.encode(text, /*add_special_tokens=*/true));
    else ids = TRY(encode_messages(OrderedJson::array({{{"role", "user"}, {"content", text}}})));
  }
  if (ids.empty()) return fail(Code::kInvalidArgument, "the prompt is empty: it has no tokens");
  return ids;
}

Result<std::string> PromptEncoder::render(const OrderedJson& messages) const {
  return chat_.render({.messages = messages, .tools = nullptr, .add_generation_prompt = true, .variables = options_.variables});
}

Result<std::vector<std::int32_t>> PromptEncoder::encode_messages(const OrderedJson& messages) const {
  const std::string text = TRY(render(messages));
  if (options_.plain_content) return encode_plain(messages, text);
  return tokenizer_.encode(text, /*add_special_tokens=*/false);
}

// Renders once more with a mark in place of each content, so that the template's own text and the messages' can be encoded apart.
// A template that does more to a content than place or trim it gives another text than `rendered`, and is refused.
Result<std::vector<std::int32_t>> PromptEncoder::encode_plain(const OrderedJson& messages, const std::string& rendered) const {
  OrderedJson marked = messages;
  std::vector<std::string> marks, contents;
  for (OrderedJson& message : marked) {
    contents.push_back(message["content"].get<std::string>());
    marks.push_back(fmt::format("\uE000content {}\uE001", marks.size()));  // private use: no template writes them
    message["content"] = marks.back();
  }
  const std::string outline = TRY(render(marked));

  const auto trimmed = [](const std::string& text) {
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
  };
  for (const bool trim : {false, true}) {
    std::vector<std::int32_t> ids;
    std::string whole;
    const auto append = [&](const std::string& piece, bool content) -> Result<void> {
      const std::vector<std::int32_t> more = TRY(content ? tokenizer_.encode_plain(piece) : tokenizer_.encode(piece, /*add_special_tokens=*/false));
      ids.insert(ids.end(), more.begin(), more.end());
      whole += piece;
      return {};
    };
    for (std::size_t at = 0; at < outline.size();) {
      std::size_t next = outline.size(), which = 0;
      for (std::size_t i = 0; i < marks.size(); ++i)
        if (const std::size_t found = outline.find(marks[i], at); found < next) next = found, which = i;
      if (next > at) TRY(append(outline.substr(at, next - at), false));
      if (next == outline.size()) break;
      TRY(append(trim ? trimmed(contents[which]) : contents[which], true));
      at = next + marks[which].size();
    }
    if (whole == rendered) return ids;
  }
  return fail(Code::kUnsupported, "the chat template changes the content of these messages, so its text and theirs cannot be encoded apart; turn off --plain-content");
}

}  // namespace inflight::api
