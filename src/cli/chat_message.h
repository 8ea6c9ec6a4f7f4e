// Lines into messages: a line is a message, unless it ends in a backslash (the next line continues it) or opens a """ block.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace inflight::cli {

class MessageBuilder {
 public:
  // The whole message once `line` completes it. A line (or paste) may hold newlines itself.
  std::optional<std::string> feed(std::string_view line);
  bool open() const { return block_ || !text_.empty(); }  // a message has begun and is not complete
  void clear();
  std::optional<std::string> end();  // at the end of the input: what has begun, if anything

 private:
  std::string text_;
  bool block_ = false;
};

}  // namespace inflight::cli
