// Rotary frequencies against transformers' answers (values from its modeling_rope_utils).
#include "nn/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace inflight::nn {
namespace {

using testing::HasSubstr;

Result<Rope> parse(const Json& config, std::int64_t head_dim, std::int64_t max_positions) { return Rope::parse({&config, "config.json"}, head_dim, {}, max_positions); }

TEST(Rope, default_frequencies) {
  const Rope rope = parse({{"rope_theta", 10000.0}}, 4, 2048).value();
  const auto inverse = rope.inverse_frequencies(1);
  EXPECT_FLOAT_EQ(inverse[0], 1.0f);
  EXPECT_FLOAT_EQ(inverse[1], 0.01f);
  float cos[2], sin[2];
  rope.angles(3, 4, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], std::cos(3.0f));
  EXPECT_FLOAT_EQ(sin[1], std::sin(0.03f));
}

TEST(Rope, llama3_divides_each_pair_as_the_reference) {
  // theta 500000, dim 64, factor 32, low 1, high 4, original 8192: pairs 0-14 unchanged, 15 / 1.6513, 16 / 3.2923, 17 / 9.6667, 18-31 / 32.
  const Json scaled = {{"rope_theta", 500000.0},
                       {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 32.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}}}};
  const auto inverse = parse(scaled, 64, 131072).value().inverse_frequencies(1);
  const auto plain = parse({{"rope_theta", 500000.0}}, 64, 131072).value().inverse_frequencies(1);
  for (std::size_t i = 0; i < 32; ++i) {
    const double expected = i < 15 ? 1 : i == 15 ? 1.6513 : i == 16 ? 3.2923 : i == 17 ? 9.6667 : 32;
    EXPECT_NEAR(plain[i] / inverse[i], expected, 5e-5 * expected) << "pair " << i;
  }
  EXPECT_EQ(parse(scaled, 64, 131072).value().max_positions(), 131072);
}

TEST(Rope, dynamic_base_grows_with_the_length_and_not_below_the_maximum) {
  // base 10000, dim 128, factor 2, max 4096: 10000 up to 4096 tokens, 30527.7 at 8192, 72195.9 at 16384.
  const Rope rope = parse({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}, 128, 4096).value();
  const auto base_at = [&](std::int64_t length) { return std::pow(static_cast<double>(rope.inverse_frequencies(length)[1]), -64.0); };
  EXPECT_NEAR(base_at(1), 10000, 1);
  EXPECT_NEAR(base_at(4096), 10000, 1);
  EXPECT_NEAR(base_at(8192), 30527.7, 3);
  EXPECT_NEAR(base_at(16384), 72195.9, 8);
  EXPECT_EQ(rope.max_positions(), 8192);
}

TEST(Rope, yarn_attention_factor) {
  const auto factor = [](Json scaling, std::int64_t max) {
    scaling["rope_type"] = "yarn";
    return parse({{"rope_scaling", scaling}}, 64, max).value().attention_factor();
  };
  EXPECT_NEAR(factor({{"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 4096}}, 163840), 1.0, 1e-6);
  EXPECT_NEAR(factor({{"factor", 40.0}, {"mscale", 0.707}, {"mscale_all_dim", 0.707}, {"original_max_position_embeddings", 4096}}, 163840), 1.0, 1e-6);
  EXPECT_NEAR(factor({{"factor", 4.0}, {"original_max_position_embeddings", 32768}}, 32768), 1.138629, 1e-6);
  EXPECT_NEAR(factor({{"factor", 4.0}, {"attention_factor", 1.5}}, 32768), 1.5, 1e-6);
  // Qwen2.5 writes an unscaled maximum beside the factor; DeepSeek a scaled one. Neither is multiplied twice.
  EXPECT_EQ(parse({{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}}, 64, 32768).value().max_positions(), 131072);
  EXPECT_EQ(parse({{"rope_scaling", {{"type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 4096}}}}, 64, 163840).value().max_positions(), 163840);
}

TEST(Rope, yarn_score_factor) {
  const auto factor = [](Json scaling) {
    scaling.update({{"type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 4096}});
    return parse({{"rope_scaling", scaling}}, 64, 163840).value().score_factor();
  };
  EXPECT_NEAR(factor({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1.873854, 1e-6);
  EXPECT_NEAR(factor({{"mscale", 0.707}, {"mscale_all_dim", 0.707}}), 1.589626, 1e-6);
  EXPECT_NEAR(factor({{"mscale_all_dim", 1.0}}), 1.873854, 1e-6);
  EXPECT_EQ(factor(Json::object()), 1);
  EXPECT_EQ(factor({{"mscale", 1.0}}), 1);
  EXPECT_EQ(parse({{"rope_theta", 10000.0}}, 64, 4096).value().score_factor(), 1);
}

TEST(Rope, linear_divides_every_frequency_and_multiplies_the_context) {
  const Rope rope = parse({{"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 10000.0}}}}, 8, 2048).value();
  EXPECT_FLOAT_EQ(rope.inverse_frequencies(1)[0], 0.25f);
  EXPECT_EQ(rope.max_positions(), 8192);
}

TEST(Rope, both_config_styles_and_the_nested_value_wins) {
  const auto theta = [](const Json& config) { return std::pow(static_cast<double>(parse(config, 64, 2048).value().inverse_frequencies(1)[1]), -32.0); };
  EXPECT_NEAR(theta({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}), 1e6, 200);
  EXPECT_NEAR(theta({{"rope_theta", 1e6}, {"rope_scaling", nullptr}}), 1e6, 200);
  EXPECT_NEAR(theta({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}), 1e6, 200);
  EXPECT_NEAR(theta(Json::object()), 1e4, 2);  // the architecture's default
}

TEST(Rope, partial_rotary_and_refusals) {
  EXPECT_EQ(parse({{"partial_rotary_factor", 0.5}}, 64, 2048).value().rotary_dim(), 32);
  EXPECT_THAT(parse({{"rope_scaling", {{"rope_type", "su"}}}}, 64, 2048).error().message, HasSubstr("\"su\""));
  EXPECT_THAT(parse({{"rope_scaling", {{"rope_type", "linear"}}}}, 64, 2048).error().message, HasSubstr("factor"));
  EXPECT_THAT(parse({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}}}, 64, 2048).error().message, HasSubstr("at least 1"));
  EXPECT_THAT(parse({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"short_factor", 1}}}}, 64, 2048).error().message, HasSubstr("short_factor"));
  EXPECT_FALSE(parse({{"rope_theta", -1.0}}, 64, 2048));
  EXPECT_FALSE(parse({{"partial_rotary_factor", 0.1}}, 10, 2048));
}

}  // namespace
}  // namespace inflight::nn
