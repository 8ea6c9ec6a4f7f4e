// Which numbers of ranks a model can be cut over: those that its sizes allow give one rank's and the reference's numbers, the others are refused with the sizes and the nearest counts that work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "checkpoint/read_tensor.h"
#include "engine/compare_for_test.h"
#include "engine/greedy_for_test.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/tiny_models_for_test.h"
#include "params/partition.h"

namespace inflight::engine {
namespace {

using checkpoint::read_named_f32;
using checkpoint::read_named_i64;
using testing::AllOf;
using testing::HasSubstr;

// Rows, or columns, of a tensor in another order; -1: zeros.
void take(TestFolder::Tensor& tensor, const std::vector<std::int64_t>& order, bool columns = false) {
  const std::int64_t rows = columns ? tensor.shape[0] : 1, old = columns ? tensor.shape[1] : tensor.shape[0];
  const std::size_t size = tensor.data.size() / static_cast<std::size_t>(rows * old);
  std::string data;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const std::int64_t from : order) data += from < 0 ? std::string(size, '\0') : tensor.data.substr(static_cast<std::size_t>(row * old + from) * size, size);
  tensor.data = std::move(data);
  tensor.shape[columns ? 1 : 0] = static_cast<std::int64_t>(order.size());
}

// Each unit's own members: {1, 0} of 2 is {2, 3, 0, 1}.
std::vector<std::int64_t> members(const std::vector<int>& units, std::int64_t unit) {
  std::vector<std::int64_t> order;
  for (const int u : units)
    for (std::int64_t i = 0; i < unit; ++i) order.push_back(u * unit + i);
  return order;
}

std::vector<std::int64_t> padded(std::int64_t old, std::int64_t size) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < size; ++i) order.push_back(i < old ? i : -1);
  return order;
}

// A tiny model of other sizes that gives the same logits: heads are there once or twice (then o_proj takes half of each), new channels are zeros, new experts are never chosen.
struct Wide {
  std::string label, source;
  std::vector<int> query, kv;              // which head of the source each head is
  std::int64_t intermediate = 0, expert_intermediate = 0;  // 0: the source's
  std::vector<int> experts = {};           // -1: a new one; {}: the source's
  std::vector<int> ranks = {};             // 1 to 8, that can share it
  bool same = true;                        // as the source; else some heads are left out
};
void PrintTo(const Wide& wide, std::ostream* out) { *out << wide.label; }

TestFolder folder_of(const Wide& wide) {
  TestFolder folder = TestFolder::read(tiny(wide.source));
  Json& config = folder.config;
  const bool latent = config.contains("kv_lora_rank");
  const std::int64_t head = latent ? 0 : config["head_dim"].get<std::int64_t>();
  const std::int64_t nope = latent ? config["qk_nope_head_dim"].get<std::int64_t>() : 0, rope = latent ? config["qk_rope_head_dim"].get<std::int64_t>() : 0, value = latent ? config["v_head_dim"].get<std::int64_t>() : head;
  std::map<std::string, TestFolder::Tensor> tensors;
  for (auto& [name, original] : folder.tensors) {
    TestFolder::Tensor tensor = original;
    const auto is = [&](const std::string& part) { return name.find(part) != std::string::npos; };
    if (is(".q_proj.")) take(tensor, members(wide.query, head));
    if (is(".k_proj.") || is(".v_proj.")) take(tensor, members(wide.kv, head));
    if (is(".q_b_proj.")) take(tensor, members(wide.query, nope + rope));
    if (is(".kv_b_proj.")) take(tensor, members(wide.query, nope + value));
    if (is(".o_proj.weight")) {
      take(tensor, members(wide.query, value), true);
      for (std::int64_t row = 0; row < tensor.shape[0]; ++row)
        for (std::size_t h = 0; h < wide.query.size(); ++h)
          for (std::int64_t i = 0; i < value && std::ranges::count(wide.query, wide.query[h]) == 2; ++i) {
            char* at = &tensor.data[static_cast<std::size_t>(row * tensor.shape[1] + static_cast<std::int64_t>(h) * value + i) * 2];
            std::uint16_t bits;
            std::memcpy(&bits, at, 2);
            bits = float_to_bf16(bf16_to_float(bits) / 2);
            std::memcpy(at, &bits, 2);
          }
    }
    const bool down = is(".down_proj.weight"), up = is(".gate_proj.") || is(".up_proj."), of_experts = is("experts.");
    const std::int64_t wanted = of_experts ? wide.expert_intermediate : wide.intermediate;
    if ((down || up) && wanted != 0) take(tensor, padded(tensor.shape[down ? 1 : 0], wanted), down);
    if (!wide.experts.empty() && is(".mlp.gate.")) {
      std::vector<std::int64_t> order;
      for (const int e : wide.experts) order.push_back(std::max(e, 0));
      take(tensor, order);
      const float never = -1e9f;
      for (std::size_t e = 0; e < order.size() && is("e_score_correction_bias"); ++e)
        if (wide.experts[e] < 0) std::memcpy(&tensor.data[e * 4], &never, 4);
    }
    const std::size_t number = name.find(".experts.");
    if (wide.experts.empty() || number == std::string::npos) {
      tensors.emplace(name, std::move(tensor));
      continue;
    }
    const std::size_t begin = number + std::strlen(".experts."), end = name.find('.', begin);
    const int expert = std::stoi(name.substr(begin, end - begin));
    for (std::size_t e = 0; e < wide.experts.size(); ++e)
      if (std::max(wide.experts[e], 0) == expert) tensors.emplace(name.substr(0, begin) + std::to_string(e) + name.substr(end), tensor);
  }
  folder.tensors = std::move(tensors);
  config["num_attention_heads"] = wide.query.size();
  config["num_key_value_heads"] = latent ? wide.query.size() : wide.kv.size();
  if (wide.intermediate != 0) config["intermediate_size"] = wide.intermediate;
  if (wide.expert_intermediate != 0) config["moe_intermediate_size"] = wide.expert_intermediate;
  if (!wide.experts.empty()) config["n_routed_experts"] = wide.experts.size();
  return folder;
}

const std::vector<Wide>& wides() {
  static const std::vector<Wide> all = {
      {.label = "llama_6_heads_3_kv", .source = "tiny-llama", .query = {0, 1, 2, 3, 2, 3}, .kv = {0, 1, 1}, .ranks = {1, 3, 6}},
      {.label = "llama_6_heads_2_kv", .source = "tiny-llama", .query = {0, 1, 1, 2, 3, 3}, .kv = {0, 1}, .ranks = {1, 2, 6}},
      {.label = "llama_8_heads_2_kv", .source = "tiny-llama", .query = {0, 0, 1, 1, 2, 2, 3, 3}, .kv = {0, 1}, .ranks = {1, 2, 4, 8}},
      {.label = "llama_3_heads_1_kv", .source = "tiny-llama", .query = {0, 2, 3}, .kv = {1}, .ranks = {1, 3}, .same = false},
      {.label = "llama_odd_6_heads_3_kv", .source = "tiny-llama-odd", .query = {0, 1, 2, 3, 2, 3}, .kv = {0, 1, 1}, .intermediate = 102, .ranks = {1, 3, 6}},
      {.label = "qwen3_moe_8_heads_4_kv", .source = "tiny-qwen3-moe", .query = {0, 1, 0, 1, 2, 3, 2, 3}, .kv = {0, 0, 1, 1}, .ranks = {1, 2, 4, 8}},
      {.label = "glm4_moe_6_heads_3_kv", .source = "tiny-glm4-moe", .query = {0, 1, 2, 3, 2, 3}, .kv = {0, 1, 1}, .intermediate = 192, .experts = {0, 1, 2, -1, 3, 4, 5, -1, -1, 6, -1, 7}, .ranks = {1, 3, 6}},
      {.label = "deepseek_v3_6_heads", .source = "tiny-deepseek-v3", .query = {0, 1, 2, 3, 0, 3}, .kv = {}, .intermediate = 192, .expert_intermediate = 96, .experts = {0, 1, -1, 2, -1, 3, -1, 4, 5, 6, 7, -1}, .ranks = {1, 2, 3, 6}},
      {.label = "deepseek_v3_8_heads", .source = "tiny-deepseek-v3", .query = {0, 0, 1, 1, 2, 2, 3, 3}, .kv = {}, .ranks = {1, 2, 4, 8}},
  };
  return all;
}

class WideModels : public testing::TestWithParam<Wide> {};

TEST_P(WideModels, give_the_numbers_of_one_rank_and_of_the_reference_on_every_count_that_suits) {
  const Wide& wide = GetParam();
  const std::string golden = tiny(wide.source) + "/golden.safetensors";
  const ScratchFolder scratch;
  const std::string folder = scratch.at("wide");
  folder_of(wide).write(folder);
  const ModelPlan plan = plan_model(folder, {}).value();
  const bool experts = plan.info.experts != 0;
  EXPECT_EQ(params::rank_counts(plan.table, false, 8), wide.ranks);
  if (experts) {
    EXPECT_EQ(params::rank_counts(plan.table, true, 8), wide.ranks);
  }
  const std::vector<std::int64_t> prompts[] = {read_named_i64(golden, "prompt.0").value(), read_named_i64(golden, "prompt.1").value()};
  for (const std::string quantization : {"", "wint8", "wint4-g32", "tensor_wise_fp8"}) {
    const auto one = open_model(folder, ranked_options(1, quantization));
    ASSERT_TRUE(one) << one.error().message;
    for (const int n : wide.ranks)
      for (const bool expert_parallel : {false, true}) {
        if (expert_parallel && (!experts || n == 1)) continue;
        SCOPED_TRACE(fmt::format("{} over {} ranks{}", quantization.empty() ? "as stored" : quantization, n, expert_parallel ? ", whole experts" : ""));
        RankedModel model(n, folder, ranked_options(n, quantization, expert_parallel));
        ASSERT_TRUE(model.opened) << model.opened.error().message;
        for (std::size_t i = 0; i < 2; ++i) {
          const auto got = logits_of(**model.opened, prompts[i], /*decode=*/i == 1);
          expect_close(got.data(), 512, logits_of(**one, prompts[i], i == 1), 512, fmt::format("prompt {} against one rank", i));
          if (HasFatalFailure()) return;
          if (!quantization.empty() || !wide.same) continue;
          expect_close(got.data(), 512, read_named_f32(golden, fmt::format("logits.{}", i)).value(), 512, fmt::format("prompt {} against the reference", i));
          if (HasFatalFailure()) return;
        }
        if (n == wide.ranks.back() && quantization.empty() && wide.same) {
          EXPECT_GT(expect_greedy(std::move(*model.opened), ranked_options(n, quantization, expert_parallel), golden), 10u);
        }
        expect_fine(model);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, WideModels, testing::ValuesIn(wides()), [](const auto& test) { return test.param.label; });

// 40 ids are three runs of 16, 16 and 8; ranks after the third have none.
TEST(RankCounts, a_vocabulary_of_fewer_runs_than_ranks) {
  for (const Wide& wide : wides()) {
    if (wide.source != "tiny-llama") continue;
    TestFolder folder = folder_of(wide);
    folder.config["vocab_size"] = 40;
    for (auto& [name, tensor] : folder.tensors)
      if (tensor.shape[0] == 512) take(tensor, padded(40, 40));
    const ScratchFolder scratch;
    folder.write(scratch.at("short"));
    const auto one = open_model(scratch.at("short"), ranked_options(1, "wint8"));
    ASSERT_TRUE(one) << one.error().message;
    const std::vector<std::int64_t> ids = {0, 15, 16, 31, 32, 39, 7};
    for (const int n : wide.ranks) {
      SCOPED_TRACE(fmt::format("{} over {} ranks", wide.label, n));
      RankedModel model(n, scratch.at("short"), ranked_options(n, "wint8"));
      ASSERT_TRUE(model.opened) << model.opened.error().message;
      expect_close(logits_of(**model.opened, ids).data(), 40, logits_of(**one, ids), 40, "one rank");
      expect_fine(model);
    }
  }
}

// What a refusal proposes, of the counts that work.
std::string nearest(const std::vector<int>& works, int n) {
  const auto above = std::ranges::upper_bound(works, n);
  const int below = *(above - 1);
  return above == works.end() ? fmt::format("the nearest rank count that works is {}", below) : fmt::format("the nearest rank counts that work are {} and {}", below, *above);
}

// On every rank.
void expect_refused(const std::string& folder, int n, bool expert_parallel, const testing::Matcher<const std::string&>& message) {
  SCOPED_TRACE(fmt::format("{} over {} ranks{}", folder, n, expert_parallel ? ", whole experts" : ""));
  RankedModel model(n, folder, ranked_options(n, "wint8", expert_parallel));
  for (const auto& outcome : model.end()) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kUnsupported);
    EXPECT_THAT(outcome.error().message, message);
  }
}

TEST(RankCountsRefused, of_every_tiny_model_with_the_sizes_and_the_nearest_counts_that_work) {
  for (const TinyModel& tiny_model : tiny_models()) {
    SCOPED_TRACE(tiny_model.name);
    const ModelPlan plan = plan_model(tiny(tiny_model.name), {}).value();
    for (const bool expert_parallel : {false, true}) {
      if (expert_parallel && plan.info.experts == 0) continue;
      EXPECT_EQ(params::rank_counts(plan.table, expert_parallel, 16), tiny_model.ranks);
      for (const int n : {2, 3, 4, 5, 8}) {
        if (has(tiny_model.ranks, n)) continue;
        const std::string refused = tiny_model.name == "tiny-deepseek-v2" && n == 5 ? "48 inputs in units of 1" : tiny_model.refused;  // 5 heads, but not 5 parts of shared experts
        expect_refused(tiny(tiny_model.name), n, expert_parallel,
                       AllOf(HasSubstr(fmt::format("cannot be cut over {} ranks", n)), HasSubstr(fmt::format("{} do not divide over {} ranks", refused, n)), HasSubstr(nearest(tiny_model.ranks, n))));
      }
    }
  }
}

TEST(RankCountsRefused, of_heads_that_ranks_cannot_share) {
  const ScratchFolder scratch;
  for (const Wide& wide : wides()) {
    folder_of(wide).write(scratch.at(wide.label));
    for (const int n : {2, 3, 4, 5}) {
      if (has(wide.ranks, n)) continue;
      const std::string sizes = wide.label == "llama_6_heads_2_kv" && n == 3 ? "qkv_proj.weight: 2 heads cannot be shared by 3 ranks" : fmt::format("do not divide over {} ranks", n);
      expect_refused(scratch.at(wide.label), n, false, AllOf(HasSubstr(sizes), HasSubstr(nearest(wide.ranks, n))));
    }
  }
}

TEST(RankCountsRefused, of_experts_that_cannot_be_dealt) {
  const ScratchFolder scratch;
  Wide wide = *std::ranges::find(wides(), "glm4_moe_6_heads_3_kv", &Wide::label);
  wide.experts.pop_back();  // 11
  folder_of(wide).write(scratch.at("wide"));
  expect_refused(scratch.at("wide"), 3, true, AllOf(HasSubstr("experts.0.up_gate_proj.weight: 11 experts do not divide over 3 expert-parallel ranks"), HasSubstr("the nearest rank count that works is 1")));
}

// Groups of ranks: what is wrong is told of what was asked, and counts of groups are proposed where those alone do not suit.
void expect_groups_refused(const std::string& folder, int groups, int tensor_ranks, const testing::Matcher<const std::string&>& message) {
  SCOPED_TRACE(fmt::format("{} groups of {}", groups, tensor_ranks));
  EngineOptions options = ranked_options(tensor_ranks);
  options.data_parallel_size = groups;
  RankedModel model(groups * tensor_ranks, folder, options);
  for (const auto& outcome : model.end()) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kUnsupported);
    EXPECT_THAT(outcome.error().message, message);
  }
}

TEST(RankCountsRefused, of_groups_with_the_nearest_counts_of_groups) {
  expect_groups_refused(tiny("tiny-deepseek-v2"), 5, 1, AllOf(HasSubstr("cannot be cut over 5 groups of 1 rank:"), HasSubstr("12 experts do not divide over 5 expert-parallel ranks"),
                                                              HasSubstr("the nearest group counts (--data-parallel-size) that work are 4 and 6")));
  expect_groups_refused(tiny("tiny-qwen3-moe"), 3, 2, AllOf(HasSubstr("cannot be cut over 3 groups of 2 ranks:"), HasSubstr("8 experts do not divide over 6 expert-parallel ranks"),
                                                            HasSubstr("the nearest group counts (--data-parallel-size) that work are 2 and 4")));
  expect_groups_refused(tiny("tiny-qwen3-moe"), 2, 3, AllOf(HasSubstr("cannot be cut over 2 groups of 3 ranks:"), HasSubstr("o_proj.weight: 128 inputs in units of 32 do not divide over 3 ranks"),
                                                            HasSubstr("the nearest rank counts of a group (--tensor-parallel-size) that work are 2 and 4")));
  expect_groups_refused(tiny("tiny-qwen3-moe"), 3, 3, AllOf(HasSubstr("cannot be cut over 3 groups of 3 ranks:"), HasSubstr("no rank count of a group (--tensor-parallel-size) works")));
}

}  // namespace
}  // namespace inflight::engine
