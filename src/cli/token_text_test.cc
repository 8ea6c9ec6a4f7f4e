#include "cli/token_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inflight::cli {
namespace {

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer loaded = text::Tokenizer::load(std::string(INFLIGHT_TEST_DATA) + "/tokenizers/smollm2").value();
  return loaded;
}

TEST(Token_text, puts_the_tokens_of_a_text_together_again) {
  const std::string text = "Hello world,  42 times\n\tover";
  const std::vector<std::int32_t> ids = tokenizer().encode(text, false).value();
  std::string again;
  for (std::size_t i = 0; i < ids.size(); ++i) again += token_text(tokenizer(), std::span(ids).first(i), ids[i]).value();
  EXPECT_EQ(again, text);
  EXPECT_GT(ids.size(), 5u);
}

TEST(Token_text, of_a_part_of_a_character_is_the_vocabularys) {
  const std::vector<std::int32_t> ids = tokenizer().encode("\xf0\x9f\xa6\xab", false).value();  // U+1F9AB takes several tokens
  ASSERT_GT(ids.size(), 1u);
  const std::string text = token_text(tokenizer(), {}, ids[0]).value();
  EXPECT_EQ(text, tokenizer().token_of(ids[0]));
  EXPECT_EQ(text.find("\xef\xbf\xbd"), std::string::npos);
}

TEST(Token_text, of_a_row_without_a_token_is_its_number) { EXPECT_EQ(token_text(tokenizer(), {}, 10'000'000).value(), "<10000000>"); }

TEST(One_line, writes_out_what_would_move_the_cursor) {
  EXPECT_EQ(one_line("a\nb\t\x1b[31m\r\x7f"), "a\\nb\\t\\x1b[31m\\r\\x7f");
  EXPECT_EQ(one_line("\xe2\x80\xae\xc2\x85" "abc"), "\\u202e\\x85" "abc");  // right-to-left override, next line
  EXPECT_EQ(one_line("caf\xc3\xa9 \xe6\xbc\xa2"), "caf\xc3\xa9 \xe6\xbc\xa2");
}

TEST(Fitted, counts_columns_not_bytes) {
  EXPECT_EQ(display_width("caf\xc3\xa9"), 4u);
  EXPECT_EQ(display_width("\xe6\xbc\xa2\xe5\xad\x97"), 4u);   // two wide characters
  EXPECT_EQ(display_width("e\xcc\x81"), 1u);                      // e and a combining accent
  EXPECT_EQ(fitted("caf\xc3\xa9", 6), "caf\xc3\xa9  ");
  EXPECT_EQ(fitted("abcdef", 4), "abc\xe2\x80\xa6");
  EXPECT_EQ(fitted("\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2", 4), "\xe6\xbc\xa2\xe2\x80\xa6 ");  // no half of a wide one
  EXPECT_EQ(display_width("\xff"), 1u);                            // no UTF-8: a byte a column, and no reading past the end
  EXPECT_EQ(display_width("\xe6\xbc"), 2u);
}

}  // namespace
}  // namespace inflight::cli
