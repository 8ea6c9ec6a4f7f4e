#include "models/registry.h"

#include <array>

#include "base/nearest.h"
#include "models/architectures.h"
#include "models/config_reader.h"

namespace inflight::models {
namespace {

struct Entry {
  std::string_view architecture;  // as config.json's `architectures` says
  std::string_view model_type;
  Result<std::unique_ptr<Model>> (*make)(const JsonView&, const nn::Declarations&);
};

constexpr std::array kEntries = {
    Entry{"LlamaForCausalLM", "llama", make_llama},
    Entry{"Qwen2ForCausalLM", "qwen2", make_qwen2},
    Entry{"Qwen3ForCausalLM", "qwen3", make_qwen3},
    Entry{"Qwen3MoeForCausalLM", "qwen3_moe", make_qwen3_moe},
    Entry{"Qwen2MoeForCausalLM", "qwen2_moe", make_qwen2_moe},
    Entry{"Glm4MoeForCausalLM", "glm4_moe", make_glm4_moe},
    Entry{"Ernie4_5ForCausalLM", "ernie4_5", make_ernie4_5},
    Entry{"Ernie4_5_MoeForCausalLM", "ernie4_5_moe", make_ernie4_5_moe},
    Entry{"DeepseekV2ForCausalLM", "deepseek_v2", make_deepseek_v2},
    Entry{"DeepseekV3ForCausalLM", "deepseek_v3", make_deepseek_v3},
};

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kEntries) names.push_back(entry.architecture);
  return names;
}

Result<std::unique_ptr<Model>> build_model(const JsonView& config, const nn::Declarations& given) {
  nn::Declarations declarations = given;
  if (config.has("quantization_config") && (*config.object)["quantization_config"].contains("quantization")) declarations.transposed = TRY(is_paddle_layout(config));  // PaddlePaddle's, whatever the model
  std::string architecture;
  if (config.has("architectures")) {
    const Json& list = (*config.object)["architectures"];
    if (!list.is_array() || list.empty() || !list[0].is_string())
      return fail(Code::kCorrupt, "{}: \"architectures\" must be a list of names such as [\"LlamaForCausalLM\"]", config.where);
    architecture = list[0].get<std::string>();
  } else {
    const std::string type = TRY(config.string("model_type"));
    for (const Entry& entry : kEntries)
      if (entry.model_type == type) architecture = entry.architecture;
    if (architecture.empty()) return fail(Code::kUnsupported, "{}: no \"architectures\", and model_type \"{}\" is unknown; {}", config.where, type, known_names_hint(type, known_architectures()));
  }
  for (const Entry& entry : kEntries)
    if (entry.architecture == architecture) return entry.make(config, declarations);
  return fail(Code::kUnsupported, "{}: architecture \"{}\" is not supported; {}", config.where, architecture, known_names_hint(architecture, known_architectures()));
}

}  // namespace inflight::models
