// The tokenizer of a model folder: text to token ids and back, as the Hugging Face libraries do it.
//
//     text::Tokenizer tokenizer = TRY(text::Tokenizer::load("/models/Qwen3-0.6B"));
//     std::vector<std::int32_t> ids = TRY(tokenizer.encode("hello", /*add_special_tokens=*/false));
//     std::string back = TRY(tokenizer.decode(ids, /*skip_special=*/true));
//
// A GGUF file in place of the folder: gguf_tokenizer.h. Of a folder: reads tokenizer.json, and from tokenizer_config.json (and special_tokens_map.json) what transformers adds on loading: missing added
// tokens, special tokens by name, split_special_tokens. Whether BOS or EOS is added is tokenizer.json's post-processor alone:
// transformers 5 ignores add_bos_token and add_eos_token beside a tokenizer.json. Ids are those of `tokenizers` 0.23 by construction.
// All const members may be called from several threads at once. Copies share the loaded tokenizer.
// Input that is not UTF-8 is read with U+FFFD for each maximal invalid part; output is always valid UTF-8.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct inflight_text_tokenizer;

namespace inflight::text {

// The named special tokens of tokenizer_config.json, as text; "" where the model has none. Chat templates see them as variables.
struct SpecialTokenNames {
  std::string bos, eos, unk, pad, sep, cls, mask;
};

class Tokenizer {
 public:
  // kNotFound: no tokenizer.json there. kCorrupt: a file that cannot be used; the message names it.
  static Result<Tokenizer> load(const std::string& model_folder);

  // `add_special_tokens`: whether the tokenizer puts its BOS/EOS around the text (prompts: yes; rendered chat templates: no).
  // The text of special tokens inside `text` becomes those tokens.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const;

  // For text that must not speak for the system: special tokens, and added tokens spelled <...> or [...], are ordinary characters here.
  Result<std::vector<std::int32_t>> encode_plain(std::string_view text) const;

  // Ids without a token (unused rows of a padded vocabulary, negative ones) give no text.
  Result<std::string> decode(std::span<const std::int32_t> ids, bool skip_special) const;

  std::int32_t id_of(std::string_view token) const;   // -1: no such token
  std::string token_of(std::int32_t id) const;        // as the vocabulary spells it ("\u0120the"); "" for an id without a token
  bool is_special(std::int32_t id) const;
  std::int32_t vocab_size() const;                    // largest id with a token, plus one

  const SpecialTokenNames& names() const;
  // The id of names().eos; empty where there is none. The stop set of a model is this united with the config's eos ids.
  const std::vector<std::int32_t>& eos_ids() const;
  std::int32_t bos_id() const;  // -1: none

  const inflight_text_tokenizer* handle() const;

 private:
  struct Loaded;
  explicit Tokenizer(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}
  std::shared_ptr<const Loaded> loaded_;
};

}  // namespace inflight::text
