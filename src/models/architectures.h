// One maker per architecture; registry.cc lists them.
#pragma once
#include <memory>

#include "base/json.h"
#include "models/model.h"
#include "nn/module.h"

namespace inflight::models {

Result<std::unique_ptr<Model>> make_llama(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_qwen2(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_qwen3(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_qwen3_moe(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_qwen2_moe(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_glm4_moe(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_deepseek_v2(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_deepseek_v3(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_ernie4_5(const JsonView& config, const nn::Declarations& declarations);
Result<std::unique_ptr<Model>> make_ernie4_5_moe(const JsonView& config, const nn::Declarations& declarations);

}  // namespace inflight::models
