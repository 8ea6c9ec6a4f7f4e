#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace inflight::text {
namespace {

TEST(StopMatcher, ends_before_the_stop_string) {
  StopMatcher stops({"STOP"});
  EXPECT_EQ(stops.feed("abc STOP def"), "abc ");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.matched(), "STOP");
  EXPECT_EQ(stops.feed("more"), "") << "text after the end is swallowed";
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopMatcher, matches_across_pieces_and_holds_back_only_a_beginning) {
  StopMatcher stops({"\n\nUser:"});
  EXPECT_EQ(stops.feed("hi\n"), "hi");
  EXPECT_EQ(stops.feed("\n"), "");
  EXPECT_EQ(stops.feed("Us"), "");
  EXPECT_EQ(stops.feed("eful"), "\n\nUseful");
  EXPECT_EQ(stops.feed("\n\nUser"), "");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.feed(": x"), "");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopMatcher, flush_gives_what_was_held) {
  StopMatcher stops({"abcd"});
  EXPECT_EQ(stops.feed("xabc"), "x");
  EXPECT_EQ(stops.flush(), "abc");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopMatcher, the_earliest_start_wins_whatever_completes_first) {
  StopMatcher stops({"bc", "abcd"});
  EXPECT_EQ(stops.feed("xabc"), "x") << "\"bc\" is complete, but \"abcd\" would start before it";
  EXPECT_EQ(stops.feed("d"), "");
  EXPECT_EQ(stops.matched(), "abcd");

  StopMatcher other({"bc", "abcd"});
  EXPECT_EQ(other.feed("xabc"), "x");
  EXPECT_EQ(other.feed("e"), "a");
  EXPECT_EQ(other.matched(), "bc");

  StopMatcher at_end({"bc", "abcd"});
  EXPECT_EQ(at_end.feed("xabc"), "x");
  EXPECT_EQ(at_end.flush(), "a") << "\"abcd\" never came, \"bc\" did";
  EXPECT_TRUE(at_end.stopped());
}

TEST(StopMatcher, overlapping_beginnings_are_not_lost) {
  StopMatcher stops({"aab"});
  std::string text;
  for (const char* const piece : {"a", "a", "a", "b"}) text += stops.feed(piece);
  EXPECT_EQ(text, "a");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopMatcher, empty_stop_strings_are_ignored) {
  StopMatcher stops({"", ""});
  EXPECT_EQ(stops.feed("abc"), "abc");
  EXPECT_FALSE(stops.stopped());
  StopMatcher none({});
  EXPECT_EQ(none.feed(""), "");
  EXPECT_EQ(none.feed("x"), "x");
}

TEST(StopMatcher, characters_are_never_cut) {
  StopMatcher stops({"é!"});
  EXPECT_EQ(stops.feed("aè"), "aè") << "shares its first byte with the stop string";
  EXPECT_EQ(stops.feed("é"), "");
  EXPECT_EQ(stops.feed("?"), "é?");
}

// What any cut must give: the text up to the first position at which a stop string occurs.
TEST(StopMatcher, random_cuts_give_the_text_before_the_first_occurrence) {
  std::mt19937 random(7);
  const auto letters = [&](std::size_t longest) {
    std::string text(random() % (longest + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::vector<std::string> list = {letters(5), letters(5), letters(3)};
    const std::string text = letters(24);
    std::size_t end = std::string::npos;
    for (const std::string& stop : list)
      if (!stop.empty()) end = std::min(end, text.find(stop));
    StopMatcher stops(list);
    std::string got;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = random() % 4;
      got += stops.feed(text.substr(at, length));
      at += length;
    }
    got += stops.flush();
    ASSERT_EQ(got, text.substr(0, end)) << text << " with \"" << list[0] << "\" \"" << list[1] << "\" \"" << list[2] << '"';
    ASSERT_EQ(stops.stopped(), end != std::string::npos);
    stopped += stops.stopped();
  }
  EXPECT_GT(stopped, 1000);
}

}  // namespace
}  // namespace inflight::text
