// Glm4MoeForCausalLM (GLM-4.5, 4.6): half of each head rotated, sigmoid routing with a correction bias, shared experts. Reference: transformers, models/glm4_moe.
#include "models/architectures.h"
#include "models/config_reader.h"
#include "models/decoder.h"

namespace inflight::models {

Result<std::unique_ptr<Model>> make_glm4_moe(const JsonView& config, const nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 10000, .norm_eps = 1e-5, .qk_norm = TRY(config.boolean_or("use_qk_norm", false)), .partial_rotary = 0.5}, declarations));
  const std::int64_t intermediate = TRY(positive(config, "moe_intermediate_size")), dense = TRY(config.integer_or("first_k_dense_replace", 1));
  c.sparse = {.routing = {.experts = TRY(positive(config, "n_routed_experts")), .top_k = TRY(positive(config, "num_experts_per_tok")), .score = nn::Routing::Score::kSigmoid,
                          .renormalize = TRY(config.boolean_or("norm_topk_prob", true)), .scaling = static_cast<float>(TRY(config.number_or("routed_scaling_factor", 1.0))),
                          .groups = TRY(config.integer_or("n_group", 1)), .top_groups = TRY(config.integer_or("topk_group", 1))},
              .hidden = c.attention.hidden,
              .intermediate = intermediate,
              .shared_intermediate = intermediate * TRY(config.integer_or("n_shared_experts", 1))};
  for (std::int64_t i = 0; i < c.layers; ++i) c.sparse_layers.push_back(i >= dense);
  TRY(check_sparse(config, c));
  TRY(ignore_further_layers(config, c, declarations));
  return std::make_unique<Decoder>("Glm4MoeForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
