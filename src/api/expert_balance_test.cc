// Experts of a model that was trained move between ranks by the loads of a real text. Ranks are threads here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/file.h"
#include "engine/compare_for_test.h"
#include "engine/engine.h"
#include "engine/expert_balancer.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "text/tokenizer.h"

namespace inflight {
namespace {

using ::testing::HasSubstr;

const std::string kFolder = std::string(INFLIGHT_TEST_DATA) + "/small-ernie4_5-moe";
constexpr int kRanks = 4;

std::vector<std::vector<std::int32_t>> windows_of_text(std::size_t count) {
  const std::string held_out = read_file(std::string(INFLIGHT_TEST_DATA) + "/text/heldout.txt").value();
  const std::vector<std::int32_t> ids = text::Tokenizer::load(kFolder).value().encode(held_out, false).value();
  std::vector<std::vector<std::int32_t>> windows;
  for (std::size_t w = 0; w < count; ++w) windows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(w * 256), ids.begin() + static_cast<std::ptrdiff_t>((w + 1) * 256));
  return windows;
}

engine::EngineOptions options_of(int groups, int tensor_ranks, int redundant, const std::string& quantization = "") {
  engine::EngineOptions options;
  options.quantization = quantization;
  options.compute = "fp32";
  options.threads = 1;
  options.data_parallel_size = groups;
  options.tensor_parallel_size = tensor_ranks;
  options.enable_expert_parallel = groups * tensor_ranks > 1;
  options.enable_eplb = redundant >= 0;
  options.redundant_experts = std::max(redundant, 0);
  return options;
}

// A model on ranks, and what each of them computed and holds.
struct Ranked {
  explicit Ranked(const engine::EngineOptions& options, const std::function<void(engine::OpenedModel&, int)>& followed = {}, const std::vector<int>& hosts = {})
      : rows(kRanks, std::vector<std::int64_t>(6)), opened(kRanks), model(kRanks, kFolder, options, [=, this](engine::OpenedModel& own, int rank) {
          watch(own, rank);
          if (followed) followed(own, rank);
        }, hosts) {
    if (model.opened) watch(**model.opened, 0);
  }
  void watch(engine::OpenedModel& own, int rank) {
    own.runtime->expert_rows = &rows[static_cast<std::size_t>(rank)];
    opened[static_cast<std::size_t>(rank)] = &own;
  }
  engine::OpenedModel& lead() { return **model.opened; }

  std::vector<std::vector<std::int64_t>> rows;  // [ranks][layers]
  std::vector<engine::OpenedModel*> opened;
  engine::RankedModel model;
};

std::vector<float> logits_of(engine::OpenedModel& opened, const std::vector<std::vector<std::int32_t>>& windows) {
  std::vector<float> all;
  for (const auto& window : windows) {
    const auto logits = engine::forward_once(opened, window).logits;
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// The heaviest rank over the mean, of rows that experts of each rank computed of the windows. Rank 0's forward() ends after the others have given their part of the last
// layer, which is when they have counted all.
double measured_imbalance(Ranked& ranked, const std::vector<std::vector<std::int32_t>>& windows) {
  const auto before = ranked.rows;
  logits_of(ranked.lead(), windows);
  std::vector<std::vector<double>> layers;
  for (std::size_t layer = 1; layer < 6; ++layer) {  // the first is dense
    auto& ranks = layers.emplace_back();
    for (std::size_t rank = 0; rank < kRanks; ++rank) ranks.push_back(static_cast<double>(ranked.rows[rank][layer] - before[rank][layer]));
    // Every pair of token and expert was computed by exactly one rank.
    EXPECT_EQ(std::accumulate(ranks.begin(), ranks.end(), 0.0), static_cast<double>(2 * 256 * windows.size())) << "layer " << layer;
  }
  return params::imbalance(layers);
}

// Bytes that a rank should use: what it would with that placement from the beginning.
std::int64_t expected_bytes(const engine::OpenedModel& opened) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) {
    const params::ParamSpec& row = opened.table.rows[i];
    const quant::Slot& slot = opened.plan.slots[i];
    if (row.expert >= 0 && !opened.topology.placement->on_rank(row.layer, row.expert, opened.topology.ep_rank)) continue;
    for (const std::int64_t part : {slot.bytes.codes, slot.bytes.scales, slot.bytes.offsets}) bytes += (part + 63) / 64 * 64;
  }
  return bytes;
}

struct Case {
  int groups, tensor_ranks, redundant;
  std::string quantization;
  std::vector<int> hosts = {};  // of the ranks; {}: one
};

class ExpertBalance : public testing::TestWithParam<Case> {};

TEST_P(ExpertBalance, the_heaviest_rank_gets_lighter_as_promised_and_logits_stay) {
  const auto& [groups, tensor_ranks, redundant, quantization, hosts] = GetParam();
  const auto windows = windows_of_text(8);
  const auto one = engine::open_model(kFolder, options_of(1, 1, -1, quantization)).value();
  const std::vector<float> expected = logits_of(*one, windows);
  Ranked ranked(options_of(groups, tensor_ranks, redundant, quantization), {}, hosts);
  ASSERT_TRUE(ranked.model.opened) << ranked.model.opened.error().message;
  const double measured_before = measured_imbalance(ranked, windows);
  engine::ExpertBalancer balancer(ranked.lead());
  const auto rebalanced = balancer.rebalance();
  ASSERT_TRUE(rebalanced) << rebalanced.error().message;
  EXPECT_GT(rebalanced->layers, 0);
  // A token's choice among replicas is by chance, so what was measured is near what was computed, not equal.
  EXPECT_NEAR(measured_before, rebalanced->before, 0.03);
  EXPECT_GT(rebalanced->before, 1.15);
  EXPECT_LT(rebalanced->after, 1.06);
  EXPECT_NEAR(measured_imbalance(ranked, windows), rebalanced->after, 0.05);
  engine::expect_close(logits_of(ranked.lead(), windows), expected);
  if (!hosts.empty()) {  // two: an expert and its replicas are on one of them
    const params::ExpertPlacement& placement = *ranked.lead().runtime->placement;
    for (std::int64_t layer = 1; layer < static_cast<std::int64_t>(placement.logical().size()); ++layer)  // the first is dense
      for (std::int64_t e = 0; e < placement.experts(); ++e)
        for (const std::int32_t replica : placement.replicas(layer, e)) EXPECT_EQ(placement.rank_of(replica) / 2, placement.rank_of(placement.replicas(layer, e)[0]) / 2) << "layer " << layer << ", expert " << e;
  }
  // Experts that left gave their memory back.
  for (const engine::OpenedModel* own : ranked.opened) EXPECT_EQ(own->store.weight_bytes(), expected_bytes(*own)) << "rank " << own->topology.ep_rank;
  // Nothing to gain a second time.
  measured_imbalance(ranked, windows);
  EXPECT_EQ(balancer.rebalance().value().layers, 0);
  for (const auto& outcome : ranked.model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
}

INSTANTIATE_TEST_SUITE_P(Small, ExpertBalance, testing::Values(Case{1, 4, 4, ""}, Case{1, 4, 8, "", {0, 0, 1, 1}}, Case{1, 4, 0, "wint8"}, Case{2, 2, 8, ""}, Case{4, 1, 4, "wint4-g32"}), [](const auto& test) {
  std::string name = fmt::format("{}_groups_of_{}_redundant_{}_{}{}", test.param.groups, test.param.tensor_ranks, test.param.redundant, test.param.quantization, test.param.hosts.empty() ? "" : "two_hosts");
  std::ranges::replace(name, '-', '_');
  return name;
});

// Rank 2 finds another folder than it was opened from.
void expect_kept(const std::string& folder, const std::string& why) {
  const auto windows = windows_of_text(2);
  Ranked ranked(options_of(1, 4, 4), [&](engine::OpenedModel& own, int rank) {
    if (rank == 2) own.folder = folder;
  });
  ASSERT_TRUE(ranked.model.opened) << ranked.model.opened.error().message;
  const std::vector<float> before = logits_of(ranked.lead(), windows);
  const auto placement = ranked.lead().runtime->placement;
  std::vector<std::int64_t> bytes;
  for (const engine::OpenedModel* own : ranked.opened) bytes.push_back(own->store.weight_bytes());
  engine::ExpertBalancer balancer(ranked.lead());
  const auto rebalanced = balancer.rebalance();
  ASSERT_FALSE(rebalanced);
  EXPECT_THAT(rebalanced.error().message, HasSubstr("rank 2 could not load experts"));
  EXPECT_THAT(rebalanced.error().message, HasSubstr(why));
  EXPECT_EQ(ranked.lead().runtime->placement, placement);
  EXPECT_EQ(logits_of(ranked.lead(), windows), before);  // bit for bit
  for (std::size_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranked.opened[rank]->store.weight_bytes(), bytes[rank]) << "rank " << rank;
  for (const auto& outcome : ranked.model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
}

TEST(ExpertBalanceFailure, a_cut_file_leaves_the_placement) {
  const engine::ScratchFolder scratch;
  const std::string folder = scratch.at("cut");
  std::filesystem::copy(kFolder, folder);
  std::filesystem::resize_file(folder + "/model.safetensors", std::filesystem::file_size(folder + "/model.safetensors") - 1000);
  expect_kept(folder, "model.safetensors");
}

TEST(ExpertBalanceFailure, numbers_that_are_none_leave_the_placement) {
  const engine::ScratchFolder scratch;
  engine::TestFolder changed = engine::TestFolder::read(kFolder);
  for (auto& [name, tensor] : changed.tensors)
    if (name.find("mlp.experts.") != std::string::npos) tensor.data.replace(tensor.data.size() - 2, 2, "\xff\x7f");
  changed.write(scratch.at("changed"));
  expect_kept(scratch.at("changed"), "weights must be finite");
}

TEST(ExpertBalanceEngine, places_experts_every_so_many_steps_beside_its_work) {
  const auto windows = windows_of_text(4);
  const auto answers = [&](std::unique_ptr<engine::OpenedModel> opened, const engine::EngineOptions& options, std::optional<Result<engine::Rebalanced>>& last) {
    auto engine = engine::Engine::create(std::move(opened), options).value();
    std::map<engine::RequestId, std::vector<std::int32_t>> tokens;
    for (const auto& window : windows) engine->submit({.prompt = {window.begin(), window.begin() + 40}, .sampling = {.temperature = 0, .max_tokens = 60, .ignore_eos = true}, .stop_ids = {}}).value();
    while (engine->has_work())
      for (const engine::Event& event : engine->step())
        if (event.token) tokens[event.request].push_back(*event.token);
    last = engine->last_rebalance();
    return tokens;
  };
  std::optional<Result<engine::Rebalanced>> last;
  auto options = options_of(1, 1, -1);
  options.kv_cache_bytes = 64 << 20;
  const auto expected = answers(engine::open_model(kFolder, options).value(), options, last);
  EXPECT_FALSE(last);
  for (const auto& [groups, tensor_ranks] : {std::pair(1, 4), std::pair(4, 1)}) {
    options = options_of(groups, tensor_ranks, 4);
    options.kv_cache_bytes = 64 << 20;
    options.eplb_interval = 5;
    Ranked ranked(options);
    ASSERT_TRUE(ranked.model.opened) << ranked.model.opened.error().message;
    const auto got = answers(*std::move(ranked.model.opened), options, last);
    ASSERT_TRUE(last);
    ASSERT_TRUE(*last) << last->error().message;
    EXPECT_GT((*last)->layers, 0);
    EXPECT_LT((*last)->after, (*last)->before);
    // Sums in another order: a near tie may turn another way, after which an answer is its own.
    std::size_t same = 0, all = 0;
    for (const auto& [id, tokens] : expected)
      for (std::size_t i = 0; i < tokens.size(); ++i, ++all) same += got.at(id)[i] == tokens[i];
    EXPECT_GE(same, all * 9 / 10);
    for (const auto& outcome : ranked.model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
  }
}

TEST(ExpertBalanceOptions, what_cannot_be_is_refused) {
  const auto message = [](int groups, int tensor_ranks, int redundant, const auto& change) {
    engine::EngineOptions options = options_of(groups, tensor_ranks, redundant);
    std::string folder = kFolder;
    change(options, folder);
    const auto outcomes = engine::run_ranks(groups * tensor_ranks, [&](std::shared_ptr<comm::Comm> comm, int) {
      const auto opened = engine::open_model(folder, options, {}, std::move(comm));
      return opened ? std::string("no error") : opened.error().message;
    });
    return outcomes[0];
  };
  EXPECT_THAT(message(1, 2, 3, [](auto&, auto&) {}), HasSubstr("--redundant-experts 3: 19 experts, replicas included, do not divide over 2 ranks"));
  EXPECT_THAT(message(1, 2, 2, [](auto& options, auto&) { options.enable_eplb = false; }), HasSubstr("--redundant-experts 2 needs --enable-eplb"));
  EXPECT_THAT(message(1, 2, 2, [](auto& options, auto&) { options.enable_expert_parallel = false; }), HasSubstr("add --enable-expert-parallel"));
  EXPECT_THAT(message(1, 2, 2, [](auto&, auto& folder) { folder = std::string(INFLIGHT_TEST_DATA) + "/tiny/tiny-qwen3"; }), HasSubstr("has no experts"));
  const auto one = engine::open_model(kFolder, options_of(1, 1, 4)).value();
  EXPECT_THAT(engine::ExpertBalancer(*one).rebalance().error().message, HasSubstr("on several ranks with --enable-eplb"));
}

}  // namespace
}  // namespace inflight
