// Qwen2MoeForCausalLM (Qwen1.5-MoE, Qwen2-57B-A14B): biases on q, k and v; a shared expert behind a gate of its own. Reference: transformers, models/qwen2_moe.
#include "models/architectures.h"
#include "models/config_reader.h"
#include "models/decoder.h"

namespace inflight::models {

Result<std::unique_ptr<Model>> make_qwen2_moe(const JsonView& config, const nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 10000, .norm_eps = 1e-6}, declarations));
  c.sparse = {.routing = {.experts = TRY(positive(config, "num_experts")), .top_k = TRY(positive(config, "num_experts_per_tok")), .renormalize = TRY(config.boolean_or("norm_topk_prob", false))},
              .hidden = c.attention.hidden,
              .intermediate = TRY(positive(config, "moe_intermediate_size")),
              .shared_intermediate = TRY(positive(config, "shared_expert_intermediate_size")),
              .shared_name = "shared_expert",
              .shared_gate = true};
  TRY(read_sparse_layers(config, c));
  TRY(check_sparse(config, c));
  return std::make_unique<Decoder>("Qwen2MoeForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
