// Token ids to text, one at a time.
//
//     text::StreamingDetokenizer stream = TRY(text::StreamingDetokenizer::create(tokenizer));
//     for (std::int32_t id : ids) out << TRY(stream.feed(id));
//     out << TRY(stream.finish());
//
// The joined pieces equal tokenizer.decode(ids) byte for byte, for every decoder that tokenizer.json can describe, at a cost per token
// that does not grow. Each piece is valid UTF-8. Held back is only what later tokens can still change:
//   byte level            an incomplete but so far valid character (at most 3 bytes); bytes that can never become valid are U+FFFD at once
//   byte fallback         a run of <0xNN> tokens, until it ends: one bad byte turns the whole run into U+FFFD
//   strip at the end      as many trailing characters as the decoder may remove
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

struct inflight_text_stream;

namespace inflight::text {

class StreamingDetokenizer {
 public:
  static Result<StreamingDetokenizer> create(const Tokenizer& tokenizer, bool skip_special = true);

  Result<std::string> feed(std::int32_t id);  // the text that has become certain; "" for ids without text
  Result<std::string> finish();               // the rest; call once, after the last id

 private:
  struct Free {
    void operator()(inflight_text_stream* stream) const;
  };
  explicit StreamingDetokenizer(inflight_text_stream* stream) : stream_(stream) {}
  std::unique_ptr<inflight_text_stream, Free> stream_;
};

}  // namespace inflight::text
