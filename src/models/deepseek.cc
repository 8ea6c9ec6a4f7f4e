// DeepseekV3ForCausalLM (DeepSeek-V3, R1) and DeepseekV2ForCausalLM (V2, V2-Lite): attention over latents, and experts in groups beside shared ones.
// Reference: transformers, models/deepseek_v3 and models/deepseek_v2.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/nearest.h"
#include "models/architectures.h"
#include "models/config_reader.h"
#include "models/decoder.h"

namespace inflight::models {
namespace {

// What differs between the two where config.json is silent.
struct Family {
  std::string_view architecture;
  std::string_view scoring, method;
  double theta;
};

Result<nn::LatentAttentionSizes> read_latent(const JsonView& config, const DecoderConfig& c, const nn::Declarations& declarations) {
  nn::LatentAttentionSizes l;
  if (config.has("q_lora_rank")) l.q_rank = TRY(positive(config, "q_lora_rank"));  // null: q_proj is one matrix
  l.rank = TRY(positive(config, "kv_lora_rank"));
  l.nope_dim = TRY(positive(config, "qk_nope_head_dim"));
  l.rope_dim = TRY(positive(config, "qk_rope_head_dim"));
  l.value_dim = TRY(positive(config, "v_head_dim"));
  if (l.rank % 16 != 0) return fail(Code::kUnsupported, "{}: kv_lora_rank {} is not a multiple of 16", config.where, l.rank);
  if (c.rope.rotary_dim() != l.rope_dim) return fail(Code::kUnsupported, "{}: partial_rotary_factor beside qk_rope_head_dim is not supported", config.where);
  if (l.value_dim % 16 != 0 && nn::LatentAttention::has_halves(nn::Scope(declarations, "model.layers.0.self_attn")))
    return fail(Code::kUnsupported, "{}: v_head_dim {} is not a multiple of 16, and the checkpoint holds keys and values of the latents apart", config.where, l.value_dim);
  l.score_scale = static_cast<float>(c.rope.score_factor() / std::sqrt(static_cast<double>(l.query_dim())));
  return l;
}

Result<void> read_routing(const JsonView& config, const Family& family, nn::Routing& r) {
  constexpr std::array<std::string_view, 2> kScores = {"sigmoid", "softmax"};
  constexpr std::array<std::string_view, 3> kMethods = {"noaux_tc", "group_limited_greedy", "greedy"};
  const std::string score = TRY(config.string_or("scoring_func", std::string(family.scoring))), method = TRY(config.string_or("topk_method", std::string(family.method)));
  if (std::ranges::find(kScores, score) == kScores.end()) return fail(Code::kUnsupported, "{}: scoring_func \"{}\" is not supported; {}", config.where, score, known_names_hint(score, kScores));
  if (std::ranges::find(kMethods, method) == kMethods.end()) return fail(Code::kUnsupported, "{}: topk_method \"{}\" is not supported; {}", config.where, method, known_names_hint(method, kMethods));
  r.score = score == "sigmoid" ? nn::Routing::Score::kSigmoid : nn::Routing::Score::kSoftmax;
  r.group_score = method == "noaux_tc" ? nn::Routing::GroupScore::kTopTwo : nn::Routing::GroupScore::kMax;
  r.renormalize = TRY(config.boolean_or("norm_topk_prob", false));
  r.scaling = static_cast<float>(TRY(config.number_or("routed_scaling_factor", 1)));
  if (method == "greedy") return {};
  r.groups = config.has("n_group") ? TRY(positive(config, "n_group")) : 1;
  r.top_groups = config.has("topk_group") ? TRY(positive(config, "topk_group")) : r.groups;
  return {};
}

Result<std::unique_ptr<Model>> make(const JsonView& config, const nn::Declarations& declarations, const Family& family) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = family.theta, .norm_eps = 1e-6, .rotary_head_dim = TRY(positive(config, "qk_rope_head_dim"))}, declarations));
  c.attention.rope_pairs = TRY(config.boolean_or("rope_interleave", true));
  c.latent = TRY(read_latent(config, c, declarations));

  // Without routed experts every layer is dense.
  if (config.has("n_routed_experts")) {
    const std::int64_t intermediate = TRY(positive(config, "moe_intermediate_size")), shared = TRY(config.integer_or("n_shared_experts", 0));
    if (shared < 0 || shared > 1024) return fail(Code::kCorrupt, "{}: \"n_shared_experts\" is {}; a number from 0 to 1024 is needed", config.where, shared);
    c.sparse = {.routing = {.experts = TRY(positive(config, "n_routed_experts")), .top_k = TRY(positive(config, "num_experts_per_tok"))},
                .hidden = c.attention.hidden,
                .intermediate = intermediate,
                .shared_intermediate = shared * intermediate};
    TRY(read_routing(config, family, c.sparse.routing));
    const std::int64_t dense = TRY(config.integer_or("first_k_dense_replace", 0)), step = config.has("moe_layer_freq") ? TRY(positive(config, "moe_layer_freq")) : 1;
    for (std::int64_t i = 0; i < c.layers; ++i) c.sparse_layers.push_back(i >= dense && i % step == 0);
    TRY(check_sparse(config, c));
  }
  TRY(ignore_further_layers(config, c, declarations));
  return std::make_unique<Decoder>(std::string(family.architecture), std::move(c), declarations);
}

}  // namespace

Result<std::unique_ptr<Model>> make_deepseek_v3(const JsonView& config, const nn::Declarations& declarations) {
  return make(config, declarations, {"DeepseekV3ForCausalLM", "sigmoid", "noaux_tc", 10000});
}

Result<std::unique_ptr<Model>> make_deepseek_v2(const JsonView& config, const nn::Declarations& declarations) {
  return make(config, declarations, {"DeepseekV2ForCausalLM", "softmax", "greedy", 10000});
}

}  // namespace inflight::models
