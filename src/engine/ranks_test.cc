// A model over ranks is the model of one rank: logits, greedy answers, hidden states, engines, failures. Ranks are threads here.
#include "engine/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/read_tensor.h"
#include "engine/calibration_for_test.h"
#include "engine/compare_for_test.h"
#include "engine/engine.h"
#include "engine/fake_model_for_test.h"
#include "engine/greedy_for_test.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "engine/tiny_models_for_test.h"

namespace inflight::engine {
namespace {

using checkpoint::read_named_f32;
using checkpoint::read_named_i64;

struct Format {
  std::string quantization, golden;
  bool everywhere = true;  // else on 2 ranks, and on 4 with whole experts
  std::string target = "ocp";
};

class RankedLogits : public testing::TestWithParam<std::string> {};

TEST_P(RankedLogits, are_those_of_one_rank_and_of_the_reference) {
  const std::string& name = GetParam();
  const std::string golden = tiny_model(name).reference();
  int compared = 0;
  for (const Format& format : {Format{"", ""}, {"wint8", "wint8"}, {"wint4-g32", "wint4-g32"}, {"wint4-g64", "wint4-g64"}, {"tensor_wise_fp8", "fp8-ocp"}, {"block_wise_fp8", "fp8-block"},
                               {"wint4", "wint4", false}, {"wint4-g128", "wint4-g128", false}, {"wlut4", "wlut4", false}, {"tensor_wise_fp8", "fp8-gaudi", false, "gaudi"}}) {
    const auto options = [&](int ranks, bool expert_parallel) {
      EngineOptions result = ranked_options(ranks, format.quantization, expert_parallel);
      result.fp8_target = format.target;
      return result;
    };
    const auto one = open_model(tiny(name), options(1, false));
    ASSERT_TRUE(one) << one.error().message;
    const auto& info = (*one)->model->info();
    std::vector<std::vector<std::int64_t>> prompts;
    std::vector<std::vector<float>> want;
    for (int i = 0; i < (format.quantization.empty() ? 3 : 2); ++i) {  // the third is longer than what rotary scaling and windows begin at
      const auto prompt = read_named_i64(golden, fmt::format("prompt.{}", i));
      if (!prompt) break;
      prompts.push_back(*prompt);
      want.push_back(logits_of(**one, prompts.back(), /*decode=*/i == 1));
    }
    ASSERT_GE(prompts.size(), 2u);
    for (const int n : {2, 4})
      for (const bool expert_parallel : {false, true}) {
        if ((expert_parallel && info.experts == 0) || (!format.everywhere && expert_parallel != (n == 4 && info.experts != 0))) continue;
        SCOPED_TRACE(fmt::format("{} {} over {} ranks{}", format.quantization.empty() ? "as stored" : format.quantization, format.target, n, expert_parallel ? ", whole experts" : ""));
        RankedModel model(n, tiny(name), options(n, expert_parallel));
        ASSERT_TRUE(model.opened) << model.opened.error().message;
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          const auto got = logits_of(**model.opened, prompts[i], /*decode=*/i == 1);
          expect_close(got.data(), info.vocabulary, want[i], info.vocabulary, fmt::format("prompt {} against one rank", i));
          if (HasFatalFailure()) return;
          const auto reference = read_named_f32(golden, fmt::format("logits{}.{}", format.golden.empty() ? "" : "_" + format.golden, i));
          if (!reference) continue;
          expect_close(got.data(), info.vocabulary, *reference, info.vocabulary, fmt::format("prompt {} against the reference", i));
          if (HasFatalFailure()) return;
          ++compared;
        }
        expect_fine(model);
      }
  }
  EXPECT_GE(compared, 4);
}

INSTANTIATE_TEST_SUITE_P(Tiny, RankedLogits, testing::ValuesIn(tiny_names()), [](const auto& test) { return test_label(test.param); });

TEST(TinyModels, are_all_that_there_are) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(tiny("")))
    if (entry.is_directory()) folders.push_back(entry.path().filename());
  EXPECT_THAT(tiny_names(/*cut=*/false), testing::UnorderedElementsAreArray(folders)) << "a folder of tests/tiny is not in tiny_models_for_test.h";
  for (const TinyModel& model : tiny_models()) EXPECT_TRUE(std::filesystem::exists(model.reference())) << model.name;
}

// 40 ids over 4 ranks are runs of 16, 16, 8 and 0.
TEST(Ranks, a_vocabulary_that_ends_before_the_last_rank) {
  for (const std::string name : {"tiny-qwen3", "tiny-llama"}) {  // a tied head, and one of its own
    TestFolder folder = TestFolder::read(tiny(name));
    folder.config["vocab_size"] = 40;
    for (auto& [tensor_name, tensor] : folder.tensors) {
      if (tensor.shape[0] != 512) continue;
      tensor.data.resize(tensor.data.size() / 512 * 40);
      tensor.shape[0] = 40;
    }
    const ScratchFolder scratch;
    folder.write(scratch.at("short"));
    const auto one = open_model(scratch.at("short"), ranked_options(1));
    ASSERT_TRUE(one) << one.error().message;
    RankedModel model(4, scratch.at("short"), ranked_options(4));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    const std::vector<std::int64_t> ids = {0, 15, 16, 31, 32, 39, 7};
    const auto got = logits_of(**model.opened, ids);
    expect_close(got.data(), 40, logits_of(**one, ids), 40, name);
    expect_fine(model);
  }
}

TEST(Ranks, hidden_states_are_those_of_the_reference) {
  for (const std::string name : {"tiny-qwen3", "tiny-ernie4_5-moe", "tiny-deepseek-v3"}) {
    const std::string golden = tiny(name) + "/golden.safetensors";
    RankedModel model(2, tiny(name), ranked_options(2));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    const auto prompt = read_named_i64(golden, "prompt.1").value();
    const auto result = forward_once(**model.opened, {prompt.begin(), prompt.end()}, {.hidden = true});
    const std::int64_t hidden = (*model.opened)->model->info().hidden;
    expect_close(result.hidden.data(), hidden, read_named_f32(golden, "hidden.1").value(), hidden, name);
    expect_fine(model);
  }
}

// Requests of every kind on an engine.
struct Outcome {
  std::map<RequestId, Answer> answers;
  std::int64_t preemptions = 0;
  bool operator==(const Outcome& other) const { return answers == other.answers; }
};

EngineOptions engine_options(int ranks, std::int64_t blocks) {
  EngineOptions options = ranked_options(ranks, "wint8", ranks == 2);
  options.block_size = 16;
  options.max_model_len = 96;
  options.max_num_batched_tokens = 24;
  options.kv_cache_bytes = blocks;  // of blocks, until the shape is known
  return options;
}

Outcome serve(std::unique_ptr<OpenedModel> opened, EngineOptions options) {
  options.kv_cache_bytes *= opened->model->info().kv_shape(options.block_size, DType::kF32).block_bytes();
  auto engine = Engine::create(std::move(opened), options);
  EXPECT_TRUE(engine) << engine.error().message;
  Outcome outcome;
  if (!engine) return outcome;
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    Request request;
    for (int t = 0; t < 7 + 9 * i; ++t) request.prompt.push_back((t * 37 + i * 101) % 512);
    request.sampling.max_tokens = 20;
    request.sampling.temperature = i % 3 == 2 ? 0.8 : 0;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    ids.push_back((*engine)->submit(request).value());
  }
  for (int step = 0; step < 12; ++step) collect((*engine)->step(), outcome.answers);
  (*engine)->cancel(ids[1]);
  (*engine)->pause();
  collect((*engine)->step(), outcome.answers);
  (*engine)->resume();
  for (const auto& [id, answer] : drain(**engine)) {
    Answer& all = outcome.answers[id];
    all.tokens.insert(all.tokens.end(), answer.tokens.begin(), answer.tokens.end());
    all.finish = answer.finish;
    all.error = answer.error;
  }
  for (const RequestId id : ids) outcome.preemptions += (*engine)->stats(id)->preemptions;
  return outcome;
}

TEST(RankedEngine, answers_are_those_of_one_rank) {
  for (const std::string name : {"tiny-qwen3", "tiny-qwen3-moe", "tiny-deepseek-v3"})
    for (const std::int64_t blocks : {100, 6}) {
      SCOPED_TRACE(fmt::format("{}, {} blocks", name, blocks));
      auto one = open_model(tiny(name), engine_options(1, blocks));
      ASSERT_TRUE(one) << one.error().message;
      const Outcome want = serve(std::move(*one), engine_options(1, blocks));
      EXPECT_EQ(want.preemptions > 0, blocks == 6);
      for (const int n : {2, 4}) {
        RankedModel model(n, tiny(name), engine_options(n, blocks));
        ASSERT_TRUE(model.opened) << model.opened.error().message;
        const Outcome got = serve(std::move(*model.opened), engine_options(n, blocks));
        EXPECT_EQ(got.answers, want.answers) << n;
        EXPECT_EQ(got.preemptions, want.preemptions);
        expect_fine(model);
      }
    }
}

// All golden prompts in one batch, continued as the reference did, up to the first narrow margin.
class RankedGreedy : public testing::TestWithParam<std::string> {};

TEST_P(RankedGreedy, answers_are_those_of_the_reference) {
  const std::string& name = GetParam();
  const std::string golden = tiny_model(name).reference();
  const bool experts = plan_model(tiny(name), {}).value().info.experts != 0;
  for (const auto& [n, expert_parallel] : {std::pair(2, false), std::pair(4, experts)}) {
    SCOPED_TRACE(fmt::format("{} ranks{}", n, expert_parallel ? ", whole experts" : ""));
    const EngineOptions options = ranked_options(n, "", expert_parallel);
    RankedModel model(n, tiny(name), options);
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    EXPECT_GT(expect_greedy(std::move(*model.opened), options, golden), 10u);
    expect_fine(model);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, RankedGreedy, testing::ValuesIn(tiny_names()), [](const auto& test) { return test_label(test.param); });

// Throws in the given step, as a workspace does that cannot grow.
class FailingModel : public models::Model {
 public:
  FailingModel(std::unique_ptr<models::Model> model, int step) : model_(std::move(model)), left_(step) { info_ = model_->info(); }
  void forward(const nn::Step& step, nn::Runtime& runtime) const override {
    if (--left_ == 0) throw std::bad_alloc();
    model_->forward(step, runtime);
  }

 private:
  std::unique_ptr<models::Model> model_;
  mutable int left_;
};

TEST(RankedEngine, a_rank_that_fails_ends_all_requests_with_its_message) {
  EngineOptions options = engine_options(4, 100);
  RankedModel model(4, tiny("tiny-qwen3"), options, [](OpenedModel& opened, int rank) {
    if (rank == 2) opened.model = std::make_unique<FailingModel>(std::move(opened.model), 3);
  });
  ASSERT_TRUE(model.opened) << model.opened.error().message;
  options.kv_cache_bytes *= (*model.opened)->model->info().kv_shape(16, DType::kF32).block_bytes();
  options.max_num_seqs = 2;  // one request waits
  auto engine = Engine::create(std::move(*model.opened), options);
  ASSERT_TRUE(engine) << engine.error().message;
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 50;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*engine)->submit(request));
  const auto answers = drain(**engine);
  ASSERT_EQ(answers.size(), 3u);
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.finish, FinishReason::kError) << id;
    EXPECT_THAT(answer.error, testing::AllOf(testing::HasSubstr("rank 2"), testing::HasSubstr("ran out of memory")));
  }
  EXPECT_EQ(answers.at(1).tokens.size(), 2u);
  EXPECT_EQ(answers.at(3).tokens.size(), 0u);
  const auto refused = (*engine)->submit(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("rank 2"));
  engine->reset();
  const auto& outcomes = model.end();
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    ASSERT_FALSE(outcomes[rank]) << rank;
    EXPECT_THAT(outcomes[rank].error().message, testing::HasSubstr("rank 2")) << rank;
  }
}

TEST(RankedEngine, rank_0_out_of_memory_ends_the_others_too) {
  EngineOptions options = engine_options(2, 100);
  RankedModel model(2, tiny("tiny-qwen3"), options);
  ASSERT_TRUE(model.opened) << model.opened.error().message;
  model.opened->get()->ranks->fail({Code::kExhausted, "no more"});
  options.kv_cache_bytes *= 1 << 16;
  const auto engine = Engine::create(std::move(*model.opened), options);
  ASSERT_FALSE(engine);
  EXPECT_THAT(engine.error().message, testing::HasSubstr("no more"));
  EXPECT_FALSE(model.end()[1]);
}

// Free memory is shared by the ranks of a host; without kv_cache_bytes the plan asks all of them.
TEST(RankedEngine, the_cache_is_planned_from_what_every_rank_has) {
  EngineOptions options = ranked_options(2);
  RankedModel model(2, tiny("tiny-qwen3"), options);
  ASSERT_TRUE(model.opened) << model.opened.error().message;
  const auto all = available_memory(), share = memory_for_cache(**model.opened);
  ASSERT_TRUE(all && share) << (share ? "" : share.error().message);
  EXPECT_LT(share->bytes, all->bytes / 4 * 3);
  EXPECT_THAT(share->source, testing::HasSubstr("rank"));
  auto engine = Engine::create(std::move(*model.opened), options);
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ((*engine)->limits().kv_bytes / (*engine)->limits().kv_blocks, 3 * 2 * 1 * 64 * 32 * 4);  // layers, keys and values, one of two heads, tokens, numbers, bytes
  engine->reset();
  expect_fine(model);
}

// Two models of one group, each with caches of its own, and followers that follow both.
TEST(Ranks, two_models_at_once) {
  const std::vector<std::int64_t> ids = {5, 17, 300, 4};
  std::vector<std::vector<float>> got;
  const auto outcomes = run_ranks(2, [&](std::shared_ptr<comm::Comm> ranks, int rank) -> Result<void> {
    auto plain = TRY(open_model(tiny("tiny-qwen3"), ranked_options(2), {}, ranks)), quantized = TRY(open_model(tiny("tiny-qwen3-moe"), ranked_options(2, "wint8"), {}, ranks));
    OpenedModel* const both[] = {plain.get(), quantized.get()};
    if (rank != 0) return follow(both);
    for (int i = 0; i < 2; ++i)
      for (OpenedModel* opened : both) got.push_back(logits_of(*opened, ids));
    plain.reset();
    got.push_back(logits_of(*quantized, ids));
    return {};
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome) << outcome.error().message;
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(got[0], got[2]);
  EXPECT_EQ(got[1], got[3]);
  EXPECT_EQ(got[1], got[4]);
  const auto one = open_model(tiny("tiny-qwen3-moe"), ranked_options(1, "wint8"));
  expect_close(got[4].data(), 512, logits_of(**one, ids), 512, "the second model");
}

// What calibration is shown: all channels, whatever rank has them.
TEST(Ranks, calibration_sees_the_whole_model) {
  for (const std::string name : {"tiny-qwen3", "tiny-ernie4_5-moe", "tiny-deepseek-v3"})
    for (const bool expert_parallel : {false, true}) {
      SCOPED_TRACE(name + (expert_parallel ? ", whole experts" : ""));
      const std::vector<std::int64_t> ids = {5, 17, 300};  // few enough that some experts are seen in the forced pass alone
      const auto calibrate = [&](OpenedModel& opened) { return calibrated(opened, [&](OpenedModel& model) { logits_of(model, ids); }); };
      auto one = open_model(tiny(name), ranked_options(1));
      ASSERT_TRUE(one) << one.error().message;
      const Calibration want = calibrate(**one);
      for (const int n : {2, 4}) {
        RankedModel model(n, tiny(name), ranked_options(n, "", expert_parallel));
        ASSERT_TRUE(model.opened) << model.opened.error().message;
        const Calibration got = calibrate(**model.opened);
        SCOPED_TRACE(fmt::format("{} ranks", n));
        expect_same_points(got, want);
        expect_fine(model);
      }
    }
}

TEST(RanksRefused, another_number_of_ranks_than_the_options_say) {
  const auto alone = open_model(tiny("tiny-qwen3"), ranked_options(2));
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, Code::kInvalidArgument);
  EXPECT_THAT(alone.error().message, testing::AllOf(testing::HasSubstr("--tensor-parallel-size 2"), testing::HasSubstr("1 is running")));
  RankedModel model(4, tiny("tiny-qwen3"), ranked_options(2));
  for (const auto& outcome : model.end()) {
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, testing::AllOf(testing::HasSubstr("--tensor-parallel-size 2"), testing::HasSubstr("4 are running")));
  }
}

TEST(RanksRefused, one_rank_that_cannot_open_fails_all) {
  const auto outcomes = run_ranks(3, [&](std::shared_ptr<comm::Comm> ranks, int rank) -> Result<void> {
    EngineOptions options = ranked_options(3);
    options.tensor_parallel_size = 3;
    TRY(open_model(rank == 1 ? tiny("nowhere") : tiny("tiny-qwen3"), options, {}, ranks));
    return {};
  });
  for (const auto& outcome : outcomes) ASSERT_FALSE(outcome);
  const auto two = run_ranks(2, [&](std::shared_ptr<comm::Comm> ranks, int rank) -> Result<void> {
    TRY(open_model(rank == 1 ? tiny("nowhere") : tiny("tiny-qwen3"), ranked_options(2), {}, ranks));
    return {};
  });
  for (const auto& outcome : two) {
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, testing::AllOf(testing::HasSubstr("rank 1"), testing::HasSubstr("nowhere")));
  }
}

TEST(RanksRefused, ranks_with_other_options) {
  const ScratchFolder scratch;
  Json amax = read_json_file(tiny("tiny-qwen3") + "/fp8_amax.json").value();
  amax["model.layers.1.mlp.down_proj"] = 2 * amax["model.layers.1.mlp.down_proj"].get<double>();
  std::ofstream(scratch.at("other.json")) << amax.dump();
  const auto scaled = [](const std::string& file, const std::string& target) {
    EngineOptions options = ranked_options(2, "tensor_wise_fp8");
    options.fp8_activations = "auto";
    options.fp8_amax = file;
    options.fp8_target = target;
    return options;
  };
  const std::string file = tiny("tiny-qwen3") + "/fp8_amax.json";
  EngineOptions dynamic = scaled(file, "ocp");
  dynamic.fp8_activations = "dynamic";
  struct Case {
    std::string name;
    EngineOptions one, other;
  };
  for (const Case& c : {Case{"tiny-qwen3", ranked_options(2, "wint4-g32"), ranked_options(2, "wint8")}, {"tiny-qwen3-moe", ranked_options(2), ranked_options(2, "", true)},
                        {"tiny-qwen3", scaled(file, "ocp"), scaled(scratch.at("other.json"), "ocp")}, {"tiny-qwen3", scaled(file, "ocp"), scaled(file, "gaudi")},
                        {"tiny-qwen3", scaled(file, "ocp"), dynamic}}) {
    const auto outcomes = run_ranks(2, [&](std::shared_ptr<comm::Comm> ranks, int rank) -> Result<void> {
      TRY(open_model(tiny(c.name), rank == 1 ? c.other : c.one, {}, ranks));
      return {};
    });
    for (const auto& outcome : outcomes) {
      ASSERT_FALSE(outcome);
      EXPECT_THAT(outcome.error().message, testing::AllOf(testing::HasSubstr("rank 1"), testing::HasSubstr("with other options")));
    }
  }
}

}  // namespace
}  // namespace inflight::engine
