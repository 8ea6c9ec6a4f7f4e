#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/file.h"
#include "text/test_data.h"

namespace inflight::text {
namespace {

using Ids = std::vector<std::int32_t>;

// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const auto follows = [&](std::size_t at) { return (byte(at) & 0xc0u) == 0x80u; };
    const unsigned lead = byte(i);
    if (lead < 0x80) {
      i += 1;
    } else if (lead >= 0xc2 && lead < 0xe0 && follows(i + 1)) {
      i += 2;
    } else if (lead >= 0xe0 && lead < 0xf0 && follows(i + 1) && follows(i + 2) && !(lead == 0xe0 && byte(i + 1) < 0xa0) && !(lead == 0xed && byte(i + 1) > 0x9f)) {
      i += 3;
    } else if (lead >= 0xf0 && lead < 0xf5 && follows(i + 1) && follows(i + 2) && follows(i + 3) && !(lead == 0xf0 && byte(i + 1) < 0x90) && !(lead == 0xf4 && byte(i + 1) > 0x8f)) {
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

std::string stream_checked(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  auto stream = StreamingDetokenizer::create(tokenizer, skip_special).value();
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string piece = stream.feed(id).value();
    EXPECT_TRUE(is_utf8(piece)) << comma_joined(ids);
    text += piece;
  }
  const std::string rest = stream.finish().value();
  EXPECT_TRUE(is_utf8(rest));
  return text + rest;
}

class Streaming : public ::testing::TestWithParam<const char*> {
 protected:
  const Tokenizer& tokenizer_ = real_tokenizer(GetParam());
  std::int32_t byte_token(unsigned char byte) const {  // ids of the single bytes 0x80..0xff, spelled as the byte-level alphabet does
    const bool printable = (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    unsigned code = byte;
    if (!printable) code = byte == 0xad ? 0x143u : 0x100u + 33u + 1u + (byte - 0x80u);  // 33 below '!', then 0x7f, then 0x80..0xa0, then 0xad
    const std::string spelled{static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
    return tokenizer_.id_of(spelled);
  }
};
INSTANTIATE_TEST_SUITE_P(Families, Streaming, ::testing::Values("qwen3", "smollm2"), [](const auto& family) { return std::string(family.param); });

TEST_P(Streaming, joined_pieces_equal_the_whole_for_random_ids) {
  std::mt19937 random(4545);
  for (int round = 0; round < 400; ++round) {
    // Every third round only single bytes and very short tokens, where characters are cut most often.
    const std::int32_t limit = round % 3 == 0 ? 400 : tokenizer_.vocab_size() + 100;
    Ids ids(1 + random() % 80);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(limit));
    for (const bool skip : {false, true}) {
      ASSERT_EQ(stream_checked(tokenizer_, ids, skip), tokenizer_.decode(ids, skip).value()) << "round " << round << ": " << comma_joined(ids);
    }
  }
}

TEST_P(Streaming, joined_pieces_equal_the_whole_for_real_text) {
  const std::string text = read_file(data_path("tokenizers/unicode-mix.txt")).value().substr(0, 60'000);
  const Ids ids = tokenizer_.encode(text, false).value();
  EXPECT_EQ(stream_checked(tokenizer_, ids, false), tokenizer_.decode(ids, false).value());
}

TEST_P(Streaming, a_character_cut_into_bytes_appears_with_its_last_byte) {
  auto stream = StreamingDetokenizer::create(tokenizer_).value();
  for (const char* const bytes : {"\xf0\x9f\x98\x80", "\xe4\xb8\xad", "\xc3\xa9"}) {
    const std::string character = bytes;
    for (std::size_t i = 0; i < character.size(); ++i) {
      const std::int32_t id = byte_token(static_cast<unsigned char>(character[i]));
      ASSERT_GE(id, 0);
      EXPECT_EQ(stream.feed(id).value(), i + 1 == character.size() ? character : "") << character << " byte " << i;
    }
  }
  EXPECT_EQ(stream.finish().value(), "");
}

TEST_P(Streaming, bytes_that_can_never_become_valid_are_replaced_at_once) {
  auto stream = StreamingDetokenizer::create(tokenizer_).value();
  EXPECT_EQ(stream.feed(byte_token(0x80)).value(), "\uFFFD") << "a continuation without a lead";
  EXPECT_EQ(stream.feed(byte_token(0xe4)).value(), "");
  EXPECT_EQ(stream.feed(byte_token(0xc3)).value(), "\uFFFD") << "the cut character is lost, the new lead waits";
  EXPECT_EQ(stream.feed(byte_token(0xa9)).value(), "é");
  EXPECT_EQ(stream.feed(byte_token(0xf0)).value(), "");
  EXPECT_EQ(stream.feed(byte_token(0x9f)).value(), "");
  EXPECT_EQ(stream.finish().value(), "\uFFFD") << "the tail is one mark";
}

TEST_P(Streaming, special_tokens_and_unknown_ids_are_silent_and_do_not_break_characters) {
  auto stream = StreamingDetokenizer::create(tokenizer_).value();
  EXPECT_EQ(stream.feed(byte_token(0xc3)).value(), "");
  EXPECT_EQ(stream.feed(tokenizer_.id_of("<|im_end|>")).value(), "");
  EXPECT_EQ(stream.feed(tokenizer_.vocab_size() + 5).value(), "");
  EXPECT_EQ(stream.feed(byte_token(0xa9)).value(), "é") << "as decoding the whole does";
  auto shown = StreamingDetokenizer::create(tokenizer_, /*skip_special=*/false).value();
  EXPECT_EQ(shown.feed(tokenizer_.id_of("<|im_end|>")).value(), "<|im_end|>");
}

TEST_P(Streaming, outlives_the_tokenizer_it_was_made_from) {
  auto stream = [&] {
    const Tokenizer copy = Tokenizer::load(data_path("tokenizers/smollm2")).value();
    return StreamingDetokenizer::create(copy).value();
  }();
  EXPECT_EQ(stream.feed(260).value(), " the");
}

}  // namespace
}  // namespace inflight::text
