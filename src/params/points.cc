#include "params/points.h"

namespace inflight::params {

std::string input_point(const ParamSpec& row) {
  std::string scope = row.scope;
  const std::string number = "." + std::to_string(row.expert);
  if (row.expert >= 0 && row.split == Split::kOutputs && scope.ends_with(number)) scope.resize(scope.size() - number.size());
  return scope.empty() ? row.name : scope + "." + row.name;
}

}  // namespace inflight::params
