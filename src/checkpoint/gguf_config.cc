#include "checkpoint/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLayers = 10000;

// Metadata of one architecture: keys without its prefix.
class Reader {
 public:
  Reader(const GgufFamily& family, const GgufHeader& header, std::span<const TensorInfo> tensors) : family_(family), header_(header) {
    for (const TensorInfo& tensor : tensors) names_.insert(tensor.name);
  }

  std::string key(std::string_view name) const { return fmt::format("{}.{}", family_.name, name); }
  bool has(std::string_view name) const { return header_.has(key(name)); }
  const GgufHeader& header() const { return header_; }

  // From `least` to 2^31; nullopt where there is none. An array of one number for each layer is taken where all are equal.
  Result<std::optional<std::int64_t>> count_if_any(std::string_view name, std::int64_t least = 1) const {
    const auto at = header_.metadata.find(key(name));
    if (at == header_.metadata.end()) return std::nullopt;
    std::int64_t value = 0;
    if (at->second.kind == GgufKind::kArray) {
      const auto list = TRY(header_.integers(at->first));
      if (list->empty() || std::ranges::any_of(*list, [&](std::int64_t n) { return n != list->front(); }))
        return fail(Code::kUnsupported, "{}: {} differs from layer to layer, which is not supported", header_.where, at->first);
      value = list->front();
    } else {
      value = TRY(header_.integer(at->first)).value();
    }
    if (value < least || value > kMaxCount) return fail(Code::kCorrupt, "{}: {} is {}; a number from {} to 2^31 is needed", header_.where, at->first, value, least);
    return value;
  }
  Result<std::int64_t> count(std::string_view name, std::int64_t least = 1) const {
    const auto value = TRY(count_if_any(name, least));
    if (!value) return fail(Code::kCorrupt, "{}: metadata {} is missing; is the file whole, and a model?", header_.where, key(name));
    return *value;
  }
  Result<std::int64_t> count_or(std::string_view name, std::int64_t fallback, std::int64_t least = 1) const { return TRY(count_if_any(name, least)).value_or(fallback); }
  Result<std::optional<double>> number_if_any(std::string_view name) const {
    const auto value = TRY(header_.number(key(name)));
    if (value && !std::isfinite(*value)) return fail(Code::kCorrupt, "{}: {} is {}", header_.where, key(name), *value);
    return value;
  }
  Result<double> number_or(std::string_view name, double fallback) const { return TRY(number_if_any(name)).value_or(fallback); }
  Result<std::optional<bool>> boolean_if_any(std::string_view name) const { return header_.boolean(key(name)); }

  bool has_tensor(std::string_view name) const { return names_.contains(name); }
  bool has_in_layer(std::int64_t layer, std::string_view what) const {
    return has_tensor(fmt::format("blk.{}.{}", layer, what));
  }

  std::unexpected<Error> unsupported(std::string_view name, std::string_view why) const { return fail(Code::kUnsupported, "{}: {}: {}", header_.where, key(name), why); }

 private:
  const GgufFamily& family_;
  const GgufHeader& header_;
  std::set<std::string, std::less<>> names_;
};

bool is_sparse(const Reader& r, std::int64_t layer) { return r.has_in_layer(layer, "ffn_down_exps.weight"); }
bool has_correction(const Reader& r, std::int64_t layer) { return r.has_in_layer(layer, "exp_probs_b.bias") || r.has_in_layer(layer, "exp_probs_b"); }
bool any_correction(const Reader& r, std::int64_t layers) {
  for (std::int64_t i = 0; i < layers; ++i)
    if (has_correction(r, i)) return true;
  return false;
}

// What would change the numbers and that no family here does.
Result<void> refuse_others(const Reader& r) {
  constexpr std::array<std::pair<std::string_view, double>, 7> kNeutral = {{{"attn_logit_softcapping", 0}, {"final_logit_softcapping", 0}, {"router_logit_softcapping", 0}, {"logit_scale", 1},
                                                                            {"embedding_scale", 1}, {"residual_scale", 1}, {"attention.max_alibi_bias", 0}}};
  for (const auto& [name, neutral] : kNeutral) {
    const auto value = TRY(r.number_if_any(name));
    if (value && *value != neutral && *value != 0) return r.unsupported(name, fmt::format("{} is not supported for this architecture", *value));
  }
  if (!TRY(r.boolean_if_any("attention.causal")).value_or(true)) return r.unsupported("attention.causal", "attention that looks ahead is not supported");
  return {};
}

Result<void> add_rope(const Reader& r, const std::vector<float>& factors, std::int64_t rotary_dim, Json& config) {
  config["rope_theta"] = TRY(r.number_or("rope.freq_base", 10000));
  std::string type = "none";
  if (const auto given = TRY(r.header().string(r.key("rope.scaling.type")))) type = *given;
  double factor = TRY(r.number_or("rope.scaling.factor", 0));
  if (!r.has("rope.scaling.type") && factor == 0) factor = TRY(r.number_or("rope.scale_linear", 0));  // an older key
  if (!r.has("rope.scaling.type") && factor != 0 && factor != 1) type = "linear";
  if (type == "linear" && factor == 0) type = "none";

  const bool plain = std::ranges::all_of(factors, [](float f) { return f == 1; });
  if (!plain) {
    if (type != "none") return r.unsupported("rope.scaling.type", fmt::format("{} beside a tensor {} is not supported", show(type), kGgufRopeFactors));
    if (static_cast<std::int64_t>(factors.size()) != rotary_dim / 2)
      return fail(Code::kCorrupt, "{}: {} has {} numbers, but {} dimensions are rotated", r.header().where, kGgufRopeFactors, factors.size(), rotary_dim);
    Json list = Json::array();
    for (const float f : factors) {
      if (!(f > 0) || !std::isfinite(f)) return fail(Code::kCorrupt, "{}: {} holds {}; numbers above 0 are needed", r.header().where, kGgufRopeFactors, f);
      list.push_back(f);
    }
    config["rope_scaling"] = {{"rope_type", "factors"}, {"factors", std::move(list)}};
    return {};
  }
  if (type == "none") return {};
  if (type == "linear") {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    return {};
  }
  if (type != "yarn") return r.unsupported("rope.scaling.type", fmt::format("{} is not supported; known: none linear yarn", show(type)));
  Json scaling = {{"rope_type", "yarn"}, {"factor", factor}};
  if (const auto original = TRY(r.count_if_any("rope.scaling.original_context_length"))) scaling["original_max_position_embeddings"] = *original;
  if (const auto fast = TRY(r.number_if_any("rope.scaling.yarn_beta_fast"))) scaling["beta_fast"] = *fast;
  if (const auto slow = TRY(r.number_if_any("rope.scaling.yarn_beta_slow"))) scaling["beta_slow"] = *slow;
  for (const std::string_view name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"})
    if (TRY(r.number_or(name, 1)) != 1) return r.unsupported(name, "is not supported");
  // A tenth of mscale_all_dim; mscale is taken to be equal, as it is in every model of the family.
  if (const auto multiplier = TRY(r.number_if_any("rope.scaling.yarn_log_multiplier")); multiplier && *multiplier != 0) {
    const double mscale = std::round(*multiplier * 1e7) / 1e6;
    scaling["mscale"] = mscale;
    scaling["mscale_all_dim"] = mscale;
  }
  config["rope_scaling"] = std::move(scaling);
  return {};
}

Result<void> add_experts(const Reader& r, Json& config, std::string_view count_key) {
  config[std::string(count_key)] = TRY(r.count("expert_count"));
  config["num_experts_per_tok"] = TRY(r.count("expert_used_count"));
  config["moe_intermediate_size"] = TRY(r.count("expert_feed_forward_length"));
  return {};
}

// Layers without experts, by their tensors.
Json dense_layers(const Reader& r, std::int64_t layers) {
  Json list = Json::array();
  for (std::int64_t i = 0; i < layers; ++i)
    if (!is_sparse(r, i)) list.push_back(i);
  return list;
}

Result<void> add_qwen_moe(const Reader& r, std::int64_t layers, bool renormalize, Json& config) {
  TRY(add_experts(r, config, "num_experts"));
  config["norm_topk_prob"] = TRY(r.boolean_if_any("expert_weights_norm")).value_or(renormalize);
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = dense_layers(r, layers);
  return {};
}

Result<void> add_groups(const Reader& r, Json& config) {
  config["n_group"] = TRY(r.count_or("expert_group_count", 1));
  config["topk_group"] = TRY(r.count_or("expert_group_used_count", 1));
  return {};
}

Result<void> add_glm4_moe(const Reader& r, std::int64_t head_dim, std::int64_t rotary_dim, Json& config) {
  TRY(add_experts(r, config, "n_routed_experts"));
  config["n_shared_experts"] = TRY(r.count_or("expert_shared_count", 0, 0));
  config["first_k_dense_replace"] = TRY(r.count_or("leading_dense_block_count", 0, 0));
  config["norm_topk_prob"] = TRY(r.boolean_if_any("expert_weights_norm")).value_or(true);
  config["routed_scaling_factor"] = TRY(r.number_or("expert_weights_scale", 1));
  config["use_qk_norm"] = r.has_in_layer(0, "attn_q_norm.weight");
  config["partial_rotary_factor"] = static_cast<double>(rotary_dim) / static_cast<double>(head_dim);
  if (TRY(r.count_or("expert_gating_func", 2, 0)) != 2) return r.unsupported("expert_gating_func", "only the sigmoid (2) is supported for this architecture");
  return add_groups(r, config);
}

Result<void> add_ernie_moe(const Reader& r, std::int64_t layers, Json& config) {
  config["moe_num_experts"] = TRY(r.count("expert_count"));
  config["moe_k"] = TRY(r.count("expert_used_count"));
  config["moe_intermediate_size"] = TRY(r.count("expert_feed_forward_length"));
  config["moe_num_shared_experts"] = TRY(r.count_or("expert_shared_count", 0, 0));
  config["moe_layer_start_index"] = TRY(r.count_or("leading_dense_block_count", 0, 0));
  config["moe_layer_interval"] = TRY(r.count_or("interleave_moe_layer_step", 1));
  std::int64_t last = layers - 1;
  while (last > 0 && !is_sparse(r, last)) --last;
  config["moe_layer_end_index"] = last;
  config["moe_use_aux_free"] = any_correction(r, layers);
  return {};
}

Result<void> add_deepseek(const Reader& r, std::int64_t layers, std::int64_t rotary_dim, Json& config) {
  const std::int64_t key_length = r.has("attention.key_length_mla") ? TRY(r.count("attention.key_length_mla")) : TRY(r.count("attention.key_length"));
  if (key_length <= rotary_dim) return fail(Code::kCorrupt, "{}: keys of {} numbers, of which {} are rotated: nothing is left", r.header().where, key_length, rotary_dim);
  config["kv_lora_rank"] = TRY(r.count("attention.kv_lora_rank"));
  if (const auto rank = TRY(r.count_if_any("attention.q_lora_rank", 0)); rank && *rank > 0) config["q_lora_rank"] = *rank;
  config["qk_rope_head_dim"] = rotary_dim;
  config["qk_nope_head_dim"] = key_length - rotary_dim;
  config["v_head_dim"] = r.has("attention.value_length_mla") ? TRY(r.count("attention.value_length_mla")) : TRY(r.count("attention.value_length"));
  config["num_key_value_heads"] = config["num_attention_heads"];
  config["head_dim"] = rotary_dim;

  const bool correction = any_correction(r, layers);
  const std::int64_t gating = TRY(r.count_or("expert_gating_func", correction ? 2 : 1, 0));
  if (gating > 2) return r.unsupported("expert_gating_func", fmt::format("{} is not supported; known: 1 (softmax) 2 (sigmoid)", gating));
  const bool sigmoid = gating == 2 || (gating == 0 && correction);
  config["architectures"] = Json::array({sigmoid ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM"});
  config["model_type"] = sigmoid ? "deepseek_v3" : "deepseek_v2";
  if (TRY(r.count_or("expert_count", 0, 0)) == 0) return {};
  TRY(add_experts(r, config, "n_routed_experts"));
  TRY(add_groups(r, config));
  config["n_shared_experts"] = TRY(r.count_or("expert_shared_count", 0, 0));
  config["first_k_dense_replace"] = TRY(r.count_or("leading_dense_block_count", 0, 0));
  config["scoring_func"] = sigmoid ? "sigmoid" : "softmax";
  config["topk_method"] = correction ? "noaux_tc" : config["n_group"].get<std::int64_t>() > 1 ? "group_limited_greedy" : "greedy";
  config["norm_topk_prob"] = TRY(r.boolean_if_any("expert_weights_norm")).value_or(false);
  config["routed_scaling_factor"] = TRY(r.number_or("expert_weights_scale", 1));
  return {};
}

struct Identity {
  std::string_view family, architecture, model_type;
};
constexpr std::array kIdentities = {
    Identity{"llama", "LlamaForCausalLM", "llama"},
    Identity{"qwen2", "Qwen2ForCausalLM", "qwen2"},
    Identity{"qwen3", "Qwen3ForCausalLM", "qwen3"},
    Identity{"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe"},
    Identity{"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe"},
    Identity{"glm4moe", "Glm4MoeForCausalLM", "glm4_moe"},
    Identity{"ernie4_5", "Ernie4_5ForCausalLM", "ernie4_5"},
    Identity{"ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe"},
    Identity{"deepseek2", "DeepseekV2ForCausalLM", "deepseek_v2"},
};

Result<void> add_token_ids(const GgufHeader& header, Json& config) {
  const auto id = [&](std::string_view key) -> Result<std::optional<std::int64_t>> {
    const auto value = TRY(header.integer(key));
    if (value && (*value < 0 || *value > INT32_MAX)) return std::nullopt;  // files mark "none" so
    return value;
  };
  if (const auto bos = TRY(id("tokenizer.ggml.bos_token_id"))) config["bos_token_id"] = *bos;
  if (const auto pad = TRY(id("tokenizer.ggml.padding_token_id"))) config["pad_token_id"] = *pad;
  Json ends = Json::array();
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto end = TRY(id(key)); end && std::ranges::find(ends, Json(*end)) == ends.end()) ends.push_back(*end);
  if (ends.size() == 1) config["eos_token_id"] = ends[0];
  else if (!ends.empty()) config["eos_token_id"] = std::move(ends);
  return {};
}

}  // namespace

Result<Json> gguf_config(const GgufFamily& family, const GgufHeader& header, std::span<const TensorInfo> tensors, const std::vector<float>& rope_factors) {
  const Reader r(family, header, tensors);
  const auto identity = std::ranges::find(kIdentities, family.name, &Identity::family);
  const auto table = std::ranges::find(tensors, kGgufEmbedding, &TensorInfo::name);
  if (table == tensors.end() || table->shape.size() != 2) return fail(Code::kCorrupt, "{}: there is no tensor {} of two dimensions; is the file a whole model, not a vocabulary or a projector?", header.where, kGgufEmbedding);
  TRY(refuse_others(r));
  const bool latent = family.name == "deepseek2";

  Json config = Json::object();
  config["architectures"] = Json::array({identity->architecture});
  config["model_type"] = identity->model_type;
  config["torch_dtype"] = "float32";
  config["vocab_size"] = table->shape[0];
  const std::int64_t hidden = TRY(r.count("embedding_length")), heads = TRY(r.count("attention.head_count"));
  const std::int64_t blocks = TRY(r.count("block_count")), further = TRY(r.count_or("nextn_predict_layers", 0, 0));
  if (blocks > kMaxLayers || further >= blocks) return fail(Code::kCorrupt, "{}: {} layers, {} of them to predict further tokens, are not believable", header.where, blocks, further);
  const std::int64_t layers = blocks - further;
  config["hidden_size"] = hidden;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = TRY(r.count_or("attention.head_count_kv", heads));
  config["num_hidden_layers"] = layers;
  if (further > 0) config["num_nextn_predict_layers"] = further;
  config["max_position_embeddings"] = TRY(r.count("context_length"));
  config["rms_norm_eps"] = TRY(r.number_or("attention.layer_norm_rms_epsilon", 1e-6));
  config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = !r.has_tensor(kGgufHead);
  const std::int64_t experts = TRY(r.count_or("expert_count", 0, 0));
  // Models of experts alone may leave the dense layers' size out.
  config["intermediate_size"] = experts > 0 ? TRY(r.count_or("feed_forward_length", 1)) : TRY(r.count("feed_forward_length"));

  std::int64_t head_dim = TRY(r.count_or("attention.key_length", 0));
  if (head_dim == 0) {
    if (hidden % heads != 0) return fail(Code::kCorrupt, "{}: embedding_length {} is not a multiple of head_count {}, and there is no key_length", header.where, hidden, heads);
    head_dim = hidden / heads;
  }
  if (!latent && TRY(r.count_or("attention.value_length", head_dim)) != head_dim) return r.unsupported("attention.value_length", fmt::format("must equal the key's length of {}", head_dim));
  const std::int64_t rotary_dim = latent ? TRY(r.count("rope.dimension_count")) : TRY(r.count_or("rope.dimension_count", head_dim));
  if (rotary_dim > head_dim) return fail(Code::kCorrupt, "{}: {} of {} numbers of a head are rotated", header.where, rotary_dim, head_dim);
  if (!latent) config["head_dim"] = head_dim;
  if (!latent && rotary_dim != head_dim) config["partial_rotary_factor"] = static_cast<double>(rotary_dim) / static_cast<double>(head_dim);
  TRY(add_rope(r, rope_factors, rotary_dim, config));
  TRY(add_token_ids(header, config));

  if (family.name == "llama") {
    if (experts > 0) return r.unsupported("expert_count", "a mixture of experts of the llama architecture (Mixtral) is not supported");
    config["rope_interleave"] = true;  // rows of q and k are stored so that neighbours are rotated
  } else if (family.name == "qwen2moe") {
    TRY(add_qwen_moe(r, layers, false, config));
    config["shared_expert_intermediate_size"] = TRY(r.count("expert_shared_feed_forward_length"));
  } else if (family.name == "qwen3moe") {
    TRY(add_qwen_moe(r, layers, true, config));
  } else if (family.name == "glm4moe") {
    TRY(add_glm4_moe(r, head_dim, rotary_dim, config));
  } else if (family.name == "ernie4_5-moe") {
    TRY(add_ernie_moe(r, layers, config));
  } else if (latent) {
    TRY(add_deepseek(r, layers, rotary_dim, config));
  }
  return config;
}

Result<std::optional<Json>> gguf_generation_config(const GgufHeader& header) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kKeys = {{{"general.sampling.temp", "temperature"}, {"general.sampling.top_p", "top_p"}, {"general.sampling.min_p", "min_p"},
                                                                                   {"general.sampling.penalty_repeat", "repetition_penalty"}}};
  Json config = Json::object();
  for (const auto& [theirs, ours] : kKeys)
    if (const auto value = TRY(header.number(theirs))) config[std::string(ours)] = *value;
  if (const auto top_k = TRY(header.integer("general.sampling.top_k"))) config["top_k"] = *top_k;
  if (config.empty()) return std::nullopt;
  config["do_sample"] = true;
  return config;
}

}  // namespace inflight::checkpoint
