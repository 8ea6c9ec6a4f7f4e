#include "cli/text_model.h"

#include <system_error>

#include "cli/console.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/traffic.h"

namespace inflight::cli {

void add_template_arguments(CLI::App& app, TextArguments& arguments) {
  app.add_option("--chat-template-kwargs", arguments.template_variables, "More variables of the chat template, a JSON object such as {\"enable_thinking\": false}");
  app.add_flag("--plain-content", arguments.plain_content, "The text of a special token inside a message is ordinary text; without it, it is that token, as in the reference");
}

namespace {

Result<api::PromptEncoder> load_encoder(const std::string& folder, const TextArguments& arguments) {
  api::PromptOptions options{.raw = arguments.raw, .plain_content = arguments.plain_content};
  if (!arguments.template_variables.empty()) {
    TRY(parse_json(arguments.template_variables, "--chat-template-kwargs"));
    options.variables = OrderedJson::parse(arguments.template_variables, nullptr, false);
    if (!options.variables.is_object()) return fail(Code::kInvalidArgument, "--chat-template-kwargs must be a JSON object, for example {{\"enable_thinking\": false}}");
  }
  return api::PromptEncoder::load(folder, std::move(options));
}

}  // namespace

TextLoading::TextLoading(std::string folder, TextArguments arguments, Prepare prepare) {
  auto work = [this, folder = std::move(folder), arguments = std::move(arguments), prepare = std::move(prepare)]() -> Result<api::PromptEncoder> {
    try {
      Result<api::PromptEncoder> encoder = load_encoder(folder, arguments);
      if (!encoder) return failed_ = true, std::move(encoder);
      if (Result<void> prepared = prepare(*encoder); !prepared) return failed_ = true, std::unexpected(std::move(prepared.error()));
      return encoder;
    } catch (...) {  // out of memory: wait() throws it again
      failed_ = true;
      throw;
    }
  };
  try {
    outcome_ = std::async(std::launch::async, work);
  } catch (const std::system_error&) {  // no thread to be had: in wait(), on the caller's
    outcome_ = std::async(std::launch::deferred, std::move(work));
  }
}

Result<api::PromptEncoder> TextLoading::wait() { return outcome_.get(); }

Result<void> check_prompt_length(std::size_t tokens, const engine::EngineOptions& options) {
  if (options.max_model_len == 0 || static_cast<std::int64_t>(tokens) < options.max_model_len) return {};
  return fail(Code::kInvalidArgument, "the prompt has {} tokens, but prompt and answer together can have at most {} (--max-model-len {}); shorten the prompt", tokens,
              options.max_model_len, options.max_model_len);
}

Result<TextModel> open_text_model(const ModelArguments& arguments, TextLoading& text, bool ignore_generation_config) {
  Result<std::unique_ptr<engine::OpenedModel>> loaded = open_with_progress(arguments, [&text] { return text.failed(); });
  if (!loaded && loaded.error().code != Code::kCancelled) return std::unexpected(std::move(loaded.error()));
  api::PromptEncoder encoder = TRY(text.wait());
  std::unique_ptr<engine::OpenedModel> opened = TRY(std::move(loaded));
  TextModel model{.encoder = std::move(encoder), .engine = {}, .stops = {}, .defaults = {}};
  model.stops = api::stop_set(opened->config_stop_ids, model.encoder.tokenizer(), model.encoder.chat());
  std::erase_if(model.stops, [&](const api::StopId& stop) {
    const bool never = stop.id >= opened->model->info().vocabulary;
    if (never) note("note: stop token {} is past the model's vocabulary of {} and cannot occur", stop.id, opened->model->info().vocabulary);
    return never;
  });
  if (model.encoder.tokenizer().vocab_size() > opened->model->info().vocabulary)
    note("note: the tokenizer has ids up to {}, but the model's vocabulary has {} rows; is it the tokenizer of another model?", model.encoder.tokenizer().vocab_size() - 1,
         opened->model->info().vocabulary);
  model.defaults = TRY(api::sampling_defaults(ignore_generation_config ? nullptr : opened->generation_config.get()));
  for (const std::string& line : model.defaults.notes) note("note: {}", line);
  model.engine = TRY(engine::Engine::create(std::move(opened), arguments.engine));
  const engine::EngineLimits& limits = model.engine->limits();
  const std::int64_t promised = model.engine->model().model->info().max_positions;
  if (arguments.engine.max_model_len == 0 && limits.max_model_len < promised)
    note("note: memory holds a context of {} tokens; the model promises {}", limits.max_model_len, promised);
  if (arguments.verbose) {
    note("stop tokens: {}", api::describe(model.stops));
    note("context: {} tokens at most; KV cache: {} blocks of {} tokens, {}", limits.max_model_len, limits.kv_blocks, limits.block_size, human_bytes(limits.kv_bytes));
  }
  return model;
}

Result<engine::RequestStats> answer(engine::Engine& engine, engine::Request request, api::TextSession& session, const Emit& emit) {
  const engine::RequestId id = TRY(engine.submit(std::move(request)));
  bool ending = false;
  const auto end = [&] {
    if (!ending) engine.cancel(id);
    ending = true;
  };
  engine::FinishReason reason = engine::FinishReason::kNone;
  Error error;
  while (engine.has_work() && reason == engine::FinishReason::kNone) {
    for (const engine::Event& event : engine.step()) {
      if (event.request != id) continue;
      if (event.token && !ending) {
        const Result<std::string> delta = session.feed(*event.token);
        if (!delta) {
          error = delta.error();
          end();
        } else if ((!delta->empty() && !emit(*delta)) || session.stopped()) {
          end();
        }
      }
      reason = event.finish;
      if (reason == engine::FinishReason::kError) error = Error{Code::kInternal, event.error};
    }
    if (interrupted()) end();
  }
  const Result<std::string> rest = session.finish(error.message.empty() ? reason : engine::FinishReason::kError);
  if (rest && !rest->empty()) emit(*rest);
  engine::RequestStats stats;
  if (const engine::RequestStats* seen = engine.stats(id)) stats = *seen;
  engine.forget(id);
  if (!error.message.empty()) return std::unexpected(std::move(error));
  if (!rest) return std::unexpected(rest.error());
  return stats;
}

void Totals::add(const engine::RequestStats& one) {
  ++requests;
  stats.prompt_tokens += one.prompt_tokens;
  stats.generated_tokens += one.generated_tokens;
  stats.prefill_seconds += one.prefill_seconds;
  stats.decode_seconds += one.decode_seconds;
  stats.preemptions += one.preemptions;
}

std::string closing_line(const engine::Engine& engine, const Totals& totals, double wall_seconds) {
  const engine::OpenedModel& opened = engine.model();
  const engine::RequestStats& stats = totals.stats;
  std::string line = fmt::format("load {}", human_seconds(opened.report.seconds));
  const std::string rate = gigabytes_per_second(static_cast<double>(opened.report.source_bytes), opened.report.seconds);
  if (!rate.empty()) line += fmt::format(" ({})", rate);
  line += fmt::format(", peak memory {}", human_bytes(peak_resident_bytes()));
  if (wall_seconds > 0) {
    return line + fmt::format(", {} requests in {}: {} prompt tokens ({} tokens/s), {} answer tokens ({} tokens/s)", totals.requests, human_seconds(wall_seconds), stats.prompt_tokens,
                              human_rate(static_cast<double>(stats.prompt_tokens) / wall_seconds), stats.generated_tokens, human_rate(static_cast<double>(stats.generated_tokens) / wall_seconds));
  }
  line += fmt::format(", prompt {} tokens", stats.prompt_tokens);
  if (stats.prefill_seconds > 0) line += fmt::format(" ({} tokens/s)", human_rate(static_cast<double>(stats.prompt_tokens) / stats.prefill_seconds));
  line += fmt::format(", answer {} tokens", stats.generated_tokens);
  const auto steps = static_cast<double>(stats.generated_tokens - 1);  // the first token comes with the prompt
  if (steps < 1 || stats.decode_seconds <= 0) return line;
  const double per_second = steps / stats.decode_seconds;
  const double context = static_cast<double>(stats.prompt_tokens) + steps / 2;
  const engine::EngineLimits& limits = engine.limits();
  const double kv_token_bytes = static_cast<double>(limits.kv_bytes) / static_cast<double>(limits.kv_blocks * limits.block_size);
  const double bytes = static_cast<double>(decode_bytes(opened, 1)) + context * kv_token_bytes;
  const double bandwidth = read_bandwidth(opened);
  line += fmt::format(" ({} tokens/s", human_rate(per_second));
  if (bandwidth > 0) line += fmt::format(", {:.0f} % of read bandwidth", 100 * per_second * bytes / bandwidth);
  return line + ")";
}

}  // namespace inflight::cli
