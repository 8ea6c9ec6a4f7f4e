// The engine over real models: whatever the batch, the chunks, the threads and the preemptions, a request gets the same logits, bit for bit, and each
// of them once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "checkpoint/read_tensor.h"
#include "engine/engine.h"
#include "engine/fake_model_for_test.h"

namespace inflight::engine {
namespace {

// (position, token, hash of the logits' bits) of every row of logits that was computed.
using Rows = std::multiset<std::tuple<std::int32_t, std::int32_t, std::uint64_t>>;

class RecordingModel : public models::Model {
 public:
  RecordingModel(std::unique_ptr<models::Model> model, std::shared_ptr<Rows> rows) : model_(std::move(model)), rows_(std::move(rows)) { info_ = model_->info(); }
  void forward(const nn::Step& step, nn::Runtime& runtime) const override {
    model_->forward(step, runtime);
    for (std::size_t row = 0; row < step.logit_rows.size(); ++row) {
      std::uint64_t hash = 0;
      for (std::int64_t i = 0; i < info_.vocabulary; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, step.logits + static_cast<std::int64_t>(row) * logits_stride() + i, 4);
        hash = mixed(hash ^ bits);
      }
      const auto token = static_cast<std::size_t>(step.logit_rows[row]);
      rows_->emplace(step.positions[token], step.ids[token], hash);
    }
  }

 private:
  std::unique_ptr<models::Model> model_;
  std::shared_ptr<Rows> rows_;
};

struct Setting {
  std::string folder, quantization, compute;
};

struct Outcome {
  std::vector<Answer> answers;
  Rows rows;
  std::int64_t preemptions = 0;
};

constexpr std::int64_t kLongest = 144;  // 9 blocks of 16

std::vector<Request> requests(std::int64_t vocabulary) {
  constexpr std::int64_t kPrompts[] = {1, 16, 3, 17, 8, 40, 15, 2, 33, 5, 11, 31, 64, 90, 130, 7};
  std::vector<Request> all;
  std::mt19937 random(1);
  for (std::uint32_t i = 0; i < 16; ++i) {
    Request request;
    for (std::int64_t t = 0; t < kPrompts[i]; ++t) request.prompt.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocabulary)));
    request.sampling.max_tokens = kPrompts[i] <= 17 ? 34 : 4 + i % 4;
    request.sampling.temperature = i % 4 == 3 ? 1 : 0;
    request.sampling.seed = i;
    all.push_back(std::move(request));
  }
  return all;
}

EngineOptions options_of(const Setting& setting) {
  EngineOptions options;
  options.quantization = setting.quantization;
  options.compute = setting.compute;
  options.block_size = 16;
  options.max_model_len = kLongest;
  options.threads = 1;
  return options;
}

// `blocks`: 0, or the size of the pool.
Outcome run(const Setting& setting, EngineOptions options, std::int64_t blocks, bool alone) {
  Outcome outcome;
  const auto rows = std::make_shared<Rows>();
  std::unique_ptr<Engine> engine;
  const auto start = [&] {
    auto opened = open_model(std::string(INFLIGHT_TEST_DATA) + "/tiny/" + setting.folder, options);
    ASSERT_TRUE(opened) << opened.error().message;
    const models::ModelInfo info = (*opened)->model->info();
    const nn::KvShape shape = info.kv_shape(options.block_size, kv_cache_dtype(options).value());
    options.kv_cache_bytes = (blocks > 0 ? blocks : 1000) * shape.block_bytes();
    (*opened)->model = std::make_unique<RecordingModel>(std::move((*opened)->model), rows);
    auto created = Engine::create(std::move(*opened), options);
    ASSERT_TRUE(created) << created.error().message;
    engine = std::move(*created);
  };
  start();
  if (testing::Test::HasFatalFailure()) return outcome;
  std::vector<RequestId> ids;
  std::map<RequestId, Answer> answers;
  for (const Request& request : requests(engine->model().model->info().vocabulary)) {
    ids.push_back(engine->submit(request).value());
    if (alone) answers.merge(drain(*engine));
  }
  answers.merge(drain(*engine));
  for (const RequestId id : ids) {
    outcome.answers.push_back(answers.at(id));
    outcome.preemptions += engine->stats(id)->preemptions;
  }
  outcome.rows = *rows;
  return outcome;
}

class RealModel : public testing::TestWithParam<Setting> {};

TEST_P(RealModel, same_bits_on_every_road) {
  const Setting& setting = GetParam();
  const Outcome alone = run(setting, options_of(setting), 0, true);
  if (HasFatalFailure()) return;
  EXPECT_EQ(alone.preemptions, 0);
  std::size_t generated = 0;
  std::set<std::vector<std::int32_t>> different;
  for (const Answer& answer : alone.answers) {
    EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
    generated += answer.tokens.size();
    different.insert(answer.tokens);
  }
  EXPECT_EQ(alone.rows.size(), generated);
  EXPECT_EQ(different.size(), 16u);

  struct Road {
    std::string name;
    std::int64_t blocks = 0, tokens = 512, sequences = 32, block_size = 16;
    int threads = 1;
  };
  for (const Road& road : {Road{.name = "batch of 16"}, Road{.name = "chunks of 1", .tokens = 1}, Road{.name = "chunks of 7", .tokens = 7},
                           Road{.name = "preemption", .blocks = 9}, Road{.name = "preemption in chunks of 7, 2 threads", .blocks = 10, .tokens = 7, .threads = 2},
                           Road{.name = "2 threads, 5 sequences, blocks of 64", .sequences = 5, .block_size = 64, .threads = 2}, Road{.name = "4 threads", .threads = 4}}) {
    SCOPED_TRACE(road.name);
    EngineOptions options = options_of(setting);
    options.threads = road.threads;
    options.max_num_batched_tokens = road.tokens;
    options.max_num_seqs = road.sequences;
    options.block_size = road.block_size;
    const Outcome outcome = run(setting, options, road.blocks, false);
    if (HasFatalFailure()) return;
    EXPECT_EQ(outcome.answers, alone.answers);
    EXPECT_EQ(outcome.preemptions > 0, road.blocks > 0) << outcome.preemptions;
    EXPECT_TRUE(outcome.rows == alone.rows) << outcome.rows.size() << " rows of logits, alone " << alone.rows.size();
  }
}

// All golden prompts of a model in one batch, continued as transformers continued each alone (tests/tiny/README.md), up to the first narrow margin.
TEST(GoldenBatch, greedy_answers_agree_with_the_reference) {
  for (const std::string folder : {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe", "tiny-ernie4_5-moe", "tiny-deepseek-v3", "tiny-deepseek-v2"}) {
    SCOPED_TRACE(folder);
    const std::string path = std::string(INFLIGHT_TEST_DATA) + "/tiny/" + folder, golden = path + "/golden.safetensors";
    EngineOptions options = options_of({folder, "", "fp32"});
    options.kv_cache_bytes = 1 << 24;
    options.max_model_len = 0;
    options.max_num_batched_tokens = 11;
    auto opened = open_model(path, options);
    ASSERT_TRUE(opened) << opened.error().message;
    const auto created = Engine::create(std::move(*opened), options);
    ASSERT_TRUE(created) << created.error().message;
    Engine* engine = created->get();
    std::vector<RequestId> ids;
    for (int i = 0; i < 8; ++i) {
      const auto prompt = checkpoint::read_named_i64(golden, fmt::format("prompt.{}", i));
      if (!prompt) break;
      Request request{.prompt = {prompt->begin(), prompt->end()}, .sampling = {.temperature = 0}, .stop_ids = {}};
      request.sampling.max_tokens = static_cast<std::int64_t>(checkpoint::read_named_i64(golden, fmt::format("greedy.{}", i))->size());
      const auto id = engine->submit(request);
      ASSERT_TRUE(id) << id.error().message;
      ids.push_back(*id);
    }
    auto answers = drain(*engine);
    std::size_t compared = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto greedy = checkpoint::read_named_i64(golden, fmt::format("greedy.{}", i)).value();
      const auto margin = checkpoint::read_named_f32(golden, fmt::format("greedy_margin.{}", i)).value();
      ASSERT_EQ(answers[ids[i]].tokens.size(), greedy.size());
      for (std::size_t step = 0; step < greedy.size() && margin[step] >= 0.01f; ++step, ++compared)
        ASSERT_EQ(answers[ids[i]].tokens[step], greedy[step]) << "prompt " << i << ", step " << step << ", margin " << margin[step];
    }
    EXPECT_GT(compared, 20u);
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string folder : {"tiny-llama", "tiny-qwen2", "tiny-qwen3"})
    for (const auto& [quantization, compute] : {std::pair<std::string, std::string>{"", "bf16"}, {"wint8", "int8"}, {"wint4-g32", "int8"}}) all.push_back({folder, quantization, compute});
  for (const auto& [quantization, compute] : {std::pair<std::string, std::string>{"wint8", "auto"}, {"wint4-g32", "int8"}, {"", "bf16"}}) all.push_back({"tiny-qwen3-moe", quantization, compute});
  all.push_back({"tiny-ernie4_5-moe", "wint8", "auto"});
  for (const auto& [quantization, compute] : {std::pair<std::string, std::string>{"wint8", "auto"}, {"", "bf16"}, {"", "fp32"}}) all.push_back({"tiny-deepseek-v3", quantization, compute});
  all.push_back({"tiny-deepseek-v2", "wint4-g32", "auto"});
  for (const auto& [quantization, compute] : {std::pair<std::string, std::string>{"wint8", "auto"}, {"", "fp32"}}) all.push_back({"tiny-deepseek-v2-lite", quantization, compute});
  for (const std::string compute : {"bf16", "fp32", "auto"}) all.push_back({"tiny-qwen3", "wint8", compute});
  all.push_back({"tiny-llama", "wint4", "auto"});
  all.push_back({"tiny-qwen2", "", "auto"});
  all.push_back({"tiny-qwen2", "", "fp32"});
  all.push_back({"tiny-llama-dynamic", "", "bf16"});  // a rotary base that depends on lengths
  all.push_back({"tiny-qwen2-sliding", "wint8", "int8"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Tiny, RealModel, testing::ValuesIn(settings()), [](const auto& test) {
  std::string label = test.param.folder + "_" + (test.param.quantization.empty() ? "as_stored" : test.param.quantization) + "_" + test.param.compute;
  std::ranges::replace(label, '-', '_');
  return label;
});

}  // namespace
}  // namespace inflight::engine
