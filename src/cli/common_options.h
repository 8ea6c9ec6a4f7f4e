// The flags that every command shares: the model, how to load it, how to run it, how to sample.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/sampling.h"
#include "base/result.h"
#include "comm/comm.h"
#include "engine/open_model.h"
#include "engine/options.h"

namespace inflight::cli {

struct ModelArguments {
  std::string model;              // a folder, or a hub id that is in the local cache
  engine::EngineOptions engine;
  std::string expert_load;        // where the tokens of each expert are written (expert_load.h); "": nowhere
  bool verbose = false;
  bool by_shares = false;         // ranks open whole parameters each (engine::open_share), called on all of them by Action::share
  int number = 0;                 // among the models that the command opens
  std::shared_ptr<comm::Comm> ranks;  // that open it; nullptr: this process alone
};

// MODEL and the load and engine flags.
void add_model_arguments(CLI::App& app, ModelArguments& arguments, bool model_required = true);
// Everything that can be known before the model folder is looked at: names, ranges, what is not supported. only_plan: the model will not be opened.
Result<void> check(const ModelArguments& arguments, bool only_plan = false);

struct SamplingArguments {
  api::SamplingFields fields;
  bool ignore_generation_config = false;
};

void add_sampling_arguments(CLI::App& app, SamplingArguments& arguments);

// The value must be one of `known`; the error names the flag, the known values and the nearest.
Result<void> check_choice(std::string_view flag, std::string_view value, const std::vector<std::string_view>& known);

// Folder of the model, all checks, then open_model with a progress bar; notes of the model on standard error. `unwanted` is asked now and
// then: true ends loading with kCancelled.
Result<std::unique_ptr<engine::OpenedModel>> open_with_progress(const ModelArguments& arguments, const std::function<bool()>& unwanted = {});

}  // namespace inflight::cli
