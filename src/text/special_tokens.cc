#include "text/special_tokens.h"

#include <array>
#include <utility>

#include "base/file.h"

namespace inflight::text {
namespace {

constexpr std::array<std::pair<const char*, std::string SpecialTokenNames::*>, 7> kNames{{
    {"bos_token", &SpecialTokenNames::bos}, {"eos_token", &SpecialTokenNames::eos}, {"unk_token", &SpecialTokenNames::unk},
    {"pad_token", &SpecialTokenNames::pad}, {"sep_token", &SpecialTokenNames::sep}, {"cls_token", &SpecialTokenNames::cls},
    {"mask_token", &SpecialTokenNames::mask},
}};

// A token is a string or an object {"content": ...}; null means none.
Result<std::string> token_text(const Json& value, const std::string& path, std::string_view key) {
  if (value.is_null()) return std::string();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) return value["content"].get<std::string>();
  return fail(Code::kCorrupt, "\"{}\" in {} is neither a string nor an object with \"content\"", key, path);
}

Result<Json> read_optional_object(const std::string& path) {
  if (!is_regular_file(path)) return Json::object();
  Json json = TRY(read_json_file(path));
  if (!json.is_object()) return fail(Code::kCorrupt, "{} is not a JSON object", path);
  return json;
}

bool flag(const Json& json, const char* key) { return json.contains(key) && json[key].is_boolean() && json[key].get<bool>(); }

// {"151643": {"content": ..., "special": ...}} to the list form with "id".
Result<OrderedJson> added_tokens(const Json& decoder, const std::string& path) {
  OrderedJson list = OrderedJson::array();
  for (const auto& [key, token] : decoder.items()) {
    const bool numeric = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!numeric || !token.is_object() || !token.contains("content") || !token["content"].is_string())
      return fail(Code::kCorrupt, "added_tokens_decoder[\"{}\"] in {}: expected an id with an object that has \"content\"", key, path);
    OrderedJson entry = {{"id", std::stoi(key)}, {"content", token["content"]}};
    for (const char* name : {"single_word", "lstrip", "rstrip", "normalized", "special"})
      if (token.contains(name) && token[name].is_boolean()) entry[name] = token[name].get<bool>();
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

Result<TokenizerConfig> read_tokenizer_config(const std::string& model_folder) {
  const std::string config_path = model_folder + "/tokenizer_config.json";
  const std::string map_path = model_folder + "/special_tokens_map.json";
  const Json config = TRY(read_optional_object(config_path));
  const Json map = TRY(read_optional_object(map_path));

  TokenizerConfig result;
  OrderedJson special = OrderedJson::array();
  for (const auto& [key, member] : kNames) {
    std::string text;
    if (config.contains(key)) {
      text = TRY(token_text(config[key], config_path, key));
    } else if (map.contains(key)) {
      text = TRY(token_text(map[key], map_path, key));
    }
    if (!text.empty()) special.push_back(text);
    result.names.*member = std::move(text);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!config.contains(key)) continue;
    if (config[key].is_array() || config[key].is_object()) {
      for (const Json& token : config[key]) special.push_back(TRY(token_text(token, config_path, key)));
    }
  }
  result.options["special_tokens"] = std::move(special);
  if (config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object())
    result.options["added_tokens"] = TRY(added_tokens(config["added_tokens_decoder"], config_path));
  result.options["split_special_tokens"] = flag(config, "split_special_tokens");
  return result;
}

}  // namespace inflight::text
