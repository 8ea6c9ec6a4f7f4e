#include "cli/generate_batch.h"

#include <chrono>
#include <optional>
#include <unordered_map>

#include "cli/console.h"
#include "cli/expert_load.h"
#include "cli/interrupt.h"
#include "cli/text_model.h"

namespace inflight::cli {
namespace {

struct Job {
  engine::RequestId id = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::optional<api::TextSession> session;  // from the first event on
  std::string error;
  bool ending = false;                      // cancelled by us: a stop string, a failure, or the end of the program
  bool done = false;
};

class Batch {
 public:
  explicit Batch(TextModel& model) : model_(model) {}

  Result<void> submit(std::vector<std::int32_t> prompt, engine::SamplingParams params, std::vector<std::string> stop) {
    Job job{.prompt_tokens = static_cast<std::int64_t>(prompt.size()), .min_tokens = params.min_tokens, .stop = std::move(stop)};
    job.id = TRY(model_.engine->submit({.prompt = std::move(prompt), .sampling = params, .stop_ids = api::ids_of(model_.stops)}));
    by_id_[job.id] = jobs_.size();
    jobs_.push_back(std::move(job));
    return {};
  }

  // An error where the ranks failed: then nothing more can be answered.
  Result<void> run() {
    const comm::Comm* ranks = model_.engine->model().ranks.get();
    while (model_.engine->has_work()) {
      const std::vector<engine::Event> events = model_.engine->step();
      if (auto failed = ranks ? ranks->error() : std::nullopt) return std::unexpected(*std::move(failed));
      for (const engine::Event& event : events) handle(event);
      if (!write_finished() || interrupted()) cancel_all();
    }
    write_finished();
    return {};
  }

  const Totals& totals() const { return totals_; }
  bool failed() const { return failed_; }
  std::size_t unanswered() const { return unanswered_; }

 private:
  void handle(const engine::Event& event) {
    Job& job = jobs_[by_id_.at(event.request)];
    if (!job.session) {
      Result<api::TextSession> session = api::TextSession::create(model_.encoder.tokenizer(), job.prompt_tokens, job.stop, job.min_tokens);
      if (session) job.session.emplace(std::move(*session));
      else end(job, session.error().message);
    }
    if (event.token && !job.ending) {
      const Result<std::string> delta = job.session->feed(*event.token);
      if (!delta) end(job, delta.error().message);
      else if (job.session->stopped()) end(job, "");
    }
    if (event.finish == engine::FinishReason::kNone) return;
    if (!event.error.empty()) job.error = event.error;
    if (job.session && !job.session->finish(job.error.empty() ? event.finish : engine::FinishReason::kError) && job.error.empty()) job.error = "the answer's last token cannot be decoded";
    if (const engine::RequestStats* stats = model_.engine->stats(job.id)) totals_.add(*stats);
    model_.engine->forget(job.id);
    job.done = true;
  }

  void end(Job& job, std::string error) {
    job.ending = true;
    job.error = std::move(error);
    model_.engine->cancel(job.id);
  }

  void cancel_all() {
    if (cancelled_) return;
    cancelled_ = true;
    for (Job& job : jobs_)
      if (!job.done && !job.ending) end(job, "");
  }

  // false: nobody reads the output.
  bool write_finished() {
    for (; next_ < jobs_.size() && jobs_[next_].done; ++next_) {
      Job& job = jobs_[next_];
      if (cancelled_ && job.session && job.session->ids().empty() && job.session->finish_reason() == "cancelled") {  // never began
        ++unanswered_;
        continue;
      }
      OrderedJson json = job.session ? api::result_json(*job.session) : OrderedJson::object();
      if (!job.error.empty()) {
        json["finish_reason"] = "error";
        json["error"] = job.error;
        failed_ = true;
      }
      job.session.reset();
      if (!print(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n")) return false;
    }
    return !output_closed();
  }

  TextModel& model_;
  std::vector<Job> jobs_;
  std::unordered_map<engine::RequestId, std::size_t> by_id_;
  std::size_t next_ = 0;  // the first answer that is not written yet
  std::size_t unanswered_ = 0;
  bool cancelled_ = false;
  bool failed_ = false;
  Totals totals_;
};

}  // namespace

Result<int> answer_batch(const ModelArguments& arguments, const SamplingArguments& sampling, const std::string& folder, const TextArguments& text,
                         const std::string& path, std::vector<NumberedRequest> requests) {
  std::vector<std::vector<std::int32_t>> prompts;
  TextLoading loading(folder, text, [&](const api::PromptEncoder& encoder) -> Result<void> {
    for (const NumberedRequest& numbered : requests) {
      const std::string where = fmt::format("{} line {}", path, numbered.line);
      Result<std::vector<std::int32_t>> ids = encoder.encode(numbered.request.prompt);
      if (!ids) return fail_at(where, std::move(ids.error()));
      if (Result<void> fits = check_prompt_length(ids->size(), arguments.engine); !fits) return fail_at(where, std::move(fits.error()));
      const Result<engine::SamplingParams> params = api::resolve_sampling({}, numbered.request.sampling.over(sampling.fields));
      if (!params) return fail_at(where, params.error());
      prompts.push_back(std::move(*ids));
    }
    return {};
  });
  TextModel model = TRY(open_text_model(arguments, loading, sampling.ignore_generation_config));
  note("sampling, where a line does not say otherwise: {}", api::describe(TRY(api::resolve_sampling(model.defaults, sampling.fields))));
  ExpertLoad load(arguments);
  TRY(load.count(model.engine->model()));
  Batch batch(model);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const api::SamplingFields fields = requests[i].request.sampling.over(sampling.fields);
    const engine::SamplingParams params = TRY(api::resolve_sampling(model.defaults, fields));
    Result<void> submitted = batch.submit(std::move(prompts[i]), params, fields.stop.value_or(std::vector<std::string>()));
    if (!submitted) return fail_at(fmt::format("{} line {}", path, requests[i].line), std::move(submitted.error()));
  }

  const InterruptGuard guard;
  const auto start = std::chrono::steady_clock::now();
  TRY(batch.run());
  TRY(load.write());
  note_rebalance(*model.engine);
  if (output_closed()) return kDone;
  note(closing_line(*model.engine, batch.totals(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()));
  if (batch.unanswered() > 0) note("interrupted: {} of {} requests were not answered", batch.unanswered(), requests.size());
  return interrupted() || batch.failed() ? kFailed : kDone;
}

}  // namespace inflight::cli
