// inflight chat MODEL: a conversation in the terminal, or one message per line from a pipe.
#include <memory>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "checkpoint/model_folder.h"
#include "cli/chat_message.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/text_model.h"

namespace inflight::cli {
namespace {

struct Arguments {
  ModelArguments model;
  SamplingArguments sampling;
  TextArguments text;
  std::string system;
};

constexpr std::string_view kHelp =
    "  /reset   forget the conversation (the system message stays)\n"
    "  /help    this text\n"
    "  /exit    leave; so does Ctrl-D\n"
    "Ctrl-C stops an answer. A line that ends in \\ goes on in the next; \"\"\" opens and closes a message of many lines.";

class Chat {
 public:
  Chat(const Arguments& arguments, TextModel& model) : arguments_(arguments), model_(model) { reset(); }

  Result<int> run() {
    const InterruptGuard guard(/*hard_second=*/!editor_.interactive());
    if (editor_.interactive()) note("context of {} tokens; /help lists the commands", model_.engine->limits().max_model_len);
    MessageBuilder builder;
    for (;;) {
      clear_interrupt();
      LineEditor::Read read = editor_.read(builder.open() ? ". " : "> ");
      std::optional<std::string> message;
      if (read.end == LineEditor::End::kClosed) {
        message = builder.end();
        if (!message) break;
      } else if (read.end == LineEditor::End::kInterrupted) {
        if (!editor_.interactive()) return kFailed;
        note(builder.open() ? "\nmessage dropped" : "\nCtrl-D or /exit leaves");
        builder.clear();
        continue;
      } else {
        message = builder.feed(read.line);
      }
      if (!message || message->find_first_not_of(" \t\n") == std::string::npos) continue;
      editor_.remember(*message);
      if (message->starts_with('/') && message->find('\n') == std::string::npos) {
        if (!command(*message)) break;
        continue;
      }
      const Result<void> answered = say(*message);
      if (output_closed()) return kDone;
      if (!answered) {
        if (!editor_.interactive()) return std::unexpected(answered.error());
        report(answered.error());
      } else if (interrupted() && !editor_.interactive()) {
        return kFailed;
      }
    }
    if (editor_.interactive()) note("");
    if (totals_.requests > 0) note(closing_line(*model_.engine, totals_, 0));
    return kDone;
  }

 private:
  void reset() {
    messages_ = OrderedJson::array();
    if (!arguments_.system.empty()) messages_.push_back({{"role", "system"}, {"content", arguments_.system}});
  }

  // false: leave.
  bool command(std::string_view line) {
    const std::string_view name = line.substr(0, line.find_last_not_of(" \t") + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/reset") {
      reset();
      note("the conversation is forgotten");
    } else if (name == "/help") {
      note(kHelp);
    } else {
      static constexpr std::string_view kKnown[] = {"/reset", "/help", "/exit"};
      note("unknown command \"{}\"; {}", name, known_names_hint(name, kKnown));
    }
    return true;
  }

  Result<void> say(const std::string& message) {
    TRY(check_utf8(message, "the message"));
    OrderedJson messages = messages_;
    messages.push_back({{"role", "user"}, {"content", message}});
    engine::Request request;
    request.prompt = TRY(model_.encoder.encode(api::Messages{messages}));
    request.sampling = TRY(api::resolve_sampling(model_.defaults, arguments_.sampling.fields));
    request.stop_ids = api::ids_of(model_.stops);
    const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
    const std::int64_t context = model_.engine->limits().max_model_len;
    if (prompt_tokens >= context)
      return fail(Code::kInvalidArgument, "the conversation and this message have {} tokens, but the context holds {}; /reset starts a new conversation, a shorter message may still fit", prompt_tokens, context);
    api::TextSession session = TRY(api::TextSession::create(model_.encoder.tokenizer(), prompt_tokens, arguments_.sampling.fields.stop.value_or(std::vector<std::string>()), request.sampling.min_tokens));
    const Result<engine::RequestStats> stats = answer(*model_.engine, std::move(request), session, [](std::string_view delta) { return print(delta); });
    if (!session.finish_reason().empty() && !session.text().ends_with('\n')) print("\n");
    if (!stats) return std::unexpected(stats.error());
    totals_.add(*stats);
    messages_ = std::move(messages);
    messages_.push_back({{"role", "assistant"}, {"content", session.text()}});
    if (session.finish_reason() == "length") {
      if (prompt_tokens + session.usage().completion_tokens >= context) note("the context of {} tokens is full: the answer ends here; /reset starts a new conversation", context);
      else note("the answer ends at --max-tokens {}", arguments_.sampling.fields.max_tokens.value_or(0));
    }
    if (arguments_.model.verbose) note("{} tokens of conversation, {} of answer, {}", prompt_tokens, session.usage().completion_tokens, session.finish_reason());
    return {};
  }

  const Arguments& arguments_;
  TextModel& model_;
  LineEditor editor_;
  OrderedJson messages_;
  Totals totals_;
};

Result<int> run(const Arguments& arguments) {
  TRY(check(arguments.model));
  TRY(api::resolve_sampling({}, arguments.sampling.fields));
  TRY(check_utf8(arguments.system, "--system"));
  const std::string folder = TRY(checkpoint::resolve_model_folder(arguments.model.model));
  TextLoading loading(folder, arguments.text, [&folder](const api::PromptEncoder& encoder) -> Result<void> {
    if (encoder.chat().has_template()) return {};
    return fail(Code::kUnsupported, "\"{}\" has no chat template, so it cannot hold a conversation; `inflight generate --raw` continues plain text", folder);
  });
  TextModel model = TRY(open_text_model(arguments.model, loading, arguments.sampling.ignore_generation_config));
  note("sampling: {}", api::describe(TRY(api::resolve_sampling(model.defaults, arguments.sampling.fields))));
  return Chat(arguments, model).run();
}

}  // namespace

Action declare_chat(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  add_model_arguments(app, arguments->model);
  app.add_option("--system", arguments->system, "System message");
  add_template_arguments(app, arguments->text);
  add_sampling_arguments(app, arguments->sampling);
  return {[arguments] { return run(*arguments); }, {arguments, &arguments->model}};
}

}  // namespace inflight::cli
