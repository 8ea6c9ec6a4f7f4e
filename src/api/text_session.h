// The text side of one request: token ids in, text deltas out, until a stop string, a stop id or the end of the request.
//
//     TextSession session = TRY(TextSession::create(tokenizer, prompt.size(), stop_strings, params.min_tokens));
//     on each token:  print(TRY(session.feed(id)));  if (session.stopped()) engine.cancel(request);
//     at the end:     print(TRY(session.finish(event.finish)));
//     session.finish_reason(), session.text(), session.ids(), session.usage()
//
// The joined deltas are text(), and equal what decoding ids() at once and cutting at the earliest stop string gives.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace inflight::api {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  // ids(); the stop token is not among them
  std::int64_t total_tokens() const { return prompt_tokens + completion_tokens; }
};

class TextSession {
 public:
  // A stop string that is exactly one special token stops on its id. Before `min_tokens` tokens no stop string ends the text.
  static Result<TextSession> create(const text::Tokenizer& tokenizer, std::int64_t prompt_tokens, const std::vector<std::string>& stop_strings, std::int64_t min_tokens);

  // The text that has become certain. After a stop: "" and the token is not counted.
  Result<std::string> feed(std::int32_t id);
  bool stopped() const { return stopped_; }
  // The rest of the text. Call once.
  Result<std::string> finish(engine::FinishReason reason);

  const std::string& text() const { return text_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::string& finish_reason() const { return finish_reason_; }  // "stop", "length", "cancelled", "error"; "" before finish()
  Usage usage() const { return {prompt_tokens_, static_cast<std::int64_t>(ids_.size())}; }

 private:
  TextSession(text::StreamingDetokenizer detokenizer, text::StopMatcher matcher) : detokenizer_(std::move(detokenizer)), matcher_(std::move(matcher)) {}
  std::string deliver(const std::string& piece);

  text::StreamingDetokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::vector<std::int32_t> stop_ids_;  // of stop strings that are one special token
  std::int64_t prompt_tokens_ = 0;
  std::int64_t min_tokens_ = 0;
  std::vector<std::int32_t> ids_;
  std::string text_;
  std::string finish_reason_;
  bool stopped_ = false;
};

std::string_view finish_reason_name(engine::FinishReason reason);

// {"text", "ids", "finish_reason", "usage"} of a finished session.
OrderedJson result_json(const TextSession& session);

}  // namespace inflight::api
