// Ernie4_5ForCausalLM and Ernie4_5_MoeForCausalLM: rotary embedding of neighbours; experts chosen with a correction bias, beside shared ones.
// Published in two forms: "-PT" (PyTorch's names and layout) and "-Paddle" (names begin with "ernie.", linears are [inputs, outputs], q, k and v or gate and up
// may be one tensor). Reference: transformers, models/ernie4_5 and models/ernie4_5_moe.
#include <algorithm>

#include "models/architectures.h"
#include "models/config_reader.h"
#include "models/decoder.h"

namespace inflight::models {
namespace {

Result<DecoderConfig> read_config(const JsonView& config, nn::Declarations& declarations) {
  DecoderConfig c = TRY(read_decoder_config(config, {.rope_theta = 500000, .norm_eps = 1e-5}, declarations));
  c.attention.rope_pairs = true;
  std::ranges::fill(c.windows, 0);  // the family has no windows
  if (declarations.has_tensor(kPaddleEmbeddingTensor)) c.scope = "ernie";
  declarations.transposed = TRY(is_paddle_layout(config));
  declarations.table->ignored.push_back({c.scope + ".mtp_*", "a layer that predicts further tokens; generation here does not use it"});
  return c;
}

}  // namespace

Result<std::unique_ptr<Model>> make_ernie4_5(const JsonView& config, const nn::Declarations& given) {
  nn::Declarations declarations = given;
  DecoderConfig c = TRY(read_config(config, declarations));
  return std::make_unique<Decoder>("Ernie4_5ForCausalLM", std::move(c), declarations);
}

Result<std::unique_ptr<Model>> make_ernie4_5_moe(const JsonView& config, const nn::Declarations& given) {
  nn::Declarations declarations = given;
  DecoderConfig c = TRY(read_config(config, declarations));
  const std::int64_t intermediate = TRY(positive(config, "moe_intermediate_size"));
  const std::int64_t shared = TRY(config.integer_or("moe_num_shared_experts", 0));
  if (shared < 0 || shared > 1024) return fail(Code::kCorrupt, "{}: \"moe_num_shared_experts\" is {}; a number from 0 to 1024 is needed", config.where, shared);
  c.sparse = {.routing = {.experts = TRY(positive(config, "moe_num_experts")), .top_k = TRY(positive(config, "moe_k")),
                          .least_sum = static_cast<float>(TRY(config.number_or("moe_norm_min", 1e-12)))},
              .hidden = c.attention.hidden,
              .intermediate = intermediate,
              .shared_intermediate = shared * intermediate,
              .use_bias = TRY(config.boolean_or("moe_use_aux_free", true))};
  const std::int64_t first = TRY(config.integer_or("moe_layer_start_index", 1)), end = TRY(config.integer_or("moe_layer_end_index", -1));
  const std::int64_t last = end < 0 ? c.layers - 1 : end;
  const std::int64_t step = config.has("moe_layer_interval") ? TRY(positive(config, "moe_layer_interval")) : 1;
  for (std::int64_t i = 0; i < c.layers; ++i) c.sparse_layers.push_back((i + 1) % step == 0 && i >= first && i <= last);
  TRY(check_sparse(config, c));
  return std::make_unique<Decoder>("Ernie4_5_MoeForCausalLM", std::move(c), declarations);
}

}  // namespace inflight::models
