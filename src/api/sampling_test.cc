#include "api/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inflight::api {
namespace {

using testing::HasSubstr;

SamplingDefaults defaults_of(std::string_view json) {
  const Json config = Json::parse(json);
  Result<SamplingDefaults> defaults = sampling_defaults(&config);
  EXPECT_TRUE(defaults) << defaults.error().message;
  return defaults.value_or(SamplingDefaults{});
}

engine::SamplingParams resolved(const SamplingDefaults& defaults, const SamplingFields& fields) {
  Result<engine::SamplingParams> params = resolve_sampling(defaults, fields);
  EXPECT_TRUE(params) << params.error().message;
  return params.value_or(engine::SamplingParams{});
}

TEST(Sampling, no_file_is_greedy) {
  const engine::SamplingParams params = resolved({}, {});
  EXPECT_EQ(params.temperature, 0);
  EXPECT_EQ(describe(params), "greedy");
}

TEST(Sampling, a_file_that_samples_gives_its_values_and_neutral_ones_elsewhere) {
  const SamplingDefaults defaults = defaults_of(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05})");
  const engine::SamplingParams params = resolved(defaults, {});
  EXPECT_EQ(params.temperature, 0.6);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.top_p, 0.95);
  EXPECT_EQ(params.min_p, 0);
  EXPECT_EQ(params.repetition_penalty, 1.05);
  EXPECT_EQ(params.max_tokens, 0);
  EXPECT_FALSE(params.seed);
  EXPECT_EQ(describe(params), "temperature 0.6, top_p 0.95, top_k 20, repetition_penalty 1.05");
  EXPECT_EQ(resolved(defaults_of(R"({"do_sample": true})"), {}).temperature, 1.0);
}

TEST(Sampling, do_sample_false_or_absent_is_greedy_whatever_else_stands_there) {
  EXPECT_EQ(resolved(defaults_of(R"({"temperature": 0.6, "top_p": 0.9})"), {}).temperature, 0);
  EXPECT_EQ(resolved(defaults_of(R"({"do_sample": false, "temperature": 0.6})"), {}).temperature, 0);
  EXPECT_EQ(resolved(defaults_of(R"({"do_sample": null, "temperature": 0.6})"), {}).temperature, 0);
}

TEST(Sampling, a_request_field_beats_the_file) {
  const SamplingDefaults defaults = defaults_of(R"({"do_sample": true, "temperature": 0.6, "top_k": 20})");
  EXPECT_EQ(resolved(defaults, {.temperature = 0.0}).temperature, 0);
  const engine::SamplingParams params = resolved(defaults, {.temperature = 0.9, .top_k = 5});
  EXPECT_EQ(params.temperature, 0.9);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_EQ(resolved(defaults, {.top_k = 5}).temperature, 0.6);
}

TEST(Sampling, a_hidden_top_k_of_1_does_not_beat_the_temperature_that_was_asked_for) {
  for (const char* file : {R"({"do_sample": true, "top_k": 1, "top_p": 0.001, "temperature": 0.1})", R"({"do_sample": true, "top_p": 0.001})", R"({"do_sample": false, "top_k": 1})"}) {
    const SamplingDefaults defaults = defaults_of(file);
    EXPECT_EQ(resolved(defaults, {}).temperature, 0) << file;
    const engine::SamplingParams params = resolved(defaults, {.temperature = 0.8});
    EXPECT_EQ(params.temperature, 0.8) << file;
    EXPECT_EQ(params.top_k, 0) << file;
    EXPECT_EQ(params.top_p, 1) << file;
  }
}

TEST(Sampling, naming_top_p_alone_samples_at_temperature_1_under_a_greedy_file) {
  const engine::SamplingParams params = resolved(defaults_of("{}"), {.top_p = 0.9});
  EXPECT_EQ(params.temperature, 1.0);
  EXPECT_EQ(params.top_p, 0.9);
}

TEST(Sampling, ranges_are_checked_with_the_name_and_the_value) {
  for (const auto& [fields, name] : std::initializer_list<std::pair<SamplingFields, const char*>>{{{.temperature = -0.5}, "temperature"},
                                                                                                  {{.top_p = 1.5}, "top_p"},
                                                                                                  {{.min_p = -1.0}, "min_p"},
                                                                                                  {{.repetition_penalty = 0.0}, "repetition_penalty"},
                                                                                                  {{.presence_penalty = 3.0}, "presence_penalty"},
                                                                                                  {{.top_k = -5}, "top_k"},
                                                                                                  {{.max_tokens = 0}, "max_tokens"},
                                                                                                  {{.max_tokens = -3}, "max_tokens"}}) {
    const Result<engine::SamplingParams> params = resolve_sampling({}, fields);
    ASSERT_FALSE(params) << name;
    EXPECT_EQ(params.error().code, Code::kInvalidArgument);
    EXPECT_THAT(params.error().message, HasSubstr(name));
  }
}

TEST(Sampling, a_file_with_a_wrong_type_is_named) {
  const Json config = Json::parse(R"({"do_sample": true, "top_k": "many"})");
  const Result<SamplingDefaults> defaults = sampling_defaults(&config);
  ASSERT_FALSE(defaults);
  EXPECT_EQ(defaults.error().code, Code::kCorrupt);
  EXPECT_EQ(defaults.error().message, "generation_config.json: \"top_k\" must be an integer, but is \"many\"");
}

TEST(Sampling, settings_that_nothing_honours_are_said) {
  EXPECT_THAT(defaults_of(R"({"num_beams": 4, "typical_p": 1.0, "bad_words_ids": [[5]], "no_repeat_ngram_size": 3})").notes,
              testing::UnorderedElementsAre(HasSubstr("num_beams to 4"), HasSubstr("no_repeat_ngram_size to 3"), HasSubstr("bad_words_ids")));
  EXPECT_TRUE(defaults_of(R"({"num_beams": 1, "typical_p": 1.0})").notes.empty());
}

}  // namespace
}  // namespace inflight::api
