// LlamaForCausalLM (Llama 2, 3, 3.x, SmolLM2, ...). Reference: transformers, models/llama.
#include "models/architectures.h"
#include "models/decoder.h"

#include <algorithm>

namespace inflight::models {

Result<std::unique_ptr<Model>> make_llama(const JsonView& config, const nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 10000, .norm_eps = 1e-6}, declarations));
  std::ranges::fill(c.windows, 0);  // the family has no windows
  c.attention.rope_pairs = TRY(config.boolean_or("rope_interleave", false));  // GGUF files store rows of q and k in the order that this needs
  return std::make_unique<Decoder>("LlamaForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
