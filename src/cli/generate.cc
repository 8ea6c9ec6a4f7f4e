// inflight generate MODEL [-p TEXT | --prompts FILE.jsonl | -]
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/expert_load.h"
#include "cli/generate_batch.h"
#include "cli/html_page.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/prompts_file.h"
#include "cli/text_model.h"
#include "checkpoint/model_folder.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  SamplingArguments sampling;
  TextArguments text;
  std::optional<std::string> prompt;
  std::optional<std::string> prompts;
  std::optional<std::string> input;  // "-"
  bool json = false;
};

Result<void> check_inputs(const Arguments& arguments) {
  if (arguments.input && *arguments.input != "-")
    return fail(Code::kInvalidArgument, "unexpected argument \"{}\"; give the prompt with -p TEXT, or - to read it from standard input", *arguments.input);
  const int inputs = static_cast<int>(arguments.prompt.has_value()) + static_cast<int>(arguments.prompts.has_value()) + static_cast<int>(arguments.input.has_value());
  if (inputs != 1)
    return fail(Code::kInvalidArgument, "generate needs exactly one of -p TEXT, --prompts FILE.jsonl and - (standard input), but has {}", inputs == 0 ? "none" : "several");
  return {};
}

Result<std::string> prompt_text(const Arguments& arguments) {
  std::string text = arguments.prompt ? *arguments.prompt : TRY(read_standard_input());
  TRY(check_utf8(text, arguments.prompt ? "-p" : "standard input"));
  return text;
}

Result<int> answer_one(const Arguments& arguments, const std::string& folder, const std::string& text) {
  engine::Request request;
  TextLoading loading(folder, arguments.text, [&](const api::PromptEncoder& encoder) -> Result<void> {
    request.prompt = TRY(encoder.encode(text));
    return check_prompt_length(request.prompt.size(), arguments.model.engine);
  });
  TextModel model = TRY(open_text_model(arguments.model, loading, arguments.sampling.ignore_generation_config));
  ExpertLoad load(arguments.model);
  TRY(load.count(model.engine->model()));
  request.sampling = TRY(api::resolve_sampling(model.defaults, arguments.sampling.fields));
  request.stop_ids = api::ids_of(model.stops);
  note("sampling: {}", api::describe(request.sampling));
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  api::TextSession session = TRY(api::TextSession::create(model.encoder.tokenizer(), prompt_tokens, arguments.sampling.fields.stop.value_or(std::vector<std::string>()), request.sampling.min_tokens));

  const InterruptGuard guard;
  const Result<engine::RequestStats> stats = answer(*model.engine, std::move(request), session, [&](std::string_view delta) { return arguments.json || print(delta); });
  if (session.finish_reason().empty()) return std::unexpected(stats.error());  // refused, nothing ran
  if (arguments.json) {
    OrderedJson json = api::result_json(session);
    if (!stats) json["error"] = stats.error().message;
    print(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  } else if (!session.text().ends_with('\n')) {
    print("\n");
  }
  TRY(load.write());
  note_rebalance(*model.engine);
  if (!stats) return std::unexpected(stats.error());
  if (output_closed()) return kDone;  // the reader has seen enough
  Totals totals;
  totals.add(*stats);
  note(closing_line(*model.engine, totals, 0));
  return interrupted() ? kFailed : kDone;
}

Result<int> run(const Arguments& arguments) {
  TRY(check_inputs(arguments));
  TRY(check(arguments.model));
  TRY(api::resolve_sampling({}, arguments.sampling.fields));  // ranges, before anything is read
  TRY(check_writable(arguments.model.expert_load));
  std::vector<NumberedRequest> requests;
  std::string text;
  if (arguments.prompts) requests = TRY(read_prompts_file(*arguments.prompts));
  else text = TRY(prompt_text(arguments));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  if (arguments.prompts) return answer_batch(arguments.model, arguments.sampling, folder, arguments.text, prompts_name(*arguments.prompts), std::move(requests));
  return answer_one(arguments, folder, text);
}

}  // namespace

Action declare_generate(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("INPUT", arguments->input, "- : the prompt is all of standard input");
  app.add_option("-p,--prompt", arguments->prompt, "The prompt: one user message of the chat template");
  app.add_option("--prompts", arguments->prompts, "JSON lines with \"prompt\", \"messages\" or \"ids\", and any sampling field; answers are JSON lines in the same order");
  app.add_flag("--raw", arguments->text.raw, "The prompt is plain text: no chat template, special tokens as the tokenizer adds them");
  app.add_flag("--json", arguments->json, "One JSON object with text, ids, finish_reason and usage instead of streamed text");
  add_expert_load_argument(app, arguments->model);
  add_template_arguments(app, arguments->text);
  add_sampling_arguments(app, arguments->sampling);
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}};
}

}  // namespace inflight::cli
