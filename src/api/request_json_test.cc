#include "api/request_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inflight::api {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string message_of(std::string_view text) {
  const Result<JsonRequest> request = parse_request(text, "file line 7");
  EXPECT_FALSE(request) << text;
  if (request) return "";
  EXPECT_TRUE(request.error().message.starts_with("file line 7")) << request.error().message;
  return request.error().message;
}

TEST(RequestJson, a_text_with_every_sampling_field) {
  const Result<JsonRequest> request = parse_request(R"({"prompt": "h\u00e9", "temperature": 1, "top_p": 0.5, "top_k": 7.0, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -1,
    "frequency_penalty": 0.5, "max_tokens": 9, "min_tokens": 2, "ignore_eos": true, "seed": 18446744073709551615, "stop": ["a", "", "b"]})", "x");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(std::get<std::string>(request->prompt), "h\xc3\xa9");
  const SamplingFields& s = request->sampling;
  EXPECT_EQ(s.temperature, 1.0);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_EQ(s.presence_penalty, -1.0);
  EXPECT_EQ(s.frequency_penalty, 0.5);
  EXPECT_EQ(s.max_tokens, 9);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_EQ(s.ignore_eos, true);
  EXPECT_EQ(s.seed, 18446744073709551615u);
  EXPECT_THAT(*s.stop, ElementsAre("a", "b"));  // an empty one would match everything
}

TEST(RequestJson, null_means_not_given) {
  const Result<JsonRequest> request = parse_request(R"({"ids": [0, 5, 2147483647], "messages": null, "temperature": null, "stop": null})", "x");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_THAT(std::get<std::vector<std::int32_t>>(request->prompt), ElementsAre(0, 5, 2147483647));
  EXPECT_FALSE(request->sampling.temperature);
  EXPECT_FALSE(request->sampling.stop);
}

TEST(RequestJson, messages_keep_their_key_order_and_join_text_parts) {
  const Result<JsonRequest> request = parse_request(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null, "zebra": 1, "apple": 2}]})", "x");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(std::get<Messages>(request->prompt).list.dump(), R"([{"role":"user","content":"ab"},{"role":"assistant","content":"","zebra":1,"apple":2}])");
}

TEST(RequestJson, faults_are_named) {
  EXPECT_THAT(message_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(message_of("{}"), HasSubstr("exactly one of \"prompt\", \"messages\" and \"ids\", but has none"));
  EXPECT_THAT(message_of(R"({"prompt": "a", "ids": [1]})"), HasSubstr("but has several"));
  EXPECT_THAT(message_of(R"({"prompt": "a", "temprature": 1})"), HasSubstr("unknown field \"temprature\""));
  EXPECT_THAT(message_of(R"({"prompt": "a", "temprature": 1})"), HasSubstr("Did you mean \"temperature\"?"));
  EXPECT_THAT(message_of(R"({"prompt": 5})"), HasSubstr("\"prompt\" must be a string"));
  EXPECT_THAT(message_of(R"({"prompt": "a", "top_k": 1.5})"), HasSubstr("\"top_k\" must be an integer, but is 1.5"));
  EXPECT_THAT(message_of(R"({"prompt": "a", "stop": [1]})"), HasSubstr("\"stop\" must be a string or a list of strings"));
  EXPECT_THAT(message_of(R"({"prompt": "a", "ignore_eos": 1})"), HasSubstr("\"ignore_eos\" must be true or false"));
  EXPECT_THAT(message_of(R"({"ids": []})"), HasSubstr("at least one token id"));
  EXPECT_THAT(message_of(R"({"ids": [1, -1]})"), HasSubstr("\"ids\"[1]"));
  EXPECT_THAT(message_of(R"({"ids": [2147483648]})"), HasSubstr("\"ids\"[0]"));
  EXPECT_THAT(message_of(R"({"ids": [18446744073709551615]})"), HasSubstr("\"ids\"[0]"));
  EXPECT_THAT(message_of(R"({"ids": [1.5]})"), HasSubstr("\"ids\"[0]"));
  EXPECT_THAT(message_of(R"({"messages": []})"), HasSubstr("at least one message"));
  EXPECT_THAT(message_of(R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})"), HasSubstr("image_url"));
  EXPECT_THAT(message_of("{\"prompt\": \"\\ud83d\"}"), HasSubstr("not valid JSON"));      // a lone surrogate
  EXPECT_THAT(message_of("{\"prompt\": \"caf\xe9\"}"), HasSubstr("not valid JSON"));      // not UTF-8
  EXPECT_THAT(message_of(std::string(10000, '[')), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace inflight::api
