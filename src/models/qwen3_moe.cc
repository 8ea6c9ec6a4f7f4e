// Qwen3MoeForCausalLM: Qwen3 with experts in place of the feed-forward block of most layers. Reference: transformers, models/qwen3_moe.
#include <algorithm>

#include "models/architectures.h"
#include "models/config_reader.h"
#include "models/decoder.h"

namespace inflight::models {

Result<std::unique_ptr<Model>> make_qwen3_moe(const JsonView& config, const nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 10000, .norm_eps = 1e-6, .qk_norm = true}, declarations));
  const std::string_view count = config.has("num_experts") ? "num_experts" : "num_local_experts";
  c.sparse = {.routing = {.experts = TRY(positive(config, count)), .top_k = TRY(positive(config, "num_experts_per_tok")), .renormalize = TRY(config.boolean_or("norm_topk_prob", false))},
              .hidden = c.attention.hidden,
              .intermediate = TRY(positive(config, "moe_intermediate_size"))};
  TRY(read_sparse_layers(config, c));
  TRY(check_sparse(config, c));
  return std::make_unique<Decoder>("Qwen3MoeForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
