// config.json of a checkpoint with FP8 weights.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "loader/export_fp8.h"

namespace inflight::loader {

// config: of the source. plain_modules: matrices that are not converted, under the output's names.
Result<Json> fp8_config(const Json& config, const params::ParamTable& table, const quant::FormatPolicy& policy, const Fp8Export& options, const std::vector<std::string>& plain_modules);

}  // namespace inflight::loader
