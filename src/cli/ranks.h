// A command on several ranks: rank 0 runs it, the others open the models that it opens and do what their forward passes ask for.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/agreement.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "engine/open_model.h"

namespace inflight::cli {

// `words`: the program's arguments, from the command on. With one rank: runs the action. With several, in a process that the user started: starts them, all on this host.
// In one that mpirun or srun started: joins the others; rank 0 runs the action, the others follow it. Returns the exit code, the same on all ranks.
Result<int> run_on_ranks(const Action& action, std::string_view command, const std::vector<std::string>& words);

// engine::open_model on the ranks of these arguments.
Result<std::unique_ptr<engine::OpenedModel>> open_on_ranks(const ModelArguments& arguments, const std::string& folder, const engine::LoadProgress& progress);

// On rank 0: the other ranks begin with Action::share, and this one must do its own at once. Nothing where there are no others.
void share_work(const ModelArguments& arguments);

// In Action::share and beside it: whether the ranks have the same checkpoint and the same `facts`. A collective.
Result<void> agree_on_checkpoint(const ModelArguments& arguments, const std::string& folder, const Facts& facts = {});

}  // namespace inflight::cli
