#include "loader/export_fp8_config.h"

#include <algorithm>

#include "base/e4m3.h"

namespace inflight::loader {
namespace {

using params::Role;

Json numbers(std::string_view strategy) {
  return {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"dynamic", false}, {"strategy", strategy}, {"group_size", nullptr}, {"block_structure", nullptr}, {"actorder", nullptr}, {"observer", "minmax"}};
}

// Of compressed-tensors.
Json tensor_wise(const Fp8Export& options, bool experts, std::vector<std::string> ignored) {
  const auto group = [&](const char* target, std::string_view strategy) {
    return Json{{"targets", Json::array({target})}, {"weights", numbers(strategy)}, {"input_activations", options.activations ? numbers("tensor") : Json(nullptr)}, {"output_activations", nullptr},
                {"format", "float-quantized"}};
  };
  Json groups = {{"group_0", group("Linear", "tensor")}};
  if (options.expert_channels && experts) groups["group_1"] = group(R"(re:.*\.experts\..*)", "channel");
  if (std::ranges::find(ignored, "lm_head") == ignored.end()) ignored.push_back("lm_head");  // tied heads are modules too
  return {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}, {"quantization_status", "compressed"}, {"global_compression_ratio", nullptr}, {"config_groups", std::move(groups)},
          {"ignore", std::move(ignored)}, {"kv_cache_scheme", options.activations ? numbers("tensor") : Json(nullptr)}, {"fp8_target", options.bound == kGaudiE4m3Max ? "gaudi" : "ocp"}};
}

// Of transformers' "fp8", as DeepSeek publishes.
Json block_wise(const Fp8Export& options, std::vector<std::string> ignored) {
  if (std::ranges::find(ignored, "lm_head") == ignored.end()) ignored.push_back("lm_head");
  return {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}, {"modules_to_not_convert", std::move(ignored)},
          {"fp8_target", options.bound == kGaudiE4m3Max ? "gaudi" : "ocp"}};
}

}  // namespace

Result<Json> fp8_config(const Json& config, const params::ParamTable& table, const quant::FormatPolicy& policy, const Fp8Export& options, const std::vector<std::string>& plain_modules) {
  bool dense = false, experts = false, plain_dense = false, plain_experts = false;
  for (const params::ParamSpec& row : table.rows) {
    if (row.derivation || (row.role != Role::kLinear && row.role != Role::kExpert)) continue;
    const bool converted = policy.of(row) != nullptr;
    (row.role == Role::kLinear ? converted ? dense : plain_dense : converted ? experts : plain_experts) = true;
  }
  Json result = config;
  result.erase("compression_config");
  const std::string type = config.value("torch_dtype", config.value("dtype", std::string("bfloat16")));
  if (options.naming == Fp8Export::Naming::kHuggingFace) {
    // Readers take `dtype` without a new transformers_version for PaddlePaddle's layout.
    if (!config.contains("torch_dtype") && !config.contains("transformers_version")) {
      result.erase("dtype");
      result["torch_dtype"] = type;
    }
    result["quantization_config"] = options.blocks ? block_wise(options, plain_modules) : tensor_wise(options, experts, plain_modules);
    if (options.factors && !options.blocks) result["quantization_config"]["fp8_rounding"] = "compensated";
    if (options.plain_queries) result["quantization_config"]["fp8_queries"] = "plain";
    return result;
  }
  if ((dense && plain_dense) || (experts && plain_experts))
    return fail(Code::kInvalidArgument, "--naming ernie has one format for all dense matrices and one for all experts; leave out --quantization-override");
  result.erase("torch_dtype");
  result.erase("transformers_version");
  result["dtype"] = type;
  Json quantization = {{"quantization", "mix_quant"}, {"kv_cache_quant_type", options.bound == kGaudiE4m3Max ? "float8_e4m3" : "float8_e4m3fn"}, {"is_quantized", true}};
  if (dense) quantization["dense_quant_type"] = "tensor_wise_fp8";
  if (experts || dense) quantization["moe_quant_type"] = plain_experts ? Json(nullptr) : Json("tensor_wise_fp8");
  if (options.factors) quantization["fp8_rounding"] = "compensated";
  result["quantization_config"] = std::move(quantization);
  return result;
}

}  // namespace inflight::loader
