// Qwen2ForCausalLM (Qwen2, Qwen2.5): biases on q, k and v; a window on the upper layers when switched on. Reference: transformers, models/qwen2.
#include "models/architectures.h"
#include "models/decoder.h"

namespace inflight::models {

Result<std::unique_ptr<Model>> make_qwen2(const JsonView& config, const nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 10000, .norm_eps = 1e-6}, declarations));
  return std::make_unique<Decoder>("Qwen2ForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
