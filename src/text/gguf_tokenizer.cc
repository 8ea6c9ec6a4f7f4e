#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/gguf_model.h"
#include "text/gguf_pre_tokenizers.h"

namespace inflight::text {
namespace {

using checkpoint::GgufHeader;

enum TokenType : std::int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr std::array<std::pair<const char*, std::string SpecialTokenNames::*>, 6> kNamed{{{"tokenizer.ggml.bos_token_id", &SpecialTokenNames::bos},
                                                                                          {"tokenizer.ggml.eos_token_id", &SpecialTokenNames::eos},
                                                                                          {"tokenizer.ggml.unknown_token_id", &SpecialTokenNames::unk},
                                                                                          {"tokenizer.ggml.padding_token_id", &SpecialTokenNames::pad},
                                                                                          {"tokenizer.ggml.seperator_token_id", &SpecialTokenNames::sep},
                                                                                          {"tokenizer.ggml.mask_token_id", &SpecialTokenNames::mask}}};
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// What the metadata says, as views into the header.
struct Vocabulary {
  const GgufHeader& header;
  std::vector<std::string_view> tokens;
  std::vector<std::int64_t> types;  // of every token
  std::unordered_map<std::string_view, std::int32_t> ids;

  // Converters fill holes of the numbering with such tokens; no text is one.
  bool is_hole(std::size_t id) const { return types[id] == kUnused && tokens[id] == fmt::format("[PAD{}]", id); }
};

Result<GgufHeader> open_header(const std::string& path) { return checkpoint::read_gguf_header(TRY(InputFile::open(checkpoint::first_gguf_file(path)))); }

Result<Vocabulary> read_vocabulary(const GgufHeader& header) {
  Vocabulary v{.header = header, .tokens = {}, .types = {}, .ids = {}};
  auto tokens = TRY(header.strings("tokenizer.ggml.tokens"));
  if (!tokens || tokens->empty()) return fail(Code::kNotFound, "{}: the file has no vocabulary (tokenizer.ggml.tokens), so text cannot be encoded", header.where);
  if (tokens->size() > (1u << 27)) return fail(Code::kCorrupt, "{}: {} tokens are not believable", header.where, tokens->size());
  v.tokens = std::move(*tokens);
  v.types.assign(v.tokens.size(), kNormal);
  if (auto types = TRY(header.integers("tokenizer.ggml.token_type"))) {
    if (types->size() != v.tokens.size()) return fail(Code::kCorrupt, "{}: {} tokens, but {} token types", header.where, v.tokens.size(), types->size());
    v.types = std::move(*types);
  }
  v.ids.reserve(v.tokens.size());
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const auto [at, fresh] = v.ids.emplace(v.tokens[id], static_cast<std::int32_t>(id));
    if (!fresh) return fail(Code::kCorrupt, "{}: tokens {} and {} have the same text", header.where, at->second, id);
  }
  return v;
}

Result<SpecialTokenNames> read_names(const GgufHeader& header, std::span<const std::string_view> tokens) {
  SpecialTokenNames names;
  for (const auto& [key, member] : kNamed) {
    const auto id = TRY(header.integer(key));
    if (!id || *id < 0 || *id == UINT32_MAX) continue;  // files mark "none" so
    if (static_cast<std::uint64_t>(*id) >= tokens.size()) return fail(Code::kCorrupt, "{}: {} is {}, but there are {} tokens", header.where, key, *id, tokens.size());
    names.*member = std::string(tokens[static_cast<std::size_t>(*id)]);
  }
  return names;
}

void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  out += '"';
}

std::string json_text(std::string_view text) {
  std::string out;
  append_json(out, text);
  return out;
}

void write_added_tokens(const Vocabulary& v, std::string& out) {
  out += "\"added_tokens\":[";
  bool first = true;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const std::int64_t type = v.types[id];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    if (v.tokens[id].empty()) continue;
    out += fmt::format("{}{{\"id\":{},\"content\":", first ? "" : ",", id);
    append_json(out, v.tokens[id]);
    out += fmt::format(",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":{}}}", type != kUserDefined);
    first = false;
  }
  out += "],";
}

void write_vocabulary(const Vocabulary& v, std::string& out) {
  out += "\"vocab\":{";
  bool first = true;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.is_hole(id)) continue;
    if (!first) out += ',';
    append_json(out, v.tokens[id]);
    out += fmt::format(":{}", id);
    first = false;
  }
  out += "},";
}

void write_merge(std::string_view left, std::string_view right, bool first, std::string& out) {
  out += first ? "[" : ",[";
  append_json(out, left);
  out += ',';
  append_json(out, right);
  out += ']';
}

// BOS and EOS around a text, where the file adds them. `byte_level`: as the post-processor that byte-level models have besides.
Result<std::string> post_processor(const GgufHeader& header, const SpecialTokenNames& names, bool bos_by_default) {
  const bool bos = TRY(header.boolean("tokenizer.ggml.add_bos_token")).value_or(bos_by_default) && !names.bos.empty();
  const bool eos = TRY(header.boolean("tokenizer.ggml.add_eos_token")).value_or(false) && !names.eos.empty();
  if (!bos && !eos) return std::string("null");
  const std::int64_t bos_id = TRY(header.integer("tokenizer.ggml.bos_token_id")).value_or(0), eos_id = TRY(header.integer("tokenizer.ggml.eos_token_id")).value_or(0);
  const auto token = [](const std::string& text) { return fmt::format("{{\"SpecialToken\":{{\"id\":{},\"type_id\":0}}}}", json_text(text)); };
  const auto entry = [](const std::string& text, std::int64_t id) { return fmt::format("{0}:{{\"id\":{0},\"ids\":[{1}],\"tokens\":[{0}]}}", json_text(text), id); };
  const auto around = [&](std::string_view sequence) {
    return fmt::format("{}{{\"Sequence\":{{\"id\":\"{}\",\"type_id\":0}}}}{}", bos ? token(names.bos) + "," : "", sequence, eos ? "," + token(names.eos) : "");
  };
  std::string tokens = bos ? entry(names.bos, bos_id) : "";
  if (eos && (!bos || names.eos != names.bos)) tokens += (bos ? "," : "") + entry(names.eos, eos_id);
  return fmt::format("{{\"type\":\"TemplateProcessing\",\"single\":[{}],\"pair\":[{},{}],\"special_tokens\":{{{}}}}}", around("A"), around("A"), around("B"), tokens);
}

Result<std::string> byte_level_json(const Vocabulary& v, const SpecialTokenNames& names) {
  const GgufHeader& header = v.header;
  const auto pre_name = TRY(header.string("tokenizer.ggml.pre"));
  if (!pre_name) return fail(Code::kUnsupported, "{}: tokenizer.ggml.pre, which says how text is cut into words, is missing: the file is of an old form; get a newer one", header.where);
  const GgufPreTokenizer& pre = *TRY(find_gguf_pre_tokenizer(*pre_name, header.where));
  const auto merges = TRY(header.strings("tokenizer.ggml.merges"));
  if (!merges) return fail(Code::kCorrupt, "{}: tokenizer.ggml.merges is missing", header.where);

  const std::string byte_level = fmt::format("{{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":{}}}", pre.gpt2_words);
  std::string out = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,";
  write_added_tokens(v, out);
  out += fmt::format("\"normalizer\":{},\"pre_tokenizer\":{{\"type\":\"Sequence\",\"pretokenizers\":[{}{}{}]}},", pre.nfc ? "{\"type\":\"NFC\"}" : "null", pre.steps, pre.steps.empty() ? "" : ",", byte_level);
  out += fmt::format("\"post_processor\":{},\"decoder\":{{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}},", TRY(post_processor(header, names, pre.add_bos)));
  out += fmt::format("\"model\":{{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":{},",
                     pre.ignore_merges);
  write_vocabulary(v, out);
  out += "\"merges\":[";
  for (std::size_t i = 0; i < merges->size(); ++i) {
    const std::string_view merge = (*merges)[i];
    const auto space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) return fail(Code::kCorrupt, "{}: tokenizer.ggml.merges[{}] is not two tokens", header.where, i);
    write_merge(merge.substr(0, space), merge.substr(space + 1), i == 0, out);
  }
  return out + "]}}";
}

struct Merge {
  float score;
  std::int32_t left, right;            // ids
  std::int32_t left_length, right_length;  // characters
  std::size_t order = 0;               // as found
};

// Two tokens whose texts make a third can be joined; better scores first, as transformers' converter orders them.
std::vector<Merge> merges_of(const Vocabulary& v, const std::vector<float>& scores) {
  std::vector<Merge> all, local;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const std::string_view token = v.tokens[id];
    local.clear();
    std::int32_t characters = 0;
    const auto total = static_cast<std::int32_t>(std::ranges::count_if(token, [](char c) { return (c & 0xc0) != 0x80; }));
    for (std::size_t at = 0; at < token.size(); ++at) {
      if ((token[at] & 0xc0) == 0x80) continue;  // inside a character
      if (at > 0) {
        const auto left = v.ids.find(token.substr(0, at)), right = v.ids.find(token.substr(at));
        if (left != v.ids.end() && right != v.ids.end()) local.push_back({scores[id], left->second, right->second, characters, total - characters});
      }
      ++characters;
    }
    std::ranges::sort(local, {}, [](const Merge& m) { return std::pair(m.left, m.right); });
    all.insert(all.end(), local.begin(), local.end());
  }
  for (std::size_t i = 0; i < all.size(); ++i) all[i].order = i;
  std::ranges::sort(all, [](const Merge& a, const Merge& b) {
    const auto rank = [](const Merge& m) { return std::tuple(m.score, m.left_length, m.right_length); };
    return rank(a) != rank(b) ? rank(a) > rank(b) : a.order < b.order;
  });
  return all;
}

Result<std::string> sentence_piece_json(const Vocabulary& v, const SpecialTokenNames& names) {
  const GgufHeader& header = v.header;
  const auto scores = TRY(header.floats("tokenizer.ggml.scores"));
  if (!scores || scores->size() != v.tokens.size())
    return fail(Code::kCorrupt, "{}: {} tokens, but {} scores (tokenizer.ggml.scores)", header.where, v.tokens.size(), scores ? scores->size() : 0);
  if (const auto bad = std::ranges::find_if(*scores, [](float s) { return std::isnan(s); }); bad != scores->end())
    return fail(Code::kCorrupt, "{}: tokenizer.ggml.scores[{}] is not a number", header.where, bad - scores->begin());
  const bool prefix = TRY(header.boolean("tokenizer.ggml.add_space_prefix")).value_or(true);
  const auto merges = merges_of(v, *scores);
  std::string unknown = names.unk;
  for (std::size_t id = 0; unknown.empty() && id < v.tokens.size(); ++id)
    if (v.types[id] == kUnknown) unknown = v.tokens[id];

  std::string out = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,";
  write_added_tokens(v, out);
  const std::string replace = fmt::format("{{\"type\":\"Replace\",\"pattern\":{{\"String\":\" \"}},\"content\":\"{}\"}}", kSpace);
  out += fmt::format("\"normalizer\":{{\"type\":\"Sequence\",\"normalizers\":[{}{}]}},\"pre_tokenizer\":null,", prefix ? fmt::format("{{\"type\":\"Prepend\",\"prepend\":\"{}\"}},", kSpace) : "", replace);
  out += fmt::format("\"post_processor\":{},", TRY(post_processor(header, names, true)));
  out += fmt::format("\"decoder\":{{\"type\":\"Sequence\",\"decoders\":[{{\"type\":\"Replace\",\"pattern\":{{\"String\":\"{}\"}},\"content\":\" \"}},{{\"type\":\"ByteFallback\"}},{{\"type\":\"Fuse\"}}{}]}},", kSpace,
                     prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
  out += fmt::format("\"model\":{{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":{},\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_fallback\":true,\"ignore_merges\":false,",
                     unknown.empty() ? "null" : json_text(unknown));
  write_vocabulary(v, out);
  out += "\"merges\":[";
  for (std::size_t i = 0; i < merges.size(); ++i) write_merge(v.tokens[static_cast<std::size_t>(merges[i].left)], v.tokens[static_cast<std::size_t>(merges[i].right)], i == 0, out);
  return out + "]}}";
}

}  // namespace

bool is_gguf_file(const std::string& path) { return checkpoint::is_gguf_path(path) && is_regular_file(path); }

Result<GgufTokenizer> read_gguf_tokenizer(const std::string& path) {
  const GgufHeader header = TRY(open_header(path));
  const Vocabulary v = TRY(read_vocabulary(header));
  GgufTokenizer tokenizer;
  tokenizer.names = TRY(read_names(header, v.tokens));
  OrderedJson special = OrderedJson::array();
  for (const auto& [key, member] : kNamed)
    if (!(tokenizer.names.*member).empty()) special.push_back(tokenizer.names.*member);
  tokenizer.options["special_tokens"] = std::move(special);
  if (auto whole = TRY(header.string("tokenizer.huggingface.json"))) {
    tokenizer.json = std::move(*whole);
    return tokenizer;
  }
  const auto model = TRY(header.string("tokenizer.ggml.model"));
  if (!model) return fail(Code::kNotFound, "{}: the file has no tokenizer (tokenizer.ggml.model), so text cannot be encoded", header.where);
  if (*model == "gpt2") tokenizer.json = TRY(byte_level_json(v, tokenizer.names));
  else if (*model == "llama") tokenizer.json = TRY(sentence_piece_json(v, tokenizer.names));
  else return fail(Code::kUnsupported, "{}: tokenizer.ggml.model \"{}\" is not supported; known: gpt2 (byte-level BPE) llama (SentencePiece's BPE)", header.where, *model);
  return tokenizer;
}

Result<GgufChatTemplate> read_gguf_chat_template(const std::string& path) {
  const GgufHeader header = TRY(open_header(path));
  GgufChatTemplate chat;
  if (auto text = TRY(header.string("tokenizer.chat_template"))) {
    chat.main = std::move(*text);
    chat.found = true;
  }
  if (auto text = TRY(header.string("tokenizer.chat_template.tool_use")); text && chat.found) {
    chat.tool_use = std::move(*text);
    chat.has_tool_use = true;
  }
  if (const auto tokens = TRY(header.strings("tokenizer.ggml.tokens"))) chat.names = TRY(read_names(header, *tokens));
  return chat;
}

Result<std::vector<std::pair<std::string, std::string>>> gguf_companions(const std::string& path) {
  GgufTokenizer tokenizer = TRY(read_gguf_tokenizer(path));
  GgufChatTemplate chat = TRY(read_gguf_chat_template(path));
  const SpecialTokenNames& names = tokenizer.names;
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, text] : {std::pair("bos_token", names.bos), std::pair("eos_token", names.eos), std::pair("unk_token", names.unk), std::pair("pad_token", names.pad)})
    if (!text.empty()) config[key] = text;
  if (chat.has_tool_use) config["chat_template"] = OrderedJson::array({{{"name", "default"}, {"template", chat.main}}, {{"name", "tool_use"}, {"template", chat.tool_use}}});
  std::vector<std::pair<std::string, std::string>> files = {{"tokenizer.json", std::move(tokenizer.json)},
                                                            {"tokenizer_config.json", config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"}};
  if (chat.found && !chat.has_tool_use) files.emplace_back("chat_template.jinja", std::move(chat.main));
  return files;
}

}  // namespace inflight::text
