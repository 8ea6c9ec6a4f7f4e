#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/launch.h"
#include "cli/ranks.h"
#include "cli/version.h"

namespace inflight::cli {
namespace {

std::string help_text() {
  std::string text =
      "inflight: run Hugging Face checkpoints on the CPU, quantized while they load.\n\n"
      "usage: inflight COMMAND [flags]\n\ncommands:\n";
  for (const Command& command : commands()) text += fmt::format("  {:<10}{}\n", command.name, command.summary);
  text +=
      "\n  --help     this text; `inflight COMMAND --help` for the flags of a command\n"
      "  --version  version, compiler, instruction sets\n\n"
      "Text goes to standard output, everything else to standard error.\n"
      "Exit code: 0 done, 1 failed, 2 wrong usage or input.\n";
  return text;
}

int usage_error(std::string_view command, std::string_view message) {
  note("inflight{}{}: {}\nrun `inflight{}{} --help` for usage", command.empty() ? "" : " ", command, message, command.empty() ? "" : " ", command);
  return kUsage;
}

std::string flag_hint(const CLI::App& app, std::string_view flag) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view near = nearest_name(flag, views);
  return near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
}

// The words that no flag or positional took, as one sentence; "" when there are none.
std::string leftover(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string flag = word.substr(0, word.find('='));
    return fmt::format("unknown flag \"{}\"{}", flag, flag_hint(app, flag));
  }
  return words.empty() ? "" : fmt::format("unexpected argument \"{}\"", words[0]);
}

// "Could not convert: --top-k = abc" as "--top-k: \"abc\" is not a number that it can take"; other messages as they are.
std::string in_our_words(std::string_view message) {
  static constexpr std::string_view kConvert = "Could not convert: ";
  const std::size_t equals = message.find(" = ");
  if (!message.starts_with(kConvert) || equals == std::string_view::npos) return std::string(message);
  return fmt::format("{}: \"{}\" is not a number that it can take", message.substr(kConvert.size(), equals - kConvert.size()), message.substr(equals + 3));
}

int run_command(const Command& command, int argc, const char* const* argv) {
  CLI::App app(std::string(command.summary), fmt::format("inflight {}", command.name));
  app.get_formatter()->column_width(34);
  const Action action = command.declare(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return output_failed() ? kFailed : kDone;
  } catch (const CLI::ParseError& error) {
    const std::string words = leftover(app);
    return usage_error(command.name, words.empty() ? in_our_words(error.what()) : words);
  }
  const Result<int> outcome = action.model ? run_on_ranks(action, command.name, {argv, argv + argc}) : action.run();
  if (!outcome) return report(outcome.error());
  return output_failed() ? kFailed : *outcome;
}

int run_words(int argc, const char* const* argv) {
  if (argc < 2) {
    note(help_text());
    return kUsage;
  }
  static constexpr const char* kHelpFlag[] = {"inflight", "", "--help"};
  std::string_view name = argv[1];
  const bool help = name == "--help" || name == "-h" || name == "help";
  if (help && argc > 2) {  // `inflight help COMMAND`
    name = argv[2];
    argc = 3;
    argv = kHelpFlag;
  } else if (help) {
    print(help_text());
    return output_failed() ? kFailed : kDone;
  }
  if (name == "--version" || name == "-V" || name == "version") {
    print(version_text());
    return output_failed() ? kFailed : kDone;
  }
  const auto found = std::ranges::find(commands(), name, &Command::name);
  if (found == commands().end()) {
    std::vector<std::string_view> names;
    for (const Command& command : commands()) names.push_back(command.name);
    return usage_error("", fmt::format("unknown {} \"{}\"; {}", name.starts_with('-') ? "flag" : "command", name, known_names_hint(name, names)));
  }
  try {
    return run_command(*found, argc - 1, argv + 1);
  } catch (const std::bad_alloc&) {
    note("inflight: out of memory");
  } catch (const std::exception& error) {
    note("inflight: internal error: {}", error.what());
  }
  return kFailed;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  if (argc != 3 || std::string_view(argv[1]) != kLocalRank) {
    prepare_standard_streams();
    return run_words(argc, argv);
  }
  const Result<std::vector<std::string>> words = join_launcher(argv[2]);
  prepare_standard_streams();
  if (!words) return report(words.error());
  std::vector<const char*> all = {argv[0]};
  for (const std::string& word : *words) all.push_back(word.c_str());
  const int code = run_words(static_cast<int>(all.size()), all.data());
  report_exit_code(code);
  return code;
}

}  // namespace inflight::cli
