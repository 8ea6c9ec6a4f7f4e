#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/fake_model_for_test.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<Engine> make_engine(const EngineOptions& options, int threads = 1) {
  auto engine = Engine::create(open_fake(threads), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

const FakeModel& fake(const Engine& engine) { return static_cast<const FakeModel&>(*engine.model().model); }

Request request_of(std::int64_t prompt_tokens, std::int64_t max_tokens, std::uint32_t salt = 1) {
  Request request;
  std::mt19937 random(salt);
  for (std::int64_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(static_cast<std::int32_t>(random() % 90));
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

// Sixteen requests of mixed lengths: greedy ones and seeded ones with every kind of sampling.
std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  constexpr std::int64_t kPrompts[] = {1, 12, 16, 17, 33, 64, 5, 150, 2, 48, 15, 31, 77, 120, 9, 190};
  for (std::uint32_t i = 0; i < 16; ++i) {
    Request request = request_of(kPrompts[i], i == 0 ? 1 : 40 + i * 37 % 90, i);
    request.stop_ids = {90};
    SamplingParams& sampling = request.sampling;
    if (i % 2 == 1) {
      sampling.temperature = 0.5 + 0.25 * i;
      sampling.seed = 1000 + i;
      if (i % 3 == 0) sampling.top_k = 20;
      if (i % 4 == 1) sampling.top_p = 0.8;
      if (i % 5 == 0) sampling.min_p = 0.05;
    }
    if (i % 4 >= 2) {
      sampling.repetition_penalty = 1.3;
      sampling.frequency_penalty = 0.5;
    }
    if (i % 6 == 0) sampling.min_tokens = sampling.max_tokens / 2;
    if (i % 7 == 0) sampling.max_tokens = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

const std::vector<Answer>& answers_alone() {
  static const std::vector<Answer> answers = [] {
    std::vector<Answer> alone;
    for (const Request& request : mixed_requests()) {
      const auto engine = make_engine(fake_options());
      const RequestId id = engine->submit(request).value();
      alone.push_back(drain(*engine).at(id));
      EXPECT_EQ(engine->stats(id)->preemptions, 0);
    }
    return alone;
  }();
  return answers;
}

struct Road {
  std::string name;
  EngineOptions options;
  int threads = 1;
  bool preempts = false;
};

std::vector<Road> roads() {
  std::vector<Road> all;
  const auto add = [&](std::string name, EngineOptions options, int threads = 1, bool preempts = false) { all.push_back({std::move(name), options, threads, preempts}); };
  add("batch", fake_options());
  add("threads_2", fake_options(), 2);
  add("threads_4", fake_options(), 4);
  for (const std::int64_t tokens : {1, 7, 17, 512}) {
    EngineOptions options = fake_options();
    options.max_num_batched_tokens = tokens;
    add(fmt::format("chunks_of_{}", tokens), options);
    options.kv_cache_bytes = 14 * FakeModel::kBlockBytes16;  // one sequence of 224 tokens
    if (tokens > 1) add(fmt::format("tiny_pool_chunks_of_{}", tokens), options, 2, true);
  }
  for (const std::int64_t blocks : {14, 15, 20, 30}) add(fmt::format("pool_of_{}", blocks), fake_options(blocks), 1, true);
  for (const std::int64_t sequences : {1, 3}) {
    EngineOptions options = fake_options();
    options.max_num_seqs = sequences;
    add(fmt::format("sequences_{}", sequences), options);
  }
  EngineOptions wide = fake_options();
  wide.block_size = 64;
  add("block_64", wide);
  return all;
}

TEST(Engine, alone_equals_in_a_batch_equals_any_chunking_equals_after_preemption) {
  const std::vector<Request> requests = mixed_requests();
  for (const Road& road : roads()) {
    SCOPED_TRACE(road.name);
    const auto engine = make_engine(road.options, road.threads);
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine->submit(request).value());
    const auto answers = drain(*engine);
    std::int64_t preemptions = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(answers.at(ids[i]), answers_alone()[i]) << "request " << i;
      const RequestStats* stats = engine->stats(ids[i]);
      ASSERT_NE(stats, nullptr);
      preemptions += stats->preemptions;
      EXPECT_EQ(stats->prompt_tokens, static_cast<std::int64_t>(requests[i].prompt.size()));
      EXPECT_EQ(stats->generated_tokens, static_cast<std::int64_t>(answers.at(ids[i]).tokens.size()));
    }
    EXPECT_EQ(preemptions > 0, road.preempts) << preemptions;
    EXPECT_LE(fake(*engine).largest_step, road.options.max_num_batched_tokens);
  }
}

TEST(Engine, arrivals_in_the_middle_change_nothing) {
  const std::vector<Request> requests = mixed_requests();
  const auto engine = make_engine(fake_options(24), 2);
  std::map<RequestId, Answer> answers;
  std::vector<RequestId> ids;
  while (engine->has_work() || ids.size() < requests.size()) {
    if (ids.size() < requests.size() && fake(*engine).steps % 5 == 0) ids.push_back(engine->submit(requests[ids.size()]).value());
    collect(engine->step(), answers);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(answers.at(ids[i]), answers_alone()[i]) << "request " << i;
}

TEST(Engine, a_second_run_of_a_seed_repeats_and_no_seed_does_not) {
  const auto engine = make_engine(fake_options());
  Request request = request_of(10, 30);
  request.sampling.temperature = 50;  // nearly uniform over 97 tokens
  std::vector<RequestId> free, seeded;
  for (int i = 0; i < 3; ++i) free.push_back(engine->submit(request).value());
  request.sampling.seed = 0;  // zero is a seed like any other
  for (int i = 0; i < 2; ++i) seeded.push_back(engine->submit(request).value());
  request.sampling.seed = 1;
  const RequestId other = engine->submit(request).value();
  auto answers = drain(*engine);
  EXPECT_NE(answers[free[0]].tokens, answers[free[1]].tokens);
  EXPECT_NE(answers[free[1]].tokens, answers[free[2]].tokens);
  EXPECT_EQ(answers[seeded[0]].tokens, answers[seeded[1]].tokens);
  EXPECT_NE(answers[seeded[0]].tokens, answers[free[0]].tokens);
  EXPECT_NE(answers[seeded[0]].tokens, answers[other].tokens);
}

TEST(Engine, max_tokens_and_the_context_end_an_answer_with_length) {
  const auto engine = make_engine(fake_options());
  EXPECT_EQ(engine->limits().max_model_len, FakeModel::kPositions);
  const RequestId three = engine->submit(request_of(5, 3)).value();
  const RequestId rest = engine->submit(request_of(200, 0)).value();
  const RequestId more = engine->submit(request_of(220, 100)).value();
  const RequestId last = engine->submit(request_of(FakeModel::kPositions - 1, 0)).value();
  auto answers = drain(*engine);
  EXPECT_EQ(answers[three].tokens.size(), 3u);
  EXPECT_EQ(answers[rest].tokens.size(), 24u);
  EXPECT_EQ(answers[more].tokens.size(), 4u);
  EXPECT_EQ(answers[last].tokens.size(), 1u);
  for (const RequestId id : {three, rest, more, last}) EXPECT_EQ(answers[id].finish, FinishReason::kLength);
}

TEST(Engine, stop_ids_end_an_answer_unreported_and_respect_min_tokens_and_ignore_eos) {
  const Answer plain = [] {
    const auto engine = make_engine(fake_options());
    const RequestId id = engine->submit(request_of(12, 40)).value();
    return drain(*engine).at(id);
  }();
  ASSERT_EQ(plain.tokens.size(), 40u);
  // The first greedy token at index 5 or later that did not occur before it stops the answer there.
  std::size_t at = 5;
  while (std::find(plain.tokens.begin(), plain.tokens.begin() + static_cast<std::ptrdiff_t>(at), plain.tokens[at]) != plain.tokens.begin() + static_cast<std::ptrdiff_t>(at)) ++at;
  ASSERT_LT(at, 39u);

  const auto engine = make_engine(fake_options());
  Request request = request_of(12, 40);
  request.stop_ids = {95, plain.tokens[at], 0};
  if (plain.tokens[at] == 0) request.stop_ids = {0};
  // 95 and 0 may occur as well: the answer ends at the first of any of them.
  std::size_t first = 0;
  while (std::find(request.stop_ids.begin(), request.stop_ids.end(), plain.tokens[first]) == request.stop_ids.end()) ++first;
  const RequestId stopped = engine->submit(request).value();
  request.sampling.max_tokens = static_cast<std::int64_t>(first) + 1;  // the stop id would be the last allowed token
  const RequestId exactly = engine->submit(request).value();
  request.sampling.max_tokens = static_cast<std::int64_t>(first);
  const RequestId before = engine->submit(request).value();
  request.sampling.max_tokens = 40;
  request.sampling.ignore_eos = true;
  const RequestId ignored = engine->submit(request).value();
  request.sampling.ignore_eos = false;
  request.sampling.min_tokens = static_cast<std::int64_t>(first) + 2;
  const RequestId masked = engine->submit(request).value();
  auto answers = drain(*engine);
  const std::vector<std::int32_t> prefix(plain.tokens.begin(), plain.tokens.begin() + static_cast<std::ptrdiff_t>(first));
  EXPECT_EQ(answers[stopped], (Answer{prefix, FinishReason::kStop, ""}));
  EXPECT_EQ(answers[exactly], (Answer{prefix, FinishReason::kStop, ""}));
  EXPECT_EQ(answers[before], (Answer{prefix, FinishReason::kLength, ""}));
  EXPECT_EQ(answers[ignored], plain);
  EXPECT_GE(answers[masked].tokens.size(), first + 2);
  EXPECT_EQ(engine->stats(stopped)->generated_tokens, static_cast<std::int64_t>(first));
  for (const std::int32_t token : answers[masked].tokens) EXPECT_THAT(request.stop_ids, testing::Not(testing::Contains(token)));
}

TEST(Engine, a_stop_may_come_right_after_min_tokens) {
  const auto engine = make_engine(fake_options());
  Request request = request_of(12, 40);
  for (std::int32_t id = 0; id < FakeModel::kVocabulary; ++id)
    if (id != 5) request.stop_ids.push_back(id);  // 5 alone may be chosen before, and is unlikely to be after
  request.sampling.min_tokens = 3;
  const RequestId three = engine->submit(request).value();
  request.sampling.min_tokens = 0;
  const RequestId none = engine->submit(request).value();
  auto answers = drain(*engine);
  EXPECT_EQ(answers[three], (Answer{{5, 5, 5}, FinishReason::kStop, ""}));
  EXPECT_EQ(answers[none], (Answer{{}, FinishReason::kStop, ""}));
}

TEST(Engine, logits_that_are_not_finite_end_that_request_alone) {
  const std::vector<Request> requests = mixed_requests();
  const auto engine = make_engine(fake_options(), 2);
  const RequestId good = engine->submit(requests[1]).value();
  Request bad = requests[3];
  bad.prompt[2] = FakeModel::kPoison;
  const RequestId poisoned = engine->submit(bad).value();
  bad.sampling = {};  // not greedy
  const RequestId sampled = engine->submit(bad).value();
  const RequestId other = engine->submit(requests[7]).value();
  auto answers = drain(*engine);
  for (const RequestId id : {poisoned, sampled}) {
    EXPECT_EQ(answers[id].finish, FinishReason::kError);
    EXPECT_TRUE(answers[id].tokens.empty());
    EXPECT_THAT(answers[id].error, AllOf(HasSubstr("not finite"), HasSubstr("after 17 tokens")));
  }
  EXPECT_EQ(answers[good], answers_alone()[1]);
  EXPECT_EQ(answers[other], answers_alone()[7]);
}

TEST(Engine, cancel_frees_at_once_and_reports_once) {
  const auto engine = make_engine(fake_options(14));  // one long sequence fills the pool
  const RequestId long_one = engine->submit(request_of(200, 0)).value();
  const RequestId waiting = engine->submit(request_of(150, 10, 2)).value();
  const RequestId queued = engine->submit(request_of(8, 10, 3)).value();
  std::map<RequestId, Answer> answers;
  for (int i = 0; i < 5; ++i) collect(engine->step(), answers);
  EXPECT_FALSE(answers.contains(waiting));
  engine->cancel(queued);
  engine->cancel(long_one);
  engine->cancel(long_one);
  engine->cancel(12345);
  const std::size_t before = answers[long_one].tokens.size();
  collect(engine->step(), answers);
  EXPECT_EQ(answers[long_one].finish, FinishReason::kCancelled);
  EXPECT_EQ(answers[long_one].tokens.size(), before);
  EXPECT_EQ(answers[queued], (Answer{{}, FinishReason::kCancelled, ""}));
  EXPECT_EQ(answers[waiting].tokens.size(), 1u);  // entered in the very next step, a prompt of one chunk
  for (const auto& [id, answer] : drain(*engine)) EXPECT_EQ(id, waiting);
  EXPECT_EQ(engine->stats(waiting)->preemptions, 0);
  EXPECT_EQ(engine->stats(long_one)->generated_tokens, static_cast<std::int64_t>(before));
  engine->forget(long_one);
  EXPECT_EQ(engine->stats(long_one), nullptr);
}

TEST(Engine, cancelling_the_only_request_leaves_its_event_to_fetch) {
  const auto engine = make_engine(fake_options());
  const RequestId id = engine->submit(request_of(3, 3)).value();
  engine->cancel(id);
  EXPECT_TRUE(engine->has_work());
  const auto events = engine->step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::kCancelled);
  EXPECT_FALSE(engine->has_work());
  EXPECT_TRUE(engine->step().empty());
}

TEST(Engine, a_long_request_is_not_starved_by_a_stream_of_short_ones) {
  EngineOptions options = fake_options(14);
  options.max_num_batched_tokens = 16;
  const auto engine = make_engine(options);
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(engine->submit(request_of(20, 20, i)));
  const RequestId long_one = engine->submit(request_of(180, 44)).value();
  std::map<RequestId, Answer> answers;
  int steps = 0;
  RequestId newest = long_one;
  while (answers[long_one].finish == FinishReason::kNone && steps < 1000) {
    newest = engine->submit(request_of(20, 20, static_cast<std::uint32_t>(steps++))).value();  // two a step would already be more than can be served
    collect(engine->step(), answers);
  }
  // At most 4 * (2 + 20) steps before it enters, 180 / 16 for its prompt while others decode beside it, 44 for its answer.
  EXPECT_LT(steps, 200);
  EXPECT_GT(newest, long_one + 20);
  for (const auto& [id, answer] : answers)
    if (id < long_one) {
      EXPECT_EQ(answer.finish, FinishReason::kLength);
    }
  EXPECT_EQ(engine->stats(long_one)->preemptions, 0);  // everything beside it is younger
}

TEST(Engine, refuses_what_cannot_be_with_both_numbers) {
  const auto message = [](const Engine&, Result<RequestId> result) {
    EXPECT_FALSE(result);
    if (result) return std::string();
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    return result.error().message;
  };
  const auto engine = make_engine(fake_options());
  EXPECT_THAT(message(*engine, engine->submit(request_of(224, 1))), AllOf(HasSubstr("224 tokens"), HasSubstr("at most 224"), HasSubstr("the model's 224 positions")));
  EXPECT_THAT(message(*engine, engine->submit(request_of(0, 1))), HasSubstr("empty"));
  Request request = request_of(4, 1);
  request.prompt[2] = 97;
  EXPECT_THAT(message(*engine, engine->submit(request)), AllOf(HasSubstr("prompt[2] is 97"), HasSubstr("0 to 96")));
  request.prompt[2] = -1;
  EXPECT_THAT(message(*engine, engine->submit(request)), HasSubstr("prompt[2] is -1"));
  request = request_of(4, 1);
  request.stop_ids = {5, 1000};
  EXPECT_THAT(message(*engine, engine->submit(request)), HasSubstr("stop_ids[1] is 1000"));
  request = request_of(4, 1);
  request.sampling.top_p = 1.5;
  EXPECT_THAT(message(*engine, engine->submit(request)), AllOf(HasSubstr("top_p 1.5"), HasSubstr("between 0 and 1")));

  EngineOptions options = fake_options();
  options.max_model_len = 50;
  const auto shorter = make_engine(options);
  EXPECT_THAT(message(*shorter, shorter->submit(request_of(60, 1))), AllOf(HasSubstr("60 tokens"), HasSubstr("at most 50"), HasSubstr("--max-model-len 50")));
  const auto small = make_engine(fake_options(5));
  EXPECT_EQ(small->limits().max_model_len, 80);
  EXPECT_THAT(message(*small, small->submit(request_of(100, 1))), AllOf(HasSubstr("100 tokens"), HasSubstr("at most 80"), HasSubstr("memory"), HasSubstr("kv_cache_bytes")));

  // Refusals leave nothing behind.
  EXPECT_FALSE(engine->has_work());
  const RequestId id = engine->submit(request_of(4, 2)).value();
  EXPECT_EQ(drain(*engine).at(id).tokens.size(), 2u);
}

TEST(Engine, sizes_its_cache_from_this_machine_when_not_told) {
  EngineOptions options;
  const auto engine = make_engine(options);
  EXPECT_EQ(engine->limits().max_model_len, FakeModel::kPositions);
  EXPECT_EQ(engine->limits().kv_blocks, 32 * 4);  // 224 tokens in blocks of 64, 32 sequences: no more than can be of use
  EXPECT_EQ(engine->limits().block_size, 64);
  EXPECT_EQ(engine->limits().kv_bytes, 32 * 4 * 4 * FakeModel::kBlockBytes16);
}

TEST(Engine, refuses_options_by_name) {
  const auto message = [](EngineOptions options) {
    const auto engine = Engine::create(open_fake(), options);
    EXPECT_FALSE(engine);
    return engine ? std::string() : engine.error().message;
  };
  EngineOptions options = fake_options();
  options.max_num_seqs = 0;
  EXPECT_THAT(message(options), HasSubstr("--max-num-seqs 0"));
  options = fake_options();
  options.max_num_batched_tokens = 0;
  EXPECT_THAT(message(options), HasSubstr("--max-num-batched-tokens 0"));
  options = fake_options();
  options.block_size = 24;
  EXPECT_THAT(message(options), HasSubstr("--block-size 24"));
  options = fake_options();
  options.kv_cache_dtype = "bf61";
  EXPECT_THAT(message(options), AllOf(HasSubstr("bf61"), HasSubstr("Did you mean \"bf16\"?")));
}

}  // namespace
}  // namespace inflight::engine
