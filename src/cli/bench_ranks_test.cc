// What ranks really send, beside the formulas.
#include "cli/bench_ranks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/ranks_for_test.h"

namespace inflight::cli {
namespace {

// One step over a cache of its own, whose making is not counted. Logits of all tokens.
SentInSteps step(engine::OpenedModel& opened, const std::vector<std::int32_t>& ids, bool decode) {
  const auto tokens = std::ssize(ids);
  const auto cache = engine::create_cache(opened, opened.model->info().kv_shape(16, DType::kF32), 1).value();
  const std::int32_t block = 0;
  const nn::Span span{.first = 0, .count = tokens, .block_table = &block, .rope_length = decode ? 0 : tokens};
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> logits(static_cast<std::size_t>(tokens * opened.model->logits_stride()));
  const TrafficWatch watch(opened);
  opened.model->forward({.ids = ids, .positions = positions, .spans = {&span, 1}, .decode_tokens = decode ? tokens : 0, .logit_rows = positions, .cache = cache.get(), .logits = logits.data()}, *opened.runtime);
  return watch.end(1, tokens, tokens);
}

// Inputs sorted by group (act-order) are gathered: of o_proj and the shared experts by themselves, of a layer's experts together.
TEST(BenchRanks, formula_counts_what_is_gathered) {
  const std::vector<std::int32_t> ids = {5, 9, 3, 30, 17, 4};
  for (const std::string name : {"tiny/tiny-qwen3", "tiny/tiny-qwen3-moe", "forms/gptq-4bit-act-order", "forms/gptq-4bit-act-order-moe"})
    for (const int n : {2, 4})
      for (const bool whole_experts : {false, true}) {
        const bool experts = name.ends_with("-moe");
        if ((whole_experts && !experts) || (n == 4 && name == "forms/gptq-4bit-act-order")) continue;  // which has two heads
        SCOPED_TRACE(fmt::format("{} on {} ranks{}", name, n, whole_experts ? ", whole experts" : ""));
        engine::EngineOptions options;
        options.compute = "fp32";
        options.threads = 1;
        options.tensor_parallel_size = n;
        options.enable_expert_parallel = whole_experts;
        engine::RankedModel model(n, INFLIGHT_TEST_DATA "/" + name, options);
        ASSERT_TRUE(model.opened) << model.opened.error().message;
        engine::OpenedModel& opened = **model.opened;
        std::int64_t collectives = 0;
        for (const bool decode : {false, true}) {
          const SentInSteps sent = step(opened, ids, decode);
          const auto formula = formula_traffic(opened, sent).value();
          collectives = sent.traffic.collectives - (2 * opened.model->info().layers + 3);  // sums, the head's gather, the step
          EXPECT_EQ(sent.traffic.messages, formula.messages);
          EXPECT_EQ(sent.traffic.collectives, formula.collectives);
          EXPECT_EQ(sent.traffic.bytes, formula.bytes);
        }
        // o_proj and down_proj; in each of two layers o_proj, the shared experts' down_proj and, where they are cut, all experts.
        const int gathers = name == "forms/gptq-4bit-act-order" ? 2 : name == "forms/gptq-4bit-act-order-moe" ? (whole_experts ? 4 : 6) : 0;
        EXPECT_EQ(collectives, gathers);
        for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
      }
}

}  // namespace
}  // namespace inflight::cli
