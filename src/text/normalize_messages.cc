#include "text/chat_template.h"

namespace inflight::text {
namespace {

Result<std::string> joined_content(const OrderedJson& content, std::size_t message) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return fail(Code::kInvalidArgument, "messages[{}].content: expected a string, a list of parts or null, got {}", message, content.type_name());
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
    if (!typed) return fail(Code::kInvalidArgument, "messages[{}].content[{}]: expected an object with \"type\"", message, i);
    const std::string type = part["type"].get<std::string>();
    if (type != "text") return fail(Code::kInvalidArgument, "messages[{}].content[{}]: parts of type \"{}\" are not supported, only \"text\"", message, i, type);
    if (!part.contains("text") || !part["text"].is_string()) return fail(Code::kInvalidArgument, "messages[{}].content[{}].text: expected a string", message, i);
    text += part["text"].get<std::string>();
  }
  return text;
}

// OpenAI clients send arguments as JSON text; templates iterate over them or print them with tojson.
void parse_arguments(OrderedJson& call) {
  if (!call.is_object()) return;
  OrderedJson& function = call.contains("function") && call["function"].is_object() ? call["function"] : call;
  if (!function.contains("arguments") || !function["arguments"].is_string()) return;
  OrderedJson parsed = OrderedJson::parse(function["arguments"].get<std::string>(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) function["arguments"] = std::move(parsed);
}

const OrderedJson* reasoning_of(const OrderedJson& message) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    if (const auto found = message.find(key); found != message.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

}  // namespace

Result<OrderedJson> normalize_messages(const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty()) return fail(Code::kInvalidArgument, "messages: expected a list of at least one message");
  OrderedJson result = OrderedJson::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    if (!message.is_object()) return fail(Code::kInvalidArgument, "messages[{}]: expected an object, got {}", i, message.type_name());
    if (!message.contains("role") || !message["role"].is_string()) return fail(Code::kInvalidArgument, "messages[{}].role: expected a string", i);
    OrderedJson normal = OrderedJson::object();
    for (const auto& [key, value] : message.items()) {
      if (key == "content") {
        normal["content"] = TRY(joined_content(value, i));
      } else if (!value.is_null()) {
        normal[key] = value;
      }
    }
    if (!normal.contains("content")) normal["content"] = "";
    if (normal.contains("tool_calls") && normal["tool_calls"].is_array()) {
      for (OrderedJson& call : normal["tool_calls"]) parse_arguments(call);
    }
    if (const OrderedJson* reasoning = reasoning_of(message)) normal["reasoning_content"] = *reasoning;
    result.push_back(std::move(normal));
  }
  return result;
}

}  // namespace inflight::text
