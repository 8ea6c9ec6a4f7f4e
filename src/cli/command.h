// A command of the program: a name, a line of help, and a function that declares its arguments.
// A new command is one file and one line in registry.cc.
#pragma once
#include <CLI/CLI.hpp>

#include <functional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace inflight::cli {

// What a command does once its arguments are parsed. Returns the exit code, or an error, which the caller prints.
using Action = std::function<Result<int>()>;

struct Command {
  std::string_view name;
  std::string_view summary;
  Action (*declare)(CLI::App& app);  // adds flags and positionals; the action owns what they fill
};

std::span<const Command> commands();

// The whole program: picks the command, parses, runs, prints errors. Returns the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace inflight::cli
