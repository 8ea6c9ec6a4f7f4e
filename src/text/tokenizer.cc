#include "text/tokenizer.h"

#include <malloc.h>

#include "base/file.h"
#include "text/gguf_tokenizer.h"
#include "text/library.h"
#include "text/special_tokens.h"

namespace inflight::text {

struct Tokenizer::Loaded {
  inflight_text_tokenizer* handle = nullptr;
  SpecialTokenNames names;
  std::vector<std::int32_t> eos_ids;
  std::int32_t bos_id = -1;
  Loaded() = default;
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  ~Loaded() { inflight_text_tokenizer_free(handle); }
};

namespace {

struct Parts {
  std::string where;  // the file, in messages
  std::string json;   // as tokenizer.json
  TokenizerConfig config;
};

Result<Parts> read_parts(const std::string& model_folder) {
  if (is_gguf_file(model_folder)) {
    GgufTokenizer tokenizer = TRY(read_gguf_tokenizer(model_folder));
    return Parts{model_folder, std::move(tokenizer.json), {std::move(tokenizer.names), std::move(tokenizer.options)}};
  }
  const std::string path = model_folder + "/tokenizer.json";
  if (!is_regular_file(path)) {
    const bool other = is_regular_file(model_folder + "/tokenizer.model") || is_regular_file(model_folder + "/vocab.json");
    return fail(Code::kNotFound, "\"{}\" does not exist, so text cannot be encoded; {}", path,
                other ? "the folder holds an older tokenizer form: load it with transformers' AutoTokenizer and save_pretrained() to get tokenizer.json"
                      : "is the download complete?");
  }
  std::string json = TRY(read_file(path));
  return Parts{path, std::move(json), TRY(read_tokenizer_config(model_folder))};
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& model_folder) {
  auto [path, json, config] = TRY(read_parts(model_folder));
  const std::string options = config.options.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);

  auto loaded = std::make_shared<Loaded>();
  Buffer error;
  const int code = inflight_text_tokenizer_load(json.data(), json.size(), options.data(), options.size(), &loaded->handle, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) {
    return fail(code == INFLIGHT_TEXT_INTERNAL ? Code::kInternal : Code::kCorrupt,
                "\"{}\" cannot be used: {}; download it again, or save it anew with the tokenizers library (0.23)", path, error.str());
  }
  // Parsing leaves holes of tens of megabytes in the heap; weights are loaded next, and memory is counted.
  json = std::string();
  malloc_trim(0);
  loaded->names = std::move(config.names);
  const auto id_of_name = [&](const std::string& text) { return text.empty() ? -1 : inflight_text_id_of(loaded->handle, text.data(), text.size()); };
  if (const std::int32_t eos = id_of_name(loaded->names.eos); eos >= 0) loaded->eos_ids.push_back(eos);
  loaded->bos_id = id_of_name(loaded->names.bos);
  return Tokenizer(std::move(loaded));
}

namespace {

Result<std::vector<std::int32_t>> encode_text(const inflight_text_tokenizer* handle, std::string_view text, bool add_special, bool plain) {
  inflight_text_ids ids{};
  Buffer error;
  const int code = inflight_text_encode(handle, text.data(), text.size(), add_special, plain, &ids, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) return fail(code_of(code), "encoding a text of {} bytes: {}", text.size(), error.str());
  std::vector<std::int32_t> result(ids.data, ids.data + ids.size);
  inflight_text_free_ids(ids);
  return result;
}

}  // namespace

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return encode_text(handle(), text, add_special_tokens, false);
}

Result<std::vector<std::int32_t>> Tokenizer::encode_plain(std::string_view text) const { return encode_text(handle(), text, false, true); }

Result<std::string> Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  Buffer text;
  Buffer error;
  const int code = inflight_text_decode(handle(), ids.data(), ids.size(), skip_special, &text.bytes, &error.bytes);
  if (code != INFLIGHT_TEXT_OK) return fail(code_of(code), "decoding {} ids: {}", ids.size(), error.str());
  return text.str();
}

std::int32_t Tokenizer::id_of(std::string_view token) const { return inflight_text_id_of(handle(), token.data(), token.size()); }

std::string Tokenizer::token_of(std::int32_t id) const {
  Buffer text;
  Buffer error;
  inflight_text_token_of(handle(), id, &text.bytes, &error.bytes);
  return text.str();
}

bool Tokenizer::is_special(std::int32_t id) const { return inflight_text_is_special(handle(), id) != 0; }
std::int32_t Tokenizer::vocab_size() const { return inflight_text_id_limit(handle()); }
const SpecialTokenNames& Tokenizer::names() const { return loaded_->names; }
const std::vector<std::int32_t>& Tokenizer::eos_ids() const { return loaded_->eos_ids; }
std::int32_t Tokenizer::bos_id() const { return loaded_->bos_id; }
const inflight_text_tokenizer* Tokenizer::handle() const { return loaded_->handle; }

}  // namespace inflight::text
