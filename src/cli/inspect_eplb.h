// inspect --eplb FILE: how even the experts' loads lie on ranks, and how they would with replicas placed by them.
#pragma once
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cli/common_options.h"
#include "params/expert_placement.h"

namespace inflight::cli {

struct EplbArguments {
  std::string file;
  int nodes = 0;  // 0: one for each 8 ranks
  std::string strategy = "auto";
};

void add_eplb_arguments(CLI::App& app, EplbArguments& arguments);

// Loads of a layer on ranks: experts in runs as they are dealt out without EPLB, and as it places them. Layers that no token reached are left out of both.
struct BalanceReport {
  struct Layer {
    std::int64_t layer = 0, tokens = 0;
    std::vector<double> before;  // of each rank; empty: the experts do not divide over the ranks
    std::vector<double> after;
    std::vector<std::int32_t> physical;  // the expert of each physical one
  };
  params::Balancing balancing;
  std::int64_t experts = 0;
  std::vector<Layer> layers;
};

Result<BalanceReport> balance_report(const params::ExpertLoads& loads, const params::Balancing& balancing);
std::string balance_text(const BalanceReport& report);
OrderedJson balance_json(const BalanceReport& report);

// Reads the file and prints.
Result<int> run_eplb(const EplbArguments& arguments, const engine::EngineOptions& parallel, bool json);

}  // namespace inflight::cli
