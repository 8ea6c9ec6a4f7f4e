// A command of the program: a name, a line of help, and a function that declares its arguments.
// A new command is one file and one line in registry.cc.
#pragma once
#include <CLI/CLI.hpp>

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace inflight::cli {

struct ModelArguments;

// What a command does once its arguments are parsed. `run` returns the exit code, or an error, which the caller prints.
struct Action {
  template <std::invocable Run>
  Action(Run&& run_, std::shared_ptr<ModelArguments> model_ = nullptr, std::function<std::vector<ModelArguments>()> models_ = {},
         std::function<Result<void>()> share_ = {})  // NOLINT: a lambda is an action
      : run(std::forward<Run>(run_)), model(std::move(model_)), models(std::move(models_)), share(std::move(share_)) {}

  std::function<Result<int>()> run;
  std::shared_ptr<ModelArguments> model;                // of a command that opens it, on as many ranks as these say; nullptr: one process
  std::function<std::vector<ModelArguments>()> models;  // all that it opens at the same time, by their numbers; without it, that one
  std::function<Result<void>()> share;                  // of a command whose work all ranks do together: what ranks other than 0 do when it calls share_work()
};

struct Command {
  std::string_view name;
  std::string_view summary;
  Action (*declare)(CLI::App& app);  // adds flags and positionals; the action owns what they fill
};

std::span<const Command> commands();

// The whole program: picks the command, parses, runs, prints errors. Returns the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace inflight::cli
