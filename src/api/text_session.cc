#include "api/text_session.h"

#include <algorithm>

namespace inflight::api {

Result<TextSession> TextSession::create(const text::Tokenizer& tokenizer, std::int64_t prompt_tokens, const std::vector<std::string>& stop_strings, std::int64_t min_tokens) {
  TextSession session(TRY(text::StreamingDetokenizer::create(tokenizer)), text::StopMatcher(stop_strings));
  session.prompt_tokens_ = prompt_tokens;
  session.min_tokens_ = min_tokens;
  for (const std::string& string : stop_strings) {
    const std::int32_t id = tokenizer.id_of(string);
    if (id >= 0 && tokenizer.is_special(id)) session.stop_ids_.push_back(id);
  }
  return session;
}

std::string TextSession::deliver(const std::string& piece) {
  // Text of the first min_tokens tokens bypasses the matcher: what is certain cannot end there.
  std::string delta = static_cast<std::int64_t>(ids_.size()) < min_tokens_ ? piece : matcher_.feed(piece);
  text_ += delta;
  return delta;
}

Result<std::string> TextSession::feed(std::int32_t id) {
  if (stopped_) return std::string();
  if (std::ranges::find(stop_ids_, id) != stop_ids_.end() && static_cast<std::int64_t>(ids_.size()) >= min_tokens_) {
    stopped_ = true;
    return std::string();
  }
  ids_.push_back(id);
  std::string delta = deliver(TRY(detokenizer_.feed(id)));
  stopped_ = matcher_.stopped();
  return delta;
}

Result<std::string> TextSession::finish(engine::FinishReason reason) {
  std::string delta;
  if (!matcher_.stopped()) {
    delta = deliver(TRY(detokenizer_.finish()));
    const std::string held = matcher_.flush();
    text_ += held;
    delta += held;
  }
  stopped_ = stopped_ || matcher_.stopped();
  finish_reason_ = stopped_ ? "stop" : finish_reason_name(reason);
  return delta;
}

std::string_view finish_reason_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNone: return "";
    case engine::FinishReason::kStop: return "stop";
    case engine::FinishReason::kLength: return "length";
    case engine::FinishReason::kCancelled: return "cancelled";
    case engine::FinishReason::kError: return "error";
  }
  return "";
}

OrderedJson result_json(const TextSession& session) {
  const Usage usage = session.usage();
  OrderedJson json;
  json["text"] = session.text();
  json["ids"] = session.ids();
  json["finish_reason"] = session.finish_reason();
  json["usage"] = {{"prompt_tokens", usage.prompt_tokens}, {"completion_tokens", usage.completion_tokens}, {"total_tokens", usage.total_tokens()}};
  return json;
}

}  // namespace inflight::api
