#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <unordered_map>
#include <utility>

#include "engine/batch.h"
#include "engine/kv_plan.h"
#include "engine/memory_limit.h"
#include "engine/ranks.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "nn/kv_cache.h"
#include "tensor/buffer.h"

namespace inflight::engine {
namespace {

double seconds_between(Sequence::Clock::time_point from, Sequence::Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

Result<std::uint64_t> fresh_seed() {
  try {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  } catch (const std::exception& error) {
    return fail(Code::kInternal, "no randomness from the system ({}); give the request a seed", error.what());
  }
}

Result<void> check_ids(std::string_view what, const std::vector<std::int32_t>& ids, std::int64_t vocabulary) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      return fail(Code::kInvalidArgument, "{}[{}] is {}, but the model's token ids are 0 to {}", what, i, ids[i], vocabulary - 1);
  return {};
}

}  // namespace

struct Engine::State {
  State(std::unique_ptr<OpenedModel> opened_model, KvPlan kv_plan, std::shared_ptr<nn::KvCache> kv_cache, Buffer logits_memory, const SchedulerLimits& scheduler_limits)
      : opened(std::move(opened_model)),
        plan(std::move(kv_plan)),
        cache(std::move(kv_cache)),
        logits(std::move(logits_memory)),
        pool(plan.blocks, plan.shape.block_size),
        scheduler(scheduler_limits, pool),
        scratch(static_cast<std::size_t>(opened->runtime->pool->threads())),
        balancer(*opened) {
    limits = {plan.max_model_len, plan.blocks, plan.blocks * plan.shape.block_bytes(), plan.shape.block_size};
  }

  void sample_tokens(std::span<Sequence* const> sampled);
  void accept(Sequence& sequence, std::int32_t token, std::vector<Event>& events);
  void finish(Sequence& sequence);
  void end_all(const std::string& error, std::vector<Event>& events);

  std::unique_ptr<OpenedModel> opened;
  KvPlan plan;
  EngineLimits limits;
  std::shared_ptr<nn::KvCache> cache;
  Buffer logits;  // [max_num_seqs, logits_stride] f32, resident as far as it was used
  BlockPool pool;
  Scheduler scheduler;
  Batch batch;
  std::vector<SampleScratch> scratch;  // one per worker
  ExpertBalancer balancer;
  std::vector<std::int32_t> sampled_tokens;  // one per row of logits; -1: not finite

  RequestId next_id = 1;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences;  // after pool: their blocks go back to it
  std::unordered_map<RequestId, RequestStats> finished;
  std::vector<Event> pending;  // for the next step()
  bool paused = false;
  std::int64_t version = 0;    // of the weights
};

Engine::Engine() = default;
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<OpenedModel> model, const EngineOptions& options) {
  MemoryLimit available;
  if (options.kv_cache_bytes == 0) available = TRY(memory_for_cache(*model));
  KvPlan plan = TRY(plan_kv(model->model->info(), options, available));
  auto cache = TRY(create_cache(*model, plan.shape, plan.blocks));
  const std::int64_t rows = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  Buffer logits = TRY(Buffer::map(static_cast<std::size_t>(rows * model->model->logits_stride()) * sizeof(float)));
  std::unique_ptr<Engine> engine(new Engine);
  engine->state_ = std::make_unique<State>(std::move(model), std::move(plan), std::move(cache), std::move(logits),
                                           SchedulerLimits{options.max_num_seqs, options.max_num_batched_tokens});
  return engine;
}

Result<RequestId> Engine::submit(Request request) {
  State& state = *state_;
  if (auto error = failure(*state.opened)) return std::unexpected(*std::move(error));
  const std::int64_t vocabulary = state.opened->model->info().vocabulary, limit = state.limits.max_model_len;
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  TRY(validate(request.sampling));
  if (prompt_tokens == 0) return fail(Code::kInvalidArgument, "the prompt is empty; it needs at least one token");
  if (prompt_tokens >= limit)
    return fail(Code::kInvalidArgument, "the prompt has {} tokens, but prompt and answer together can have at most {} ({}); shorten the prompt", prompt_tokens, limit,
                state.plan.bound);
  TRY(check_ids("prompt", request.prompt, vocabulary));
  TRY(check_ids("stop_ids", request.stop_ids, vocabulary));

  auto sequence = std::make_unique<Sequence>(state.next_id, state.pool);
  sequence->seed = request.sampling.seed ? *request.sampling.seed : TRY(fresh_seed());
  sequence->sampling = request.sampling;
  sequence->prompt_tokens = prompt_tokens;
  const std::int64_t left = limit - prompt_tokens;
  sequence->max_tokens = prompt_tokens + (request.sampling.max_tokens > 0 ? std::min(request.sampling.max_tokens, left) : left);
  if (!request.sampling.ignore_eos) {
    sequence->stop_ids = std::move(request.stop_ids);
    std::sort(sequence->stop_ids.begin(), sequence->stop_ids.end());
  }
  if (has_penalties(request.sampling))
    for (const std::int32_t token : request.prompt) sequence->history.add_prompt(token);
  sequence->tokens = std::move(request.prompt);
  sequence->stats.prompt_tokens = prompt_tokens;
  state.scheduler.add(*sequence);
  const RequestId id = state.next_id++;
  state.sequences.emplace(id, std::move(sequence));
  return id;
}

void Engine::cancel(RequestId id) {
  const auto found = state_->sequences.find(id);
  if (found == state_->sequences.end()) return;
  state_->finish(*found->second);
  state_->pending.push_back({.request = id, .token = {}, .finish = FinishReason::kCancelled, .error = {}});
}

bool Engine::has_work() const { return !state_->scheduler.empty() || !state_->pending.empty(); }

std::vector<Event> Engine::step() {
  State& state = *state_;
  std::vector<Event> events = std::exchange(state.pending, {});
  if (state.paused) return events;
  const std::vector<Chunk> chunks = state.scheduler.schedule();
  if (chunks.empty()) return events;

  const auto start = Sequence::Clock::now();
  for (const Chunk& chunk : chunks)
    if (chunk.sequence->first_step == Sequence::Clock::time_point{}) chunk.sequence->first_step = start;
  state.batch.build(chunks);
  nn::Step& step = state.batch.step();
  step.cache = state.cache.get();
  step.logits = reinterpret_cast<float*>(state.logits.data());
  try {
    state.opened->model->forward(step, *state.opened->runtime);
  } catch (const std::exception& error) {  // the workspace could not grow: the sequences of this step end, the others go on
    for (const Chunk& chunk : chunks) {
      events.push_back({.request = chunk.sequence->id, .token = {}, .finish = FinishReason::kError, .error = fmt::format("the step ran out of memory: {}", error.what())});
      state.finish(*chunk.sequence);
    }
    return events;
  }
  if (const auto error = failure(*state.opened)) {  // no later step can succeed either: every request ends
    state.end_all(error->message, events);
    return events;
  }
  for (const Chunk& chunk : chunks) chunk.sequence->computed += chunk.count;
  state.balancer.step();

  const std::span<Sequence* const> sampled = state.batch.sampled();
  state.sample_tokens(sampled);
  for (std::size_t i = 0; i < sampled.size(); ++i) state.accept(*sampled[i], state.sampled_tokens[i], events);
  return events;
}

void Engine::State::sample_tokens(std::span<Sequence* const> sampled) {
  const std::int64_t vocabulary = opened->model->info().vocabulary, stride = opened->model->logits_stride();
  const kernels::VectorKernels& kernels = *opened->runtime->kernels->vector;
  sampled_tokens.resize(sampled.size());
  const auto sample_row = [&](std::size_t i, SampleScratch& memory) {
    const Sequence& sequence = *sampled[i];
    SampleRow row;
    row.logits = reinterpret_cast<float*>(logits.data()) + static_cast<std::int64_t>(i) * stride;
    row.vocabulary = vocabulary;
    row.params = &sequence.sampling;
    row.history = &sequence.history;
    if (sequence.generated() < sequence.sampling.min_tokens) row.banned = sequence.stop_ids;
    row.seed = sequence.seed;
    row.position = static_cast<std::uint64_t>(sequence.length());
    sampled_tokens[i] = sample(row, kernels, memory);
  };
  if (sampled.size() <= 1) {
    if (!sampled.empty()) sample_row(0, scratch[0]);
    return;
  }
  std::atomic<std::size_t> next{0};
  opened->runtime->pool->run([&](int worker) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < sampled.size();) sample_row(i, scratch[static_cast<std::size_t>(worker)]);
  });
}

void Engine::State::accept(Sequence& sequence, std::int32_t token, std::vector<Event>& events) {
  Event event{.request = sequence.id, .token = {}, .finish = FinishReason::kNone, .error = {}};
  const auto now = Sequence::Clock::now();
  if (token < 0) {
    event.finish = FinishReason::kError;
    event.error = fmt::format("the model's logits after {} tokens are not finite (NaN or infinity), so no token can be chosen; are the weights intact?", sequence.length());
  } else if (std::binary_search(sequence.stop_ids.begin(), sequence.stop_ids.end(), token)) {
    event.finish = FinishReason::kStop;
  } else {
    event.token = token;
    sequence.tokens.push_back(token);
    if (has_penalties(sequence.sampling)) sequence.history.add_output(token);
    ++sequence.stats.generated_tokens;
    if (sequence.length() >= sequence.max_tokens) event.finish = FinishReason::kLength;
  }
  if (sequence.first_token == Sequence::Clock::time_point{}) {
    sequence.first_token = now;
    sequence.stats.prefill_seconds = seconds_between(sequence.first_step, now);
  }
  sequence.stats.decode_seconds = seconds_between(sequence.first_token, now);
  events.push_back(std::move(event));
  if (events.back().finish != FinishReason::kNone) finish(sequence);
}

void Engine::State::end_all(const std::string& error, std::vector<Event>& events) {
  std::vector<RequestId> ids;
  for (const auto& [id, sequence] : sequences) ids.push_back(id);
  std::ranges::sort(ids);
  for (const RequestId id : ids) {
    events.push_back({.request = id, .token = {}, .finish = FinishReason::kError, .error = error});
    finish(*sequences.at(id));
  }
}

void Engine::State::finish(Sequence& sequence) {
  scheduler.remove(sequence);
  finished.emplace(sequence.id, sequence.stats);
  sequences.erase(sequence.id);
}

const RequestStats* Engine::stats(RequestId id) const {
  if (const auto running = state_->sequences.find(id); running != state_->sequences.end()) return &running->second->stats;
  const auto done = state_->finished.find(id);
  return done == state_->finished.end() ? nullptr : &done->second;
}

void Engine::forget(RequestId id) { state_->finished.erase(id); }

void Engine::pause() { state_->paused = true; }
void Engine::resume() { state_->paused = false; }
bool Engine::paused() const { return state_->paused; }

Result<std::int64_t> Engine::update_weights(const TensorStream& next) {
  State& state = *state_;
  if (!state.paused) return fail(Code::kInvalidArgument, "weights can only be updated while the engine is paused; call pause() first");
  OpenedModel& opened = *state.opened;
  const auto update = TRY(begin_update(opened));
  for (auto tensor = TRY(next()); tensor; tensor = TRY(next())) TRY(update->add(*tensor));
  TRY(update->apply(opened.store));
  state.scheduler.preempt_all();  // keys and values of the old weights mean nothing to the new ones
  return ++state.version;
}

Result<Rebalanced> Engine::rebalance_experts() { return state_->balancer.rebalance(); }
const std::optional<Result<Rebalanced>>& Engine::last_rebalance() const { return state_->balancer.last(); }

std::int64_t Engine::weights_version() const { return state_->version; }

const EngineLimits& Engine::limits() const { return state_->limits; }
const OpenedModel& Engine::model() const { return *state_->opened; }

}  // namespace inflight::engine
