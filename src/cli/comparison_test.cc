#include "cli/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "cli/comparison_page.h"
#include "cli/token_text.h"

namespace inflight::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

Comparison two_models() {
  const std::vector<std::pair<std::string, std::string>> facts = {{"weights", "wint4"}};
  return {.model = {.name = "m<1>", .facts = facts, .nats = std::log(8.0)},
          .reference = {.name = "m", .facts = facts, .nats = std::log(4.0)},
          .data = "text & more",
          .mode = "prefill",
          .windows = 2,
          .window = 3,
          .kl = {0.5, 0, 0.25, 0.25},
          .same_top = 3,
          .worst = {{.window = 1, .position = 2, .kl = 0.5, .before = "so\n", .id = 7, .text = "</script><script>alert(1)</script> and on", .p = 0.125, .reference_p = 0.25,
                     .model = {.id = 8, .text = "\x1b[2J", .p = 0.5}, .reference = {.id = 9, .text = "\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2", .p = 1}}},
          .layers = {{.signal = 1, .noise = 0}, {.signal = 1000, .noise = 1}, {.signal = 100, .noise = 1}, {.signal = 1000, .noise = 10}}};
}

TEST(Comparison, is_json_with_every_number) {
  const OrderedJson json = comparison_json(two_models());
  EXPECT_DOUBLE_EQ(json["kl_mean"].get<double>(), 0.25);
  EXPECT_DOUBLE_EQ(json["kl_p99"].get<double>(), 0.4925);  // np.percentile([0, 0.25, 0.25, 0.5], 99)
  EXPECT_DOUBLE_EQ(json["kl_max"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["top1"].get<double>(), 0.75);
  EXPECT_EQ(json["tokens"], 4);
  EXPECT_DOUBLE_EQ(json["reference_nats_per_token"].get<double>(), std::log(4.0));
  EXPECT_DOUBLE_EQ(json["reference_perplexity"].get<double>(), 4);
  const OrderedJson& layers = json["layer_sqnr_db"];
  ASSERT_EQ(layers.size(), 4u);
  EXPECT_TRUE(layers[0].is_null());  // no noise at all has no number
  EXPECT_DOUBLE_EQ(layers[1].get<double>(), 30);
  EXPECT_DOUBLE_EQ(layers[2].get<double>(), 20);
  const OrderedJson& token = json["worst"][0];
  EXPECT_EQ(token["window"], 1);
  EXPECT_EQ(token["position"], 2);
  EXPECT_EQ(token["before"], "so\n");
  EXPECT_EQ(token["expected"]["text"], "\x1b[2J");
  EXPECT_EQ(token["reference_expected"]["id"], 9);
  EXPECT_EQ(token["reference_p"], 0.25);
}

TEST(Comparison, without_the_same_layers_has_no_such_key_and_says_why) {
  Comparison comparison = two_models();
  comparison.layers.clear();
  EXPECT_FALSE(comparison_json(comparison).contains("layer_sqnr_db"));
  EXPECT_THAT(comparison_text(comparison), HasSubstr("not compared, the two have other layers"));
  EXPECT_THAT(comparison_page(comparison), HasSubstr("Not compared: the two have other layers"));
}

TEST(Comparison, finds_the_layer_that_loses_most) {
  EXPECT_EQ(largest_drop(two_models().layers), 1);  // from 30 to 20 dB; the step from no noise at all does not count
  EXPECT_EQ(largest_drop({{.signal = 1, .noise = 1}, {.signal = 4, .noise = 1}}), -1);
  EXPECT_EQ(largest_drop({}), -1);
}

TEST(Comparison, in_words_fits_80_columns_and_moves_no_cursor) {
  Comparison comparison = two_models();
  for (int i = 0; i < 60; ++i) comparison.layers.push_back({.signal = 1e12, .noise = 1});
  comparison.windows = 100'000;
  const std::string text = comparison_text(comparison);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80u) << line;
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("same first choice: 75.00 % of 4 tokens"));
  EXPECT_THAT(text, HasSubstr("Most is lost in layer 1: 10.0 dB."));
  EXPECT_THAT(text, HasSubstr("mean 0.25, 99th percentile 0.4925, largest 0.5"));
}

TEST(Comparison, page_takes_nothing_from_elsewhere_and_no_text_for_markup) {
  const std::string page = comparison_page(two_models());
  EXPECT_THAT(page, HasSubstr("<title>Accuracy of m&lt;1&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("text &amp; more"));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(1)"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  for (const char* foreign : {"<script", "http:", "https:", "src=", "@import", "url(", "\x1b", "nan", "inf<"}) EXPECT_THAT(page, Not(HasSubstr(foreign))) << foreign;
}

TEST(Comparison, page_is_whole_when_nothing_differs) {
  Comparison comparison = two_models();
  comparison.kl = {0, 0};
  comparison.worst.clear();
  comparison.layers = {{.signal = 1, .noise = 0}, {.signal = 1, .noise = 0}};
  const std::string page = comparison_page(comparison);
  EXPECT_THAT(page, HasSubstr("no difference at all"));
  EXPECT_THAT(page, HasSubstr("no token has any divergence"));
  EXPECT_THAT(page, HasSubstr("</html>"));
  for (const char* bad : {"nan", "NaN", "inf"}) EXPECT_THAT(page, Not(HasSubstr(bad))) << bad;
}

}  // namespace
}  // namespace inflight::cli
