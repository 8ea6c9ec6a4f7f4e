#include "cli/chat_message.h"

#include <gtest/gtest.h>

namespace inflight::cli {
namespace {

TEST(ChatMessage, a_line_is_a_message) {
  MessageBuilder builder;
  EXPECT_EQ(builder.feed("hello"), "hello");
  EXPECT_FALSE(builder.open());
  EXPECT_EQ(builder.feed(""), "");
  EXPECT_EQ(builder.feed("pasted\ntwice"), "pasted\ntwice");
  EXPECT_EQ(builder.end(), std::nullopt);
}

TEST(ChatMessage, a_backslash_continues) {
  MessageBuilder builder;
  EXPECT_EQ(builder.feed("one\\"), std::nullopt);
  EXPECT_TRUE(builder.open());
  EXPECT_EQ(builder.feed("two\\"), std::nullopt);
  EXPECT_EQ(builder.feed("three"), "one\ntwo\nthree");
  EXPECT_FALSE(builder.open());
}

TEST(ChatMessage, triple_quotes_hold_many_lines) {
  MessageBuilder builder;
  EXPECT_EQ(builder.feed("\"\"\""), std::nullopt);
  EXPECT_TRUE(builder.open());
  EXPECT_EQ(builder.feed("a \\"), std::nullopt);
  EXPECT_EQ(builder.feed(""), std::nullopt);
  EXPECT_EQ(builder.feed("/exit"), std::nullopt);
  EXPECT_EQ(builder.feed("\"\"\""), "a \\\n\n/exit");
  EXPECT_EQ(builder.feed("\"\"\"first"), std::nullopt);
  EXPECT_EQ(builder.feed("last\"\"\""), "first\nlast");
  EXPECT_EQ(builder.feed("\"\"\"one line\"\"\""), "one line");
}

TEST(ChatMessage, what_has_begun_survives_the_end_of_the_input_but_not_clear) {
  MessageBuilder builder;
  EXPECT_EQ(builder.feed("half\\"), std::nullopt);
  EXPECT_EQ(builder.end(), "half");
  EXPECT_EQ(builder.feed("\"\"\"half"), std::nullopt);
  builder.clear();
  EXPECT_FALSE(builder.open());
  EXPECT_EQ(builder.feed("whole"), "whole");
}

}  // namespace
}  // namespace inflight::cli
