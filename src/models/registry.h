// Which model a config.json asks for.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "models/model.h"
#include "nn/module.h"

namespace inflight::models {

// Builds the model named by `architectures` (or, without it, `model_type`): declares its parameters in declarations.table.
// An unknown architecture is an error that lists the known ones.
Result<std::unique_ptr<Model>> build_model(const JsonView& config, const nn::Declarations& declarations);

std::vector<std::string_view> known_architectures();

}  // namespace inflight::models
