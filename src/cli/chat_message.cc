#include "cli/chat_message.h"

namespace inflight::cli {
namespace {

constexpr std::string_view kFence = "\"\"\"";

}  // namespace

std::optional<std::string> MessageBuilder::feed(std::string_view line) {
  if (!block_ && text_.empty() && line.starts_with(kFence)) {
    block_ = true;
    line.remove_prefix(kFence.size());
    if (!line.empty() && line.size() >= kFence.size() && line.ends_with(kFence)) {
      line.remove_suffix(kFence.size());
      block_ = false;
      return std::string(line);
    }
    if (!line.empty()) text_ = std::string(line) + '\n';
    return std::nullopt;
  }
  if (block_) {
    if (!line.ends_with(kFence)) {
      text_ += std::string(line) + '\n';
      return std::nullopt;
    }
    text_ += line.substr(0, line.size() - kFence.size());
    return end();
  }
  if (line.ends_with('\\')) {
    text_ += std::string(line.substr(0, line.size() - 1)) + '\n';
    return std::nullopt;
  }
  text_ += line;
  return end().value_or("");
}

void MessageBuilder::clear() {
  text_.clear();
  block_ = false;
}

std::optional<std::string> MessageBuilder::end() {
  if (!open()) return std::nullopt;
  std::string message = std::move(text_);
  clear();
  while (message.ends_with('\n')) message.pop_back();
  return message;
}

}  // namespace inflight::cli
