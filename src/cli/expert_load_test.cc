#include "cli/expert_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/inspect_eplb.h"

namespace inflight::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertLoad, is_read_as_it_is_written) {
  const params::ExpertLoads loads = {{0, 0, 0}, {5, 0, 7}};
  EXPECT_EQ(expert_load_json(loads), "{\"layers\":[[0,0,0],[5,0,7]]}\n");
  EXPECT_EQ(parse_expert_load(expert_load_json(loads), "f").value(), loads);
}

TEST(ExpertLoad, bad_files_say_where) {
  const auto message = [](std::string_view text) {
    const auto loads = parse_expert_load(text, "load.json");
    return loads ? std::string("no error") : loads.error().message;
  };
  EXPECT_THAT(message("[[1]]"), HasSubstr("load.json: must be an object with \"layers\""));
  EXPECT_THAT(message("{\"layers\": []}"), HasSubstr("must be an object with \"layers\""));
  EXPECT_THAT(message("{\"layers\": [[1], 2]}"), HasSubstr("load.json: layer 1 must be a list of numbers, but is 2"));
  EXPECT_THAT(message("{\"layers\": [[1, 2], [3]]}"), HasSubstr("layer 1 has 1 experts, layer 0 has 2"));
  EXPECT_THAT(message("{\"layers\": [[1, -2]]}"), HasSubstr("layer 0 has -2 where a number of tokens belongs"));
  EXPECT_THAT(message("{\"layers\": [[1, 2.5]]}"), HasSubstr("2.5"));
  EXPECT_THAT(message("{\"layers\": [[1e300]]}"), HasSubstr("1e+300"));
  EXPECT_THAT(message("{\"layers\": [[18446744073709551615]]}"), HasSubstr("18446744073709551615"));
}

TEST(BalanceReport, says_the_heaviest_rank_before_and_after) {
  // Expert 0 has most of it: two replicas halve that.
  const BalanceReport report = balance_report({{0, 0}, {90, 10}}, {.ranks = 2, .redundant = 2}).value();
  ASSERT_EQ(report.layers.size(), 1u);
  EXPECT_EQ(report.layers[0].layer, 1);
  EXPECT_THAT(report.layers[0].before, ElementsAre(90, 10));
  EXPECT_THAT(report.layers[0].after, ElementsAre(60, 40));  // three replicas of 30 and one of 10, two on each rank
  const OrderedJson json = balance_json(report);
  EXPECT_DOUBLE_EQ(json["before"].get<double>(), 1.8);
  EXPECT_DOUBLE_EQ(json["after"].get<double>(), 1.2);
  EXPECT_EQ(json["layers"][0]["routed"], 100);
  EXPECT_THAT(balance_text(report), HasSubstr("    1           100     1.800     1.200\n  all                   1.800     1.200\n"));
}

TEST(BalanceReport, without_redundant_experts_that_do_not_divide_there_is_no_before) {
  const BalanceReport report = balance_report({{1, 2, 3}}, {.ranks = 2, .redundant = 1}).value();
  EXPECT_TRUE(balance_json(report)["before"].is_null());
  EXPECT_THAT(balance_text(report), HasSubstr("3 experts do not divide over 2 ranks"));
  EXPECT_THAT(balance_report({{0, 0}}, {.ranks = 2}).error().message, HasSubstr("no token was counted"));
}

}  // namespace
}  // namespace inflight::cli
