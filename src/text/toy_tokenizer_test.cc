// Small tokenizers made by tools/make_text_goldens.py: merges in both spellings, added tokens, every decoder, tokenizer_config.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/test_data.h"
#include "text/tokenizer.h"

namespace inflight::text {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

const Json& toys() {
  static const Json json = read_json_file(data_path("tokenizers/toy-goldens.json")).value()["toys"];
  return json;
}

const Json& toy(const std::string& name) {
  for (const Json& entry : toys())
    if (entry["name"] == name) return entry;
  ADD_FAILURE() << "no toy named " << name;
  return toys()[0];
}

Result<Tokenizer> load_toy(const Json& entry) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", entry["tokenizer"].dump());
  if (!entry["config"].is_null()) folder.write("tokenizer_config.json", entry["config"].dump());
  return Tokenizer::load(folder.path());
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  auto stream = StreamingDetokenizer::create(tokenizer, skip_special).value();
  std::string text;
  for (const std::int32_t id : ids) text += stream.feed(id).value();
  return text + stream.finish().value();
}

TEST(Toys, faulty_merges_are_refused_when_loaded) {
  int refused = 0;
  for (const Json& entry : toys()) {
    if (!entry.contains("error")) continue;
    ++refused;
    const auto result = load_toy(entry);
    ASSERT_FALSE(result) << entry["name"];
    EXPECT_EQ(result.error().code, Code::kCorrupt) << entry["name"];
  }
  EXPECT_EQ(refused, 5);
}

TEST(Toys, encode_as_the_reference) {
  int compared = 0;
  for (const Json& entry : toys()) {
    if (entry.contains("error")) continue;
    const auto tokenizer = load_toy(entry);
    ASSERT_TRUE(tokenizer) << entry["name"] << ": " << tokenizer.error().message;
    for (const Json& row : entry["encode"]) {
      const std::string text = row["text"];
      EXPECT_EQ(tokenizer->encode(text, false).value(), row["ids"].get<Ids>()) << entry["name"] << ": " << text;
      EXPECT_EQ(tokenizer->encode(text, true).value(), row["with_special"].get<Ids>()) << entry["name"] << ": " << text;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(Toys, decode_and_stream_as_the_reference) {
  int compared = 0;
  for (const Json& entry : toys()) {
    if (entry.contains("error")) continue;
    const Tokenizer tokenizer = load_toy(entry).value();
    for (const Json& row : entry["decode"]) {
      const Ids ids = row["ids"].get<Ids>();
      for (const bool skip : {false, true}) {
        const Json& expected = row[skip ? "skipped" : "text"];
        if (expected.is_null()) {  // the reference panics here; ours must not take the program down
          (void)tokenizer.decode(ids, skip);
          (void)streamed(tokenizer, ids, skip);
          continue;
        }
        EXPECT_EQ(tokenizer.decode(ids, skip).value(), expected.get<std::string>()) << entry["name"] << ": " << comma_joined(ids);
        EXPECT_EQ(streamed(tokenizer, ids, skip), expected.get<std::string>()) << entry["name"] << ": " << comma_joined(ids);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 2000);
}

std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::string> result;
  const Ids ids = tokenizer.encode(text, false).value();
  for (const std::int32_t id : ids) result.push_back(tokenizer.token_of(id));
  return result;
}

// The pieces that the two common patterns cut, written out by hand; the toys' words are these pieces.
TEST(Pieces, qwen_pattern) {
  const Tokenizer t = load_toy(toy("qwen pieces")).value();
  EXPECT_THAT(pieces(t, "1984 p->q"), ElementsAre("1", "9", "8", "4", " p", "->", "q"));
  EXPECT_THAT(pieces(t, "p  q"), ElementsAre("p", " ", " q"));
  EXPECT_THAT(pieces(t, "f(y):\n"), ElementsAre("f", "(y", "):\n"));
  EXPECT_THAT(pieces(t, "if a:\n    pass  b"), ElementsAre("if", " a", ":\n", "   ", " pass", " ", " b"));
  EXPECT_THAT(pieces(t, "k   \n\n m"), ElementsAre("k", "   \n\n", " m"));
  EXPECT_THAT(pieces(t, "WE'LL she's"), ElementsAre("WE", "'LL", " she", "'s"));
  EXPECT_THAT(pieces(t, "¾ 7¾"), ElementsAre("¾", " ", "7", "¾"));
  EXPECT_THAT(pieces(t, "明天，见456"), ElementsAre("明天", "，见", "4", "5", "6"));
  EXPECT_THAT(pieces(t, "e\u0301"), ElementsAre("\u00e9")) << "NFC";
  EXPECT_THAT(pieces(t, "\u1100\u1161\u11a8"), ElementsAre("\uac01")) << "NFC";
  EXPECT_THAT(pieces(t, "\u212b"), ElementsAre("\u00c5")) << "NFC";
}

TEST(Pieces, llama3_pattern) {
  const Tokenizer t = load_toy(toy("llama3 pieces")).value();
  EXPECT_THAT(pieces(t, "1984 p->q"), ElementsAre("198", "4", " p", "->", "q"));
  EXPECT_THAT(pieces(t, "¾ 7¾"), ElementsAre("¾", " ", "7¾"));
  EXPECT_THAT(pieces(t, "明天，见456"), ElementsAre("明天", "，见", "456"));
}

TEST(Merges, both_spellings_give_the_same_ids_and_ignore_merges_takes_whole_words) {
  for (const char* name : {"merges as strings", "merges as pairs"}) EXPECT_THAT(load_toy(toy(name)).value().encode("abc", false).value(), ElementsAre(4)) << name;
  EXPECT_THAT(pieces(load_toy(toy("ignore_merges on")).value(), "abc"), ElementsAre("abc"));
  EXPECT_THAT(pieces(load_toy(toy("ignore_merges off")).value(), "abc"), ElementsAre("ab", "c"));
}

TEST(AddedTokens, lstrip_and_rstrip_swallow_the_spaces_around) {
  const Tokenizer t = load_toy(toy("added token lstrip True rstrip True")).value();
  EXPECT_EQ(t.encode("ab [X] cd", false).value(), t.encode("ab[X]cd", false).value());
  const Tokenizer neither = load_toy(toy("added token lstrip False rstrip False")).value();
  EXPECT_NE(neither.encode("ab [X] cd", false).value(), neither.encode("ab[X]cd", false).value());
}

TEST(ByteFallback, a_character_in_bytes_appears_whole_and_a_broken_run_as_one_mark_a_byte) {
  const Tokenizer t = load_toy(toy("decoder llama")).value();  // ids 16..18 are the bytes of U+4E2D, 2 is "b"
  auto stream = StreamingDetokenizer::create(t).value();
  EXPECT_EQ(stream.feed(16).value(), "");
  EXPECT_EQ(stream.feed(17).value(), "");
  EXPECT_EQ(stream.feed(18).value(), "") << "the run may go on, and one bad byte would spoil all of it";
  EXPECT_EQ(stream.feed(2).value(), "中b");
  EXPECT_EQ(stream.feed(16).value(), "");
  EXPECT_EQ(stream.feed(2).value(), "\uFFFDb");
  EXPECT_EQ(stream.feed(16).value(), "");
  EXPECT_EQ(stream.feed(17).value(), "");
  EXPECT_EQ(stream.finish().value(), "\uFFFD\uFFFD");
}

TEST(Spaces, the_first_space_is_stripped_once_a_sequence_and_not_after_special_tokens) {
  const Tokenizer t = load_toy(toy("decoder llama")).value();
  const std::int32_t bos = t.id_of("<s>");
  auto stream = StreamingDetokenizer::create(t).value();
  EXPECT_EQ(stream.feed(bos).value(), "");
  EXPECT_EQ(stream.feed(1).value(), "a");
  EXPECT_EQ(stream.feed(1).value(), " a");
  EXPECT_EQ(stream.feed(bos).value(), "");
  EXPECT_EQ(stream.feed(1).value(), " a");
}

}  // namespace
}  // namespace inflight::text
