// Qwen3ForCausalLM: a norm on every head of q and k, head_dim of its own. Reference: transformers, models/qwen3.
#include "models/architectures.h"
#include "models/decoder.h"

namespace inflight::models {

Result<std::unique_ptr<Model>> make_qwen3(const JsonView& config, const nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 10000, .norm_eps = 1e-6, .qk_norm = true}, declarations));
  return std::make_unique<Decoder>("Qwen3ForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
