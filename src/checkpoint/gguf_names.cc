#include "checkpoint/gguf_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/nearest.h"
#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

constexpr std::array kFamilies = {
    GgufFamily{"llama", "", ""},
    GgufFamily{"qwen2", "", ""},
    GgufFamily{"qwen3", "", ""},
    GgufFamily{"qwen2moe", "shared_expert", ""},
    GgufFamily{"qwen3moe", "", ""},
    GgufFamily{"glm4moe", "shared_experts", "gate"},
    GgufFamily{"ernie4_5", "", ""},
    GgufFamily{"ernie4_5-moe", "shared_experts", "moe_statics"},
    GgufFamily{"deepseek2", "shared_experts", "gate"},
};

struct Name {
  std::string_view theirs, ours;
};
constexpr std::array kWhole = {
    Name{kGgufEmbedding, "model.embed_tokens.weight"},
    Name{"output_norm.weight", "model.norm.weight"},
    Name{kGgufHead, "lm_head.weight"},
};
// Of a layer, without suffix.
constexpr std::array kLayer = {
    Name{"attn_norm", "input_layernorm"},
    Name{"ffn_norm", "post_attention_layernorm"},
    Name{"post_attention_norm", "post_attention_layernorm"},
    Name{"attn_q", "self_attn.q_proj"},
    Name{"attn_k", "self_attn.k_proj"},
    Name{"attn_v", "self_attn.v_proj"},
    Name{"attn_qkv", "self_attn.qkv_proj"},
    Name{"attn_output", "self_attn.o_proj"},
    Name{"attn_q_norm", "self_attn.q_norm"},
    Name{"attn_k_norm", "self_attn.k_norm"},
    Name{"attn_q_a", "self_attn.q_a_proj"},
    Name{"attn_q_b", "self_attn.q_b_proj"},
    Name{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    Name{"attn_kv_b", "self_attn.kv_b_proj"},
    Name{"attn_q_a_norm", "self_attn.q_a_layernorm"},
    Name{"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    Name{"attn_rot_embd", "self_attn.rotary_emb.inv_freq"},
    Name{"ffn_gate", "mlp.gate_proj"},
    Name{"ffn_up", "mlp.up_proj"},
    Name{"ffn_down", "mlp.down_proj"},
    Name{"ffn_gate_inp", "mlp.gate"},
};
constexpr std::array kShared = {
    Name{"ffn_gate_shexp", "gate_proj"},
    Name{"ffn_up_shexp", "up_proj"},
    Name{"ffn_down_shexp", "down_proj"},
};
// [experts, outputs, inputs]
constexpr std::array kStacked = {
    Name{"ffn_gate_exps", "gate_proj"},
    Name{"ffn_up_exps", "up_proj"},
    Name{"ffn_down_exps", "down_proj"},
    Name{"ffn_gate_up_exps", "up_gate_proj"},
};
constexpr std::int64_t kMaxExperts = 65536;

template <std::size_t N>
std::optional<std::string_view> lookup(const std::array<Name, N>& names, std::string_view theirs) {
  const auto at = std::ranges::find(names, theirs, &Name::theirs);
  return at == names.end() ? std::nullopt : std::optional(at->ours);
}

// "blk.3.attn_q.weight" in parts.
struct LayerName {
  std::string layer;       // "3"
  std::string_view what;   // "attn_q"
  std::string_view suffix; // "weight"; "" where there is none
};
std::optional<LayerName> split(std::string_view name) {
  if (!name.starts_with("blk.")) return std::nullopt;
  name.remove_prefix(4);
  std::uint32_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc{} || digits >= name.size() || name[digits] != '.' || (digits > 1 && name[0] == '0')) return std::nullopt;
  const std::string_view rest = name.substr(digits + 1);
  const auto dot = rest.rfind('.');
  if (dot == std::string_view::npos) return LayerName{std::string(name.substr(0, digits)), rest, ""};
  return LayerName{std::string(name.substr(0, digits)), rest.substr(0, dot), rest.substr(dot + 1)};
}

Result<std::vector<TensorInfo>> unstack(TensorInfo tensor, const std::string& layer, std::string_view ours, std::string_view suffix, std::string_view where) {
  if (tensor.shape.size() != 3 || tensor.shape[0] > kMaxExperts)
    return fail(Code::kCorrupt, "{}: tensor {} has shape [{}]; [experts, outputs, inputs] with at most {} experts is needed", where, show(tensor.name), fmt::join(tensor.shape, ", "), kMaxExperts);
  const std::int64_t experts = tensor.shape[0], bytes = tensor.bytes() / experts;
  std::vector<TensorInfo> parts;
  parts.reserve(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0; e < experts; ++e)
    parts.push_back({.name = fmt::format("model.layers.{}.mlp.experts.{}.{}.{}", layer, e, ours, suffix), .dtype = tensor.dtype, .shape = {tensor.shape[1], tensor.shape[2]},
                     .begin = tensor.begin + e * bytes, .end = tensor.begin + (e + 1) * bytes});
  return parts;
}

}  // namespace

Result<const GgufFamily*> find_gguf_family(std::string_view architecture, std::string_view where) {
  const auto at = std::ranges::find(kFamilies, architecture, &GgufFamily::name);
  if (at != kFamilies.end()) return &*at;
  std::vector<std::string_view> names;
  for (const GgufFamily& family : kFamilies) names.push_back(family.name);
  return fail(Code::kUnsupported, "{}: general.architecture {} is not supported; {}", where, show(architecture), known_names_hint(architecture, names));
}

Result<std::vector<TensorInfo>> rename_gguf_tensor(const GgufFamily& family, TensorInfo tensor, std::string_view where) {
  if (tensor.name == kGgufRopeFactors) return std::vector<TensorInfo>{};
  const auto as = [&](std::string name) {
    tensor.name = std::move(name);
    return std::vector<TensorInfo>{std::move(tensor)};
  };
  if (const auto ours = lookup(kWhole, tensor.name)) return as(std::string(*ours));
  const std::optional<LayerName> name = split(tensor.name);
  if (!name) return as(tensor.name);
  const std::string scope = "model.layers." + name->layer + ".";
  if (name->what == "attn_k_b" || name->what == "attn_v_b") {  // [heads, outputs, inputs]
    if (tensor.shape.size() == 3) tensor.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]};
    return as(fmt::format("{}self_attn.{}_b_proj.{}", scope, name->what[5], name->suffix));
  }
  if (name->what == "exp_probs_b" || (name->what.empty() && name->suffix == "exp_probs_b")) {
    if (family.correction.empty()) return as(tensor.name);
    return as(fmt::format("{}mlp.{}.e_score_correction_bias", scope, family.correction));
  }
  if (name->what == "ffn_gate_inp_shexp" && !family.shared.empty()) {
    if (tensor.shape.size() == 1) tensor.shape.insert(tensor.shape.begin(), 1);  // a matrix of one output
    return as(fmt::format("{}mlp.{}_gate.{}", scope, family.shared, name->suffix));
  }
  if (name->what == "attn_rot_embd") return as(scope + std::string(*lookup(kLayer, name->what)));
  if (const auto ours = lookup(kLayer, name->what)) return as(fmt::format("{}{}.{}", scope, *ours, name->suffix));
  if (const auto ours = lookup(kShared, name->what); ours && !family.shared.empty()) return as(fmt::format("{}mlp.{}.{}.{}", scope, family.shared, *ours, name->suffix));
  if (const auto ours = lookup(kStacked, name->what)) return unstack(std::move(tensor), name->layer, *ours, name->suffix, where);
  if (name->what.starts_with("nextn.")) return as(fmt::format("{}{}.{}", scope, name->what, name->suffix));  // a layer that predicts further tokens
  return as(tensor.name);
}

}  // namespace inflight::checkpoint
