#include "text/chat_template.h"

#include <optional>
#include <utility>

#include "base/file.h"
#include "text/gguf_tokenizer.h"
#include "text/library.h"
#include "text/special_tokens.h"

namespace inflight::text {
namespace {

using Compiled = std::shared_ptr<const inflight_text_template>;

Result<Compiled> compile_source(const std::string& source, const std::string& where) {
  inflight_text_template* compiled = nullptr;
  Buffer error;
  const int code = inflight_text_template_compile(source.data(), source.size(), &compiled, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) {
    return fail(code == INFLIGHT_TEXT_INVALID ? Code::kCorrupt : code_of(code),
                "the chat template in {} cannot be used: {}; prompts can still be given as plain text (--raw)", where, error.str());
  }
  return Compiled(compiled, [](const inflight_text_template* t) { inflight_text_template_free(const_cast<inflight_text_template*>(t)); });
}

OrderedJson named_tokens(const SpecialTokenNames& names) {
  OrderedJson variables = OrderedJson::object();
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) variables[key] = text;
  };
  add("bos_token", names.bos);
  add("eos_token", names.eos);
  add("unk_token", names.unk);
  add("sep_token", names.sep);
  add("pad_token", names.pad);
  add("cls_token", names.cls);
  add("mask_token", names.mask);
  return variables;
}

struct Sources {
  std::string main, tool_use, where;
  bool found = false, has_tool_use = false;
  std::optional<SpecialTokenNames> names = {};  // else tokenizer_config.json says them
};

Result<Sources> read_sources(const std::string& folder) {
  Sources sources;
  sources.where = folder;
  if (is_gguf_file(folder)) {
    GgufChatTemplate chat = TRY(read_gguf_chat_template(folder));
    return Sources{std::move(chat.main), std::move(chat.tool_use), folder, chat.found, chat.has_tool_use, std::move(chat.names)};
  }
  const std::string jinja = folder + "/chat_template.jinja";
  if (is_regular_file(jinja)) {
    sources.main = TRY(read_file(jinja));
    sources.where = jinja;
    sources.found = true;
    return sources;
  }
  const std::string config_path = folder + "/tokenizer_config.json";
  if (!is_regular_file(config_path)) return sources;
  const Json config = TRY(read_json_file(config_path));
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null()) return sources;

  const Json& entry = config["chat_template"];
  sources.where = config_path;
  if (entry.is_string()) {
    sources.main = entry.get<std::string>();
    sources.found = true;
    return sources;
  }
  const auto string_at = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : std::string();
  };
  if (!entry.is_array()) return fail(Code::kCorrupt, "\"chat_template\" in {} is neither a string nor a list of {{\"name\", \"template\"}}", config_path);
  std::string known;
  for (const Json& named : entry) {
    const std::string name = string_at(named, "name");
    known += " " + name;
    if (name == "default") {
      sources.main = string_at(named, "template");
      sources.found = true;
    } else if (name == "tool_use") {
      sources.tool_use = string_at(named, "template");
      sources.has_tool_use = true;
    }
  }
  if (!sources.found) return fail(Code::kCorrupt, "\"chat_template\" in {} has no template named \"default\"; it has:{}", config_path, known);
  return sources;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::compile(const std::string& source, const std::string& where, const SpecialTokenNames& names) {
  ChatTemplate chat;
  chat.main_ = TRY(compile_source(source, where));
  chat.where_ = where;
  chat.named_tokens_ = named_tokens(names);
  return chat;
}

Result<ChatTemplate> ChatTemplate::load(const std::string& model_folder) {
  const Sources sources = TRY(read_sources(model_folder));
  ChatTemplate chat;
  chat.where_ = sources.where;
  if (!sources.found) return chat;
  chat = TRY(compile(sources.main, sources.where, sources.names ? *sources.names : TRY(read_tokenizer_config(model_folder)).names));
  if (sources.has_tool_use) chat.tool_use_ = TRY(compile_source(sources.tool_use, sources.where + " (tool_use)"));
  return chat;
}

Result<std::string> ChatTemplate::render(const ChatRequest& request) const {
  if (!has_template()) {
    return fail(Code::kInvalidArgument, "\"{}\" has no chat template (chat_template.jinja, or \"chat_template\" in tokenizer_config.json; in a GGUF file tokenizer.chat_template); "
                "use --raw to give the prompt as plain text", where_);
  }
  if (!request.messages.is_array() || request.messages.empty()) return fail(Code::kInvalidArgument, "messages: expected a list of at least one message");

  OrderedJson variables = named_tokens_;
  if (request.variables.is_object()) {
    for (const auto& [key, value] : request.variables.items()) variables[key] = value;
  }
  variables["messages"] = request.messages;
  variables["tools"] = request.tools;
  if (!variables.contains("documents")) variables["documents"] = nullptr;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  const std::string json = variables.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);

  const Compiled& compiled = tool_use_ && !request.tools.is_null() ? tool_use_ : main_;
  Buffer text;
  Buffer error;
  const int code = inflight_text_template_render(compiled.get(), json.data(), json.size(), &text.bytes, &error.bytes);
  if (code == INFLIGHT_TEXT_RAISED) return fail(Code::kInvalidArgument, "the chat template refuses these messages: {}", error.str());
  if (code != INFLIGHT_TEXT_OK) return fail(code_of(code), "the chat template in {} fails on these messages: {}", where_, error.str());
  return text.str();
}

}  // namespace inflight::text
