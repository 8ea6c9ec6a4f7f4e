// Groups of ranks with sequences of their own, whose tokens travel to their experts, are the model of one rank. Ranks are threads here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "checkpoint/read_tensor.h"
#include "engine/engine.h"
#include "engine/rank_groups.h"
#include "engine/ranks_for_test.h"
#include "engine/tiny_models_for_test.h"
#include "models/model.h"

namespace inflight::engine {
namespace {

using ::testing::ElementsAre;

EngineOptions options_of(int groups, int tensor_ranks) {
  EngineOptions options;
  options.lm_head = "bf16";
  options.compute = "fp32";
  options.threads = 1;
  options.data_parallel_size = groups;
  options.tensor_parallel_size = tensor_ranks;
  return options;
}

// Whole prompts side by side in one step; the last `decode` prompts take the decode arithmetic. [tokens of all, vocabulary], and hidden states.
struct Outputs {
  std::vector<float> logits, hidden;
};
Outputs forward(OpenedModel& opened, const std::vector<std::vector<std::int32_t>>& prompts, std::size_t decode) {
  const models::ModelInfo& info = opened.model->info();
  const std::int64_t stride = opened.model->logits_stride(), blocks = 12;
  const auto cache = create_cache(opened, info.kv_shape(16, DType::kF32), blocks * static_cast<std::int64_t>(prompts.size())).value();
  std::vector<std::int32_t> ids, positions, rows, table;
  std::vector<nn::Span> spans;
  for (std::int64_t b = cache->blocks() - 1; b >= 0; --b) table.push_back(static_cast<std::int32_t>(b));
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    spans.push_back({.first = static_cast<std::int64_t>(ids.size()), .count = static_cast<std::int64_t>(prompts[p].size()), .block_table = table.data() + static_cast<std::int64_t>(p) * blocks,
                     .rope_length = p < decode ? 0 : static_cast<std::int64_t>(prompts[p].size())});
    for (std::size_t t = 0; t < prompts[p].size(); ++t) {
      rows.push_back(static_cast<std::int32_t>(ids.size()));
      ids.push_back(prompts[p][t]);
      positions.push_back(static_cast<std::int32_t>(t));
    }
  }
  std::int64_t decode_tokens = 0;
  for (std::size_t p = 0; p < decode; ++p) decode_tokens += static_cast<std::int64_t>(prompts[p].size());
  std::vector<float> padded(rows.size() * static_cast<std::size_t>(stride));
  Outputs result{.logits = {}, .hidden = std::vector<float>(ids.size() * static_cast<std::size_t>((info.layers + 1) * info.hidden))};
  opened.model->forward({.ids = ids, .positions = positions, .spans = spans, .decode_tokens = decode_tokens, .logit_rows = rows, .cache = cache.get(), .logits = padded.data(), .hidden = result.hidden.data()},
                        *opened.runtime);
  for (std::size_t r = 0; r < rows.size(); ++r) result.logits.insert(result.logits.end(), padded.begin() + static_cast<std::ptrdiff_t>(r) * stride, padded.begin() + static_cast<std::ptrdiff_t>(r) * stride + info.vocabulary);
  return result;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float part, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  float most = 0;
  for (const float v : want) most = std::max(most, std::fabs(v));
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_LE(std::fabs(got[i] - want[i]), part * most) << what << ", number " << i << ": got " << got[i] << ", reference " << want[i];
}

class DataParallel : public testing::TestWithParam<std::string> {};

TEST_P(DataParallel, logits_and_hidden_states_are_those_of_the_reference) {
  const std::string folder = tiny(GetParam()), golden = tiny_model(GetParam()).reference();
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<float> reference;
  for (int i = 0; i < 3; ++i) {
    const auto prompt = checkpoint::read_named_i64(golden, "prompt." + std::to_string(i));
    if (!prompt) break;
    prompts.emplace_back(prompt->begin(), prompt->end());
    const auto logits = checkpoint::read_named_f32(golden, "logits." + std::to_string(i)).value();
    reference.insert(reference.end(), logits.begin(), logits.end());
  }
  ASSERT_FALSE(prompts.empty());
  const auto one = open_model(folder, options_of(1, 1)).value();
  const auto expected = forward(*one, prompts, 1);
  const std::int64_t experts = one->model->info().experts;
  for (const auto& [groups, tensor_ranks] : {std::pair(2, 1), std::pair(2, 2), std::pair(4, 1), std::pair(3, 1)})
    for (const auto travel : {nn::Runtime::Travel::kToExperts, nn::Runtime::Travel::kToAll}) {
      SCOPED_TRACE(testing::Message() << groups << " groups of " << tensor_ranks << (travel == nn::Runtime::Travel::kToExperts ? ", all-to-all" : ", all-gather"));
      RankedModel model(groups * tensor_ranks, folder, options_of(groups, tensor_ranks), [=](OpenedModel& opened, int) { opened.runtime->travel = travel; });
      if (!has(tiny_model(GetParam()).ranks, tensor_ranks) || experts % (groups * tensor_ranks) != 0) {
        ASSERT_FALSE(model.opened);
        EXPECT_THAT(model.opened.error().message, testing::HasSubstr("cannot be cut over " + std::to_string(groups) + " groups"));
        continue;
      }
      ASSERT_TRUE(model.opened) << model.opened.error().message;
      EXPECT_EQ((*model.opened)->runtime->expert_ranks != nullptr, experts > 0);
      (*model.opened)->runtime->travel = travel;
      const auto got = forward(**model.opened, prompts, 1);
      expect_close(got.logits, reference, 2e-4f, "logits of the reference");
      expect_close(got.logits, expected.logits, 2e-5f, "logits of one rank");
      expect_close(got.hidden, expected.hidden, 2e-5f, "hidden states of one rank");
      // One sequence alone: all groups but one have no work, and still serve their experts.
      const auto alone = forward(**model.opened, {prompts[0]}, 0);
      expect_close(alone.logits, {reference.begin(), reference.begin() + static_cast<std::ptrdiff_t>(alone.logits.size())}, 2e-4f, "logits of a sequence alone");
      for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
    }
}

INSTANTIATE_TEST_SUITE_P(Tiny, DataParallel, testing::ValuesIn(tiny_names(/*cut=*/false)), [](const auto& test) { return test_label(test.param); });

// Greedy answers of requests that come at different times, on a cache that is too small for all: some are preempted.
std::map<RequestId, std::vector<std::int32_t>> answers(std::unique_ptr<OpenedModel> opened, EngineOptions options, std::int64_t& preemptions) {
  options.max_num_batched_tokens = 24;
  options.max_num_seqs = 6;
  options.block_size = 16;
  options.kv_cache_bytes = 9 * 16 * opened->model->info().kv_shape(16, DType::kF32).token_bytes();
  auto engine = Engine::create(std::move(opened), options).value();
  std::map<RequestId, std::vector<std::int32_t>> tokens;
  std::vector<RequestId> ids;
  const auto step = [&] {
    for (const Event& event : engine->step()) {
      EXPECT_EQ(event.error, "");
      if (event.token) tokens[event.request].push_back(*event.token);
    }
  };
  for (std::int32_t i = 0; i < 7; ++i) {
    Request request;
    for (std::int32_t t = 0; t < 5 + 6 * i; ++t) request.prompt.push_back((37 * i + 11 * t) % 512);
    request.sampling = {.temperature = 0, .max_tokens = 20, .ignore_eos = true};
    ids.push_back(engine->submit(request).value());
    if (i % 2 == 0) step();
  }
  while (engine->has_work()) step();
  preemptions = 0;
  for (const RequestId id : ids) preemptions += engine->stats(id)->preemptions;
  return tokens;
}

TEST(DataParallelEngine, answers_are_those_of_one_rank) {
  for (const auto& [name, layouts] : {std::pair(std::string("tiny-ernie4_5-moe"), std::vector{std::pair(2, 1), std::pair(2, 2), std::pair(8, 1)}), std::pair(std::string("tiny-deepseek-v2"), std::vector{std::pair(3, 1), std::pair(6, 1)}),
                                      std::pair(std::string("tiny-llama-dynamic"), std::vector{std::pair(2, 2), std::pair(3, 1)})}) {
    const std::string folder = tiny(name);
    std::int64_t preemptions = 0;
    const auto expected = answers(open_model(folder, options_of(1, 1)).value(), options_of(1, 1), preemptions);
    EXPECT_GT(preemptions, 0);
    ASSERT_EQ(expected.size(), 7u);
    for (const auto& [groups, tensor_ranks] : layouts) {
      SCOPED_TRACE(testing::Message() << name << ", " << groups << " groups of " << tensor_ranks);
      RankedModel model(groups * tensor_ranks, folder, options_of(groups, tensor_ranks));
      ASSERT_TRUE(model.opened) << model.opened.error().message;
      EXPECT_EQ(answers(*std::move(model.opened), options_of(groups, tensor_ranks), preemptions), expected);
      for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
    }
  }
}

TEST(DataParallelEngine, experts_tokens_of_all_groups_are_counted) {
  const std::string folder = tiny("tiny-qwen3-moe");
  const std::vector<std::vector<std::int32_t>> prompts = {{1, 2, 3, 4, 5}, {6, 7, 8}, {9, 10, 11, 12, 13, 14, 15}};
  const auto count = [&](OpenedModel& opened) {
    std::vector<std::vector<std::int64_t>> tokens(static_cast<std::size_t>(opened.model->info().layers), std::vector<std::int64_t>(static_cast<std::size_t>(opened.model->info().experts)));
    opened.runtime->expert_tokens = &tokens;
    forward(opened, prompts, 1);
    collect_expert_tokens(opened);
    forward(opened, {prompts[0]}, 0);
    collect_expert_tokens(opened);
    opened.runtime->expert_tokens = nullptr;
    return tokens;
  };
  const auto expected = count(*open_model(folder, options_of(1, 1)).value());
  for (const auto& [groups, tensor_ranks] : {std::pair(2, 1), std::pair(2, 2), std::pair(1, 2)}) {
    RankedModel model(groups * tensor_ranks, folder, options_of(groups, tensor_ranks));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    EXPECT_EQ(count(**model.opened), expected);
  }
}

TEST(DataParallelEngine, counts_of_ranks_that_do_not_fit_are_refused) {
  const auto ranks = run_ranks(2, [&](std::shared_ptr<comm::Comm> comm, int) {
    const auto opened = open_model(tiny("tiny-qwen3-moe"), options_of(2, 2), {}, std::move(comm));
    return opened ? std::string() : opened.error().message;
  });
  EXPECT_THAT(ranks[0], testing::HasSubstr("--tensor-parallel-size 2 with --data-parallel-size 2 needs 4 ranks, but 2 are running"));
}

TEST(GroupAssignment, a_sequence_joins_the_group_with_fewest_tokens_and_stays) {
  const std::vector<std::int32_t> tables = {10, 20, 30, 40};
  std::vector<std::int32_t> positions;
  std::vector<nn::Span> spans;
  const auto step = [&](const std::vector<std::array<std::int32_t, 3>>& parts) {  // sequence, first position, tokens
    positions.clear();
    spans.clear();
    for (const auto& [sequence, position, count] : parts) {
      spans.push_back({.first = static_cast<std::int64_t>(positions.size()), .count = count, .block_table = &tables[static_cast<std::size_t>(sequence)]});
      for (std::int32_t t = 0; t < count; ++t) positions.push_back(position + t);
    }
    return nn::Step{.positions = positions, .spans = spans};
  };
  GroupAssignment assignment(2);
  EXPECT_THAT(assignment.assign(step({{0, 0, 4}, {1, 0, 1}, {2, 0, 2}})), ElementsAre(0, 1, 1));
  EXPECT_THAT(assignment.assign(step({{2, 2, 1}, {1, 1, 1}, {0, 4, 1}, {3, 0, 9}})), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(assignment.assign(step({{3, 9, 1}, {0, 5, 1}})), ElementsAre(0, 0));
  // Sequence 3 is computed again: the generated part comes before the prompt, both go to a new group together.
  EXPECT_THAT(assignment.assign(step({{3, 9, 2}, {0, 6, 1}, {3, 0, 9}})), ElementsAre(1, 0, 1));
  assignment.forget(nullptr);
  EXPECT_THAT(assignment.assign(step({{3, 11, 1}})), ElementsAre(0));
}

}  // namespace
}  // namespace inflight::engine
