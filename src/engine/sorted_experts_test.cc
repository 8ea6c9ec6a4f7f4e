// Experts whose inputs are sorted by group (act-order) on ranks that cut them: before down_proj the ranks gather what each has activated. One rank's numbers and the
// reference's (tools/make_form_fixtures.py). Ranks are threads here.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "checkpoint/read_tensor.h"
#include "engine/calibration_for_test.h"
#include "engine/compare_for_test.h"
#include "engine/engine.h"
#include "engine/fake_model_for_test.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "loader/export.h"

namespace inflight::engine {
namespace {

const std::string kFolder = INFLIGHT_TEST_DATA "/forms/gptq-4bit-act-order-moe";
constexpr std::int64_t kVocabulary = 32;

EngineOptions options_of(int ranks, bool whole_experts = false, const std::string& compute = "fp32") {
  EngineOptions options;
  options.compute = compute;
  options.threads = ranks == 4 ? 1 : 2;
  options.tensor_parallel_size = ranks;
  options.enable_expert_parallel = whole_experts;
  return options;
}

std::vector<std::int32_t> prompt() {
  const auto ids = checkpoint::read_named_i64(kFolder + "/golden.safetensors", "prompt.0").value();
  return {ids.begin(), ids.end()};
}

std::vector<float> logits_of(OpenedModel& opened, bool decode, std::size_t tokens) {
  auto ids = prompt();
  ids.resize(tokens);
  EXPECT_EQ(opened.model->logits_stride(), kVocabulary);
  return forward_once(opened, ids, {.decode = decode}).logits;
}

// Experts' down_proj of rank 0 that gather.
int gathering(const OpenedModel& opened) {
  int count = 0;
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) count += opened.table.rows[i].expert >= 0 && opened.store.matrix(i).gathers_inputs;
  return count;
}

// Logits on 2 and 4 ranks beside those of one. experts: down_projs that gather.
void expect_one_rank(const std::string& folder, const std::function<EngineOptions(int ranks, bool whole_experts)>& options, int experts, float tolerance = 2e-4f) {
  auto one = open_model(folder, options(1, false));
  ASSERT_TRUE(one) << one.error().message;
  for (const int n : {2, 4})
    for (const bool whole_experts : {false, true}) {
      SCOPED_TRACE(fmt::format("{} ranks{}", n, whole_experts ? ", whole experts" : ""));
      RankedModel model(n, folder, options(n, whole_experts));
      ASSERT_TRUE(model.opened) << model.opened.error().message;
      EXPECT_EQ(gathering(**model.opened), whole_experts ? 0 : experts);
      for (const bool decode : {false, true})
        for (const std::size_t tokens : {12, 1}) {
          const auto want = logits_of(**one, decode, tokens), got = logits_of(**model.opened, decode, tokens);
          ASSERT_EQ(got.size(), want.size());
          for (std::size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got[i], want[i], tolerance * largest(want)) << (decode ? "decode, " : "prompt, ") << tokens << " tokens, logit " << i;
        }
      expect_fine(model);
    }
}

TEST(SortedExperts, logits_are_those_of_the_reference) {
  const auto want = checkpoint::read_named_f32(kFolder + "/golden.safetensors", "logits.0").value();
  for (const int n : {2, 4})
    for (const bool whole_experts : {false, true})
      for (const bool decode : {false, true}) {
        RankedModel model(n, kFolder, options_of(n, whole_experts));
        ASSERT_TRUE(model.opened) << model.opened.error().message;
        expect_close(logits_of(**model.opened, decode, 12).data(), kVocabulary, want, kVocabulary, fmt::format("{} ranks{}{}", n, whole_experts ? ", whole experts" : "", decode ? ", decode" : ", prompt"));
        expect_fine(model);
      }
}

TEST(SortedExperts, logits_are_those_of_one_rank) {
  expect_one_rank(kFolder, [](int ranks, bool whole_experts) { return options_of(ranks, whole_experts); }, 8, 2e-5f);
}

// Scales of activations are those of a rank's own columns: not the numbers of one rank, but as near the reference.
TEST(SortedExperts, logits_in_int8_are_as_near_the_reference_as_those_of_one_rank) {
  const auto want = checkpoint::read_named_f32(kFolder + "/golden.safetensors", "logits.0").value();
  const auto distance = [&](OpenedModel& opened, bool decode) { return mean_kl(want.data(), kVocabulary, logits_of(opened, decode, 12).data(), kVocabulary, 12, kVocabulary); };
  const auto one = open_model(kFolder, options_of(1, false, "int8")).value();
  for (const int n : {2, 4}) {
    RankedModel model(n, kFolder, options_of(n, false, "int8"));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    for (const bool decode : {false, true}) {
      const double got = distance(**model.opened, decode), of_one = distance(*one, decode);
      EXPECT_LE(got, 2 * of_one + 1e-4) << n << (decode ? ", decode" : ", prompt") << "; one rank " << of_one;
    }
    expect_fine(model);
  }
}

TEST(SortedExperts, beside_one_that_is_not_sorted) {
  expect_one_rank(kFolder, [](int ranks, bool whole_experts) {
    EngineOptions options = options_of(ranks, whole_experts);
    options.quantization_overrides = {"model.layers.0.mlp.experts.1.down_proj=wint8"};
    return options;
  }, 7);
}

TEST(SortedExperts, of_a_converted_folder) {
  const ScratchFolder scratch;
  const auto opened = open_model(kFolder, options_of(1)).value();
  ASSERT_TRUE(loader::export_model(opened->folder, opened->table, opened->store, scratch.at("converted"), {}, 1 << 30));
  EXPECT_EQ(TestFolder::read(scratch.at("converted")).tensors.count("model.layers.1.mlp.experts.2.down_proj.weight_order"), 1u);
  expect_one_rank(scratch.at("converted"), [](int ranks, bool whole_experts) { return options_of(ranks, whole_experts); }, 8, 2e-5f);
}

// Steps of generated tokens and parts of prompts together.
std::map<RequestId, Answer> serve(std::unique_ptr<OpenedModel> opened, EngineOptions options) {
  options.kv_cache_bytes = 100 * opened->model->info().kv_shape(options.block_size, DType::kF32).block_bytes();
  auto engine = Engine::create(std::move(opened), options);
  EXPECT_TRUE(engine) << engine.error().message;
  if (!engine) return {};
  for (int i = 0; i < 5; ++i) {
    Request request;
    for (int t = 0; t < 5 + 6 * i; ++t) request.prompt.push_back(3 + (t * 7 + i * 5) % 29);
    request.sampling.max_tokens = 12;
    request.sampling.temperature = 0;
    EXPECT_TRUE((*engine)->submit(request));
  }
  return drain(**engine);
}

TEST(SortedExperts, answers_are_those_of_one_rank) {
  const auto options = [](int ranks) {
    EngineOptions result = options_of(ranks);
    result.block_size = 16;
    result.max_model_len = 64;
    result.max_num_batched_tokens = 8;
    return result;
  };
  const auto want = serve(open_model(kFolder, options(1)).value(), options(1));
  ASSERT_EQ(want.size(), 5u);
  for (const int n : {2, 4}) {
    RankedModel model(n, kFolder, options(n));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    EXPECT_EQ(serve(std::move(*model.opened), options(n)), want) << n;
    expect_fine(model);
  }
}

// All channels in the model's order, of tokens that chose an expert and of those forced through it.
TEST(SortedExperts, calibration_sees_the_whole_model) {
  int passes = 0;
  const auto calibrate = [&](OpenedModel& opened) {
    passes = 0;
    const Calibration seen = calibrated(opened, [&](OpenedModel& model) { logits_of(model, false, 1), ++passes; });
    EXPECT_EQ(passes, 2) << "some experts are seen in the forced pass alone";
    return seen;
  };
  const Calibration want = calibrate(*open_model(kFolder, options_of(1)).value());
  for (const int n : {2, 4}) {
    RankedModel model(n, kFolder, options_of(n));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    const Calibration got = calibrate(**model.opened);
    SCOPED_TRACE(fmt::format("{} ranks", n));
    expect_same_points(got, want);
    expect_fine(model);
  }
}

}  // namespace
}  // namespace inflight::engine
