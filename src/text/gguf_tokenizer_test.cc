// Tokenizers out of GGUF files give the ids of the tokenizer.json that they were made from, and of the SentencePiece library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/gguf_for_test.h"
#include "text/chat_template.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/test_data.h"
#include "text/tokenizer.h"

namespace inflight::text {
namespace {

using checkpoint::GgufBuilder;
using checkpoint::gguf_bool;
using checkpoint::gguf_i32s;
using checkpoint::gguf_text;
using checkpoint::gguf_texts;
using checkpoint::gguf_u32;
using testing::AllOf;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// The vocabulary of a byte-level tokenizer.json as GGUF files carry it; holes of the numbering become unused tokens.
GgufBuilder vocabulary_of(const std::string& folder, const std::string& pre) {
  const Json json = Json::parse(read_file(data_path(folder + "/tokenizer.json")).value());
  std::vector<std::string> tokens, merges;
  std::vector<std::int32_t> types;
  const auto put = [&](const std::string& text, std::size_t id, std::int32_t type) {
    for (std::size_t hole = tokens.size(); hole <= id; ++hole) {
      tokens.push_back(fmt::format("[PAD{}]", hole));
      types.push_back(5);
    }
    tokens[id] = text;
    types[id] = type;
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) put(text, id.get<std::size_t>(), 1);
  for (const auto& token : json["added_tokens"]) put(token["content"], token["id"].get<std::size_t>(), token["special"].get<bool>() ? 3 : 4);
  put("[PAD" + std::to_string(tokens.size() + 2) + "]", tokens.size() + 2, 5);  // a vocabulary padded at its end
  for (const auto& merge : json["model"]["merges"]) merges.push_back(merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  GgufBuilder b;
  b.set("general.architecture", gguf_text("llama")).set("tokenizer.ggml.model", gguf_text("gpt2")).set("tokenizer.ggml.pre", gguf_text(pre));
  b.set("tokenizer.ggml.tokens", gguf_texts(tokens)).set("tokenizer.ggml.token_type", gguf_i32s(types)).set("tokenizer.ggml.merges", gguf_texts(merges));
  return b;
}

std::string write(const TemporaryFolder& folder, const GgufBuilder& b) {
  folder.write("m.gguf", b.file());
  return folder.path() + "/m.gguf";
}

class GgufVocabulary : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GgufVocabulary, gives_the_ids_of_its_tokenizer_json) {
  const auto& [family, pre] = GetParam();
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::load(write(folder, vocabulary_of(std::string("tokenizers/") + family, pre)));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const Tokenizer& original = real_tokenizer(family);
  const Json reference = read_json_file(data_path(std::string("tokenizers/") + family + "/reference-ids.json")).value();
  for (const Json& sample : reference["samples"]) EXPECT_EQ(tokenizer->encode(sample["text"].get<std::string>(), true).value(), sample["ids"].get<Ids>()) << sample["text"];
  const std::string text = read_file(data_path("text/heldout.txt")).value().substr(0, 100000) + read_file(data_path("tokenizers/unicode-mix.txt")).value();
  const Ids ids = original.encode(text, false).value();
  EXPECT_EQ(tokenizer->encode(text, false).value(), ids);
  EXPECT_EQ(tokenizer->decode(ids, false).value(), original.decode(ids, false).value());
  for (const std::int32_t id : {0, 5, 1000, 20000, original.vocab_size() - 1}) {
    EXPECT_EQ(tokenizer->token_of(id), original.token_of(id));
    EXPECT_EQ(tokenizer->is_special(id), original.is_special(id));
  }
  EXPECT_EQ(tokenizer->vocab_size(), original.vocab_size());  // padding is no token
}

INSTANTIATE_TEST_SUITE_P(families, GgufVocabulary, testing::Values(std::pair("smollm2", "smollm"), std::pair("qwen3", "qwen2")), [](const auto& p) { return std::string(p.param.first); });

TEST(GgufTokenizer, of_a_converted_model) {
  const auto tokenizer = Tokenizer::load(data_path("gguf/llama.gguf"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const Tokenizer original = Tokenizer::load(data_path("tiny/tiny-llama")).value();
  const std::string text = read_file(data_path("text/heldout.txt")).value().substr(0, 20000) + "<|im_start|>user\nhi<|im_end|>";
  EXPECT_EQ(tokenizer->encode(text, true).value(), original.encode(text, true).value());
  EXPECT_EQ(tokenizer->names().eos, original.names().eos);
  EXPECT_EQ(tokenizer->eos_ids(), original.eos_ids());
  EXPECT_TRUE(tokenizer->is_special(1));

  const ChatTemplate chat = ChatTemplate::load(data_path("gguf/llama.gguf")).value();
  ASSERT_TRUE(chat.has_template());
  const ChatRequest request{.messages = OrderedJson::parse(R"([{"role":"user","content":"hi"}])"), .tools = nullptr};
  EXPECT_EQ(chat.render(request).value(), ChatTemplate::load(data_path("tiny/tiny-llama")).value().render(request).value());
}

TEST(GgufTokenizer, sentence_piece_gives_the_ids_of_its_library) {
  const auto tokenizer = Tokenizer::load(data_path("gguf/sentence-piece.gguf"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  for (const Json& sample : Json::parse(read_file(data_path("gguf/sentence-piece.json")).value())) {
    const std::string text = sample["text"];
    const Ids ids = sample["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(text, false).value(), ids) << text;
    Ids with_bos = ids;
    with_bos.insert(with_bos.begin(), tokenizer->bos_id());
    EXPECT_EQ(tokenizer->encode(text, true).value(), with_bos) << text;
    EXPECT_EQ(tokenizer->decode(with_bos, true).value(), text);
  }
  EXPECT_EQ(tokenizer->names().bos, "<s>");
  EXPECT_EQ(tokenizer->names().unk, "<unk>");
  EXPECT_THAT(tokenizer->encode("a<tool>b", false).value(), testing::Contains(tokenizer->id_of("<tool>")));
}

// Merges "a b" of a vocabulary of a few letters.
GgufBuilder small(const std::string& pre = "gpt-2") {
  GgufBuilder b;
  b.set("tokenizer.ggml.model", gguf_text("gpt2")).set("tokenizer.ggml.pre", gguf_text(pre)).set("tokenizer.ggml.tokens", gguf_texts({"a", "b", "1", "2", "ab", "12", "<s>", "</s>", "<t>"}));
  b.set("tokenizer.ggml.merges", gguf_texts({"a b", "1 2"})).set("tokenizer.ggml.token_type", gguf_i32s({1, 1, 1, 1, 1, 1, 3, 3, 4})).set("tokenizer.ggml.bos_token_id", gguf_u32(6)).set("tokenizer.ggml.eos_token_id", gguf_u32(7));
  return b;
}
Ids ids_of(const GgufBuilder& b, std::string_view text) {
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::load(write(folder, b));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return tokenizer ? tokenizer->encode(text, true).value() : Ids{};
}

TEST(GgufTokenizer, begin_and_end_are_added_as_the_file_says) {
  EXPECT_EQ(ids_of(small(), "ab12"), (Ids{4, 5}));
  EXPECT_EQ(ids_of(small("smollm"), "ab12"), (Ids{4, 2, 3}));  // digits one by one
  EXPECT_EQ(ids_of(small("llama-bpe"), "ab12"), (Ids{6, 4, 5}));
  EXPECT_EQ(ids_of(small("llama-bpe").set("tokenizer.ggml.add_bos_token", gguf_bool(false)), "ab"), (Ids{4}));
  EXPECT_EQ(ids_of(small().set("tokenizer.ggml.add_bos_token", gguf_bool(true)).set("tokenizer.ggml.add_eos_token", gguf_bool(true)), "ab<t>"), (Ids{6, 4, 8, 7}));
  EXPECT_EQ(ids_of(small().set("tokenizer.ggml.add_eos_token", gguf_bool(true)), "ab"), (Ids{4, 7}));
}

TEST(GgufTokenizer, every_known_pre_tokenizer_loads) {
  const std::string list = find_gguf_pre_tokenizer("", "m").error().message;
  const auto begin = list.find("known: ") + 7;
  std::string names = list.substr(begin, list.find_first_of(".", begin) - begin);
  int count = 0;
  for (std::size_t at = 0; at < names.size(); ++count) {
    const auto end = std::min(names.find(' ', at), names.size());
    const std::string name = names.substr(at, end - at);
    at = end + 1;
    Ids ids = ids_of(small(name), "ab");
    if (!ids.empty() && ids[0] == 6) ids.erase(ids.begin());
    EXPECT_EQ(ids, Ids{4}) << name;
  }
  EXPECT_GE(count, 18);
}

std::string problem(const GgufBuilder& b, Code code = Code::kCorrupt) {
  const TemporaryFolder folder;
  const auto tokenizer = Tokenizer::load(write(folder, b));
  if (tokenizer) return "";
  EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
  return tokenizer.error().message;
}

GgufBuilder with(GgufBuilder b, const std::string& key, std::string value) {
  for (auto& [name, old] : b.metadata)
    if (name == key) old = value;
  return b;
}
GgufBuilder without(GgufBuilder b, const std::string& key) {
  std::erase_if(b.metadata, [&](const auto& entry) { return entry.first == key; });
  return b;
}

TEST(GgufTokenizer, hostile_vocabularies) {
  EXPECT_THAT(problem(GgufBuilder(), Code::kNotFound), HasSubstr("no vocabulary"));
  EXPECT_THAT(problem(without(small(), "tokenizer.ggml.model"), Code::kNotFound), HasSubstr("no tokenizer"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.model", gguf_text("bert")), Code::kUnsupported), AllOf(HasSubstr("bert"), HasSubstr("gpt2")));
  EXPECT_THAT(problem(small("no-such"), Code::kUnsupported), AllOf(HasSubstr("no-such"), HasSubstr("qwen2")));
  EXPECT_THAT(problem(without(small(), "tokenizer.ggml.pre"), Code::kUnsupported), HasSubstr("tokenizer.ggml.pre"));
  EXPECT_THAT(problem(without(small(), "tokenizer.ggml.merges")), HasSubstr("merges is missing"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.merges", gguf_texts({"ab"}))), HasSubstr("merges[0]"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.merges", gguf_texts({"a z"}))), HasSubstr("cannot be used"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.token_type", gguf_i32s({1}))), HasSubstr("9 tokens, but 1"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.bos_token_id", gguf_u32(9))), HasSubstr("there are 9 tokens"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.tokens", gguf_texts({"a", "b", "1", "2", "ab", "12", "<s>", "</s>", "a"}))), HasSubstr("tokens 0 and 8"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.tokens", gguf_texts({"a", "b", "1", "2", "ab", "12", "<s>", "</s>", "\xff"}))), HasSubstr("cannot be used"));
  EXPECT_THAT(problem(with(small(), "tokenizer.ggml.model", gguf_text("llama"))), HasSubstr("scores"));
  EXPECT_EQ(problem(with(small(), "tokenizer.ggml.eos_token_id", gguf_u32(UINT32_MAX))), "");  // "none"
}

}  // namespace
}  // namespace inflight::text
