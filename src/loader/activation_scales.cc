#include "loader/activation_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/bf16.h"
#include "base/e4m3.h"
#include "params/points.h"
#include "quant/matrix_names.h"

namespace inflight::loader {
namespace {

using checkpoint::Checkpoint;
using params::ParamSpec;
using params::Role;

// PaddlePaddle's quantization_config names a "quantization" instead of a "quant_method".
const Json* quantization_of(const JsonView& config) {
  if (!config.has("quantization_config")) return nullptr;
  const Json& block = (*config.object)["quantization_config"];
  return block.is_object() ? &block : nullptr;
}
bool is_paddle(const Json* block) { return block && !block->contains("quant_method") && block->contains("quantization"); }

std::string text_of(const Json& block, const char* key) {
  const auto found = block.find(key);
  return found != block.end() && found->is_string() ? found->get<std::string>() : std::string();
}

struct Cache {
  std::string_view point;
  std::vector<std::string_view> names;  // after the block's scope
};

const std::array<Cache, 4>& attention_names() {
  static const std::array<Cache, 4> kNames = {
      Cache{params::kQueryPoint, {"q_scale", "attn.q_scale", "q_proj.output_scale"}},  // check_sources: allow name: scales of several producers
      Cache{params::kKeyPoint, {"k_scale", "attn.k_scale", "k_proj.output_scale", "k_proj.k_scale", "kv_scale"}},  // check_sources: allow name: likewise
      Cache{params::kValuePoint, {"v_scale", "attn.v_scale", "v_proj.output_scale", "v_proj.v_scale", "kv_scale"}},  // check_sources: allow name: likewise
      Cache{"s_matmul", {"prob_output_scale"}},
  };
  return kNames;
}

constexpr std::int64_t kMostNumbers = 4096;

Result<float> largest_in(const Checkpoint& checkpoint, const checkpoint::Tensor& tensor) {
  const auto& [info, shard] = tensor;
  const std::int64_t count = info.elements();
  const bool known = info.dtype == DType::kBF16 || info.dtype == DType::kF16 || info.dtype == DType::kF32;
  if (!known || count < 1 || count > kMostNumbers)
    return fail(Code::kCorrupt, "\"{}\" in {} is no scale of activations: {} numbers of type {}; expected one of BF16, F16 or F32", info.name, checkpoint.shards()[static_cast<std::size_t>(shard)].path(), count,
                dtype_name(info.dtype));
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
  TRY(checkpoint.shards()[static_cast<std::size_t>(shard)].read_at(bytes.data(), bytes.size(), info.begin));
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    float value = 0;
    if (info.dtype == DType::kF32) {
      std::memcpy(&value, bytes.data() + i * 4, 4);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i * 2, 2);
      value = info.dtype == DType::kBF16 ? bf16_to_float(half) : fp16_to_float(half);
    }
    if (!std::isfinite(value) || value < 0) return fail(Code::kCorrupt, "\"{}\" holds {}; a scale of activations is finite and not negative", info.name, value);
    largest = std::max(largest, value);
  }
  return largest;
}

// The largest scale of the same matrix of the layer's other experts; 0: there is none, or the point is of no expert.
float of_other_experts(const quant::ActivationScales& scales, const std::string& point) {
  const std::string_view kExperts = ".experts.";
  const std::size_t at = point.find(kExperts);
  if (at == std::string::npos) return 0;
  const std::string layer = point.substr(0, at + kExperts.size()), matrix = point.substr(point.rfind('.'));
  float largest = 0;
  for (auto other = scales.scale.lower_bound(layer); other != scales.scale.end() && other->first.starts_with(layer); ++other)
    if (other->first.ends_with(matrix) && other->first.find('.', layer.size()) != std::string::npos) largest = std::max(largest, other->second);
  return largest;
}

}  // namespace

std::vector<ScaleTensor> scale_tensors(const Checkpoint& checkpoint, const params::ParamTable& table, const JsonView& config) {
  const bool paddle = is_paddle(quantization_of(config));
  std::vector<ScaleTensor> found;
  std::set<std::string> asked;  // experts of a layer share a tensor
  const auto add = [&](const std::string& point, const std::string& name) {
    if (!asked.insert(name + ">" + point).second) return;
    const checkpoint::Tensor* tensor = checkpoint.find(name);
    if (!tensor) return;
    found.push_back({point, static_cast<int>(tensor - checkpoint.tensors().data()), paddle && name.ends_with(".activation_scale") && name.find("self_attn") != std::string::npos});
  };
  for (const ParamSpec& row : table.rows) {
    if (row.derivation || (row.role != Role::kLinear && row.role != Role::kExpert && row.role != Role::kHead)) continue;
    const std::string point = params::input_point(row), own = row.scope.empty() ? row.name : row.scope + "." + row.name;
    std::vector<std::string> bases = {point, own};
    for (std::size_t p = 0; p < row.pieces.size(); ++p) {
      bases.push_back(row.piece_base(p));
      if (std::string tensor = row.pieces[p].source.tensor; !tensor.empty()) bases.push_back(tensor.ends_with(".weight") ? tensor.substr(0, tensor.size() - 7) : tensor);
    }
    for (const std::string& base : bases)
      for (const char* suffix : {".input_scale", ".activation_scale"}) add(point, base + suffix);
    if (row.name != quant::kQkvProj) continue;
    for (const Cache& cache : attention_names()) {
      const std::string of_cache = fmt::format("{}.{}", row.scope, cache.point);
      add(of_cache, of_cache + ".activation_scale");
      for (const std::string_view name : cache.names) add(of_cache, fmt::format("{}.{}", row.scope, name));
    }
  }
  return found;
}

Result<StoredActivations> stored_activations(const JsonView& config) {
  const Json* block = quantization_of(config);
  if (!block) return StoredActivations{};
  const std::string method = text_of(*block, "quant_method");
  StoredActivations stored;
  if (is_paddle(block)) {
    const auto is_fp8 = [&](const char* key) { return text_of(*block, key) == "tensor_wise_fp8"; };
    if (is_fp8("quantization") || is_fp8("dense_quant_type") || is_fp8("moe_quant_type")) stored.scheme = "static";
    stored.bound = text_of(*block, "kv_cache_quant_type") == "float8_e4m3fn" ? kE4m3Max : kGaudiE4m3Max;
    return stored;
  }
  if (method == "fbgemm_fp8") stored.scheme = "dynamic";
  // Beside blocks "dynamic" means a scale for 128 inputs of a token, which is finer than ours: nearer to it is not to round.
  if (method == "fp8") stored.scheme = text_of(*block, "activation_scheme") == "static" ? "static" : block->contains("weight_block_size") && !(*block)["weight_block_size"].is_null() ? "none" : "dynamic";
  if (method == "compressed-tensors" && block->contains("config_groups")) {
    for (const auto& [name, group] : (*block)["config_groups"].items()) {
      if (!group.is_object()) continue;
      const auto inputs = group.find("input_activations");
      if (inputs == group.end() || !inputs->is_object() || text_of(*inputs, "type") != "float" || inputs->value("num_bits", Json(8)) != 8) continue;
      const auto dynamic = inputs->find("dynamic");
      const std::string strategy = text_of(*inputs, "strategy");
      if (strategy == "group" || strategy == "block" || strategy == "tensor_group") continue;
      stored.scheme = dynamic != inputs->end() && *dynamic == true ? "dynamic" : "static";
    }
  }
  stored.plain_queries = text_of(*block, "fp8_queries") == "plain";
  const std::string target = text_of(*block, "fp8_target");
  if (!target.empty() && target != "ocp" && target != "gaudi") return fail(Code::kCorrupt, "{}: quantization_config: \"fp8_target\" is \"{}\"; known are \"ocp\" and \"gaudi\"", config.where, target);
  if (!target.empty()) stored.bound = target == "gaudi" ? kGaudiE4m3Max : kE4m3Max;
  return stored;
}

Result<quant::ActivationScales> read_activation_scales(const Checkpoint& checkpoint, const params::ParamTable& table, const JsonView& config) {
  const StoredActivations stored = TRY(stored_activations(config));
  const float bound = stored.bound == 0 ? kE4m3Max : stored.bound;
  quant::ActivationScales scales;
  std::set<std::string> unreached;
  for (const ScaleTensor& source : scale_tensors(checkpoint, table, config)) {
    float value = TRY(largest_in(checkpoint, checkpoint.tensors()[static_cast<std::size_t>(source.tensor)]));
    if (source.absmax) value /= bound;
    if (value == 0) {
      unreached.insert(source.point);
      continue;
    }
    float& scale = scales.scale[source.point];
    scale = std::max(scale, value);
  }
  std::map<std::string, float> of_others;
  for (const std::string& point : unreached)
    if (const float scale = of_other_experts(scales, point); scale != 0 && scales.of(point) == 0) of_others.emplace(point, scale);
  scales.scale.insert(of_others.begin(), of_others.end());
  return scales;
}

}  // namespace inflight::loader
