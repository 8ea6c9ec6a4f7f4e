// Which checkpoint tensors fill which parameter, and back: what a trainer needs to send new weights (loader/update.h).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "params/param_spec.h"

namespace inflight::params {

// A parameter's full name, and the tensors that fill it, in the order of its rows. Derived parameters have none and are left out.
struct NameMapping {
  std::string runtime;
  std::vector<std::string> trainer;
};
std::vector<NameMapping> names_to_trainer(const ParamTable& table);

// The parameters that each tensor fills, in the order of the table: several where it is fused or a stack of experts.
std::map<std::string, std::vector<std::string>> names_to_runtime(const ParamTable& table);

}  // namespace inflight::params
