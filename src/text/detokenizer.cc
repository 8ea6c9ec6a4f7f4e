#include "text/detokenizer.h"

#include "text/library.h"

namespace inflight::text {

void StreamingDetokenizer::Free::operator()(inflight_text_stream* stream) const { inflight_text_stream_free(stream); }

Result<StreamingDetokenizer> StreamingDetokenizer::create(const Tokenizer& tokenizer, bool skip_special) {
  inflight_text_stream* stream = nullptr;
  Buffer error;
  const int code = inflight_text_stream_new(tokenizer.handle(), skip_special, &stream, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) return fail(code_of(code), "the decoder of tokenizer.json cannot be streamed: {}", error.str());
  return StreamingDetokenizer(stream);
}

Result<std::string> StreamingDetokenizer::feed(std::int32_t id) {
  Buffer text;
  Buffer error;
  const int code = inflight_text_stream_feed(stream_.get(), id, &text.bytes, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) return fail(code_of(code), "decoding token {}: {}", id, error.str());
  return text.str();
}

Result<std::string> StreamingDetokenizer::finish() {
  Buffer text;
  Buffer error;
  const int code = inflight_text_stream_finish(stream_.get(), &text.bytes, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) return fail(code_of(code), "decoding the end of the text: {}", error.str());
  return text.str();
}

}  // namespace inflight::text
