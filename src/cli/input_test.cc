#include "cli/input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/prompts_file.h"

namespace inflight::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Well-formed and ill-formed sequences of the Unicode standard, table 3-7.
TEST(Input, utf8_is_checked_as_unicode_defines_it) {
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) EXPECT_TRUE(check_utf8(good, "x")) << good;
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xf0\x9f\x98"}) EXPECT_FALSE(check_utf8(bad, "x"));
  const Result<void> outcome = check_utf8("caf\xe9 noir", "notes.txt");
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kInvalidArgument);
  EXPECT_THAT(outcome.error().message, HasSubstr("notes.txt: not UTF-8: byte 0xe9 at offset 3"));
}

TEST(Input, token_ids_from_the_command_line) {
  EXPECT_THAT(*read_token_ids("1,2,3"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*read_token_ids(" 7 "), ElementsAre(7));
  EXPECT_THAT(*read_token_ids("0, 2147483647"), ElementsAre(0, 2147483647));
  for (const char* bad : {"", ",", "1,", "1,,2", "1 2", "2147483648"}) EXPECT_THAT(read_token_ids(bad).error().message, HasSubstr("is not a token id")) << bad;
  EXPECT_EQ(read_token_ids("missing.json").error().code, Code::kNotFound);
}

TEST(Input, token_ids_from_a_file) {
  const std::string path = testing::TempDir() + "ids.json";
  const auto ids_of = [&](const char* text) {
    std::ofstream(path) << text;
    return read_token_ids(path);
  };
  EXPECT_THAT(*ids_of("[5, 6]"), ElementsAre(5, 6));
  EXPECT_THAT(ids_of("[5, -6]").error().message, HasSubstr("entry 1 is not a token id"));
  EXPECT_THAT(ids_of("[1.5]").error().message, HasSubstr("entry 0"));
  EXPECT_THAT(ids_of("[99999999999]").error().message, HasSubstr("entry 0"));
  EXPECT_THAT(ids_of("[]").error().message, HasSubstr("at least one token id"));
  EXPECT_THAT(ids_of("{}").error().message, HasSubstr("JSON list"));
}

TEST(PromptsFile, lines_are_numbered_and_blank_ones_skipped) {
  const Result<std::vector<NumberedRequest>> requests = parse_prompts("\xef\xbb\xbf{\"prompt\": \"a\"}\r\n\n  \t\n{\"ids\": [1]}", "f");
  ASSERT_TRUE(requests) << requests.error().message;
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].line, 1);
  EXPECT_EQ((*requests)[1].line, 4);
}

TEST(PromptsFile, the_first_bad_line_is_the_error) {
  const Result<std::vector<NumberedRequest>> requests = parse_prompts("{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"top-p\": 1}\n{\n", "batch.jsonl");
  ASSERT_FALSE(requests);
  EXPECT_THAT(requests.error().message, testing::StartsWith("batch.jsonl line 2: unknown field \"top-p\""));
  EXPECT_THAT(parse_prompts("\n \n", "empty.jsonl").error().message, HasSubstr("empty.jsonl: holds no request"));
}

}  // namespace
}  // namespace inflight::cli
