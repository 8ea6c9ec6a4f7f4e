// Files of experts' loads: {"layers": [[tokens of each expert], ...]}, layers without experts all zeros. `--expert-load FILE` writes one, `inspect --eplb FILE` reads it.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/common_options.h"
#include "engine/engine.h"
#include "params/expert_placement.h"

namespace inflight::cli {

void add_expert_load_argument(CLI::App& app, ModelArguments& arguments);

Result<params::ExpertLoads> parse_expert_load(std::string_view text, std::string_view where);
std::string expert_load_json(const params::ExpertLoads& loads);

// On standard error, what became of the last placement of experts that --eplb-interval asked for.
void note_rebalance(const engine::Engine& engine);

// Counts while a model runs, where the flag asks for it. Stays where it is as long as the model runs.
class ExpertLoad {
 public:
  explicit ExpertLoad(const ModelArguments& arguments) : path_(arguments.expert_load) {}
  ExpertLoad(const ExpertLoad&) = delete;
  ExpertLoad& operator=(const ExpertLoad&) = delete;
  // Refuses a model without experts. wanted: also where no file is.
  Result<void> count(const engine::OpenedModel& opened, bool wanted = false);
  // What ranks counted comes together.
  Result<void> write() const;
  const params::ExpertLoads& loads() const { return *opened_->runtime->expert_tokens; }

 private:
  std::string path_;
  params::ExpertLoads loads_;
  const engine::OpenedModel* opened_ = nullptr;
};

}  // namespace inflight::cli
