// The decoder that most families share: embedding, N blocks of attention and gated MLP (or a mixture of experts) with pre-norms, final norm, head.
// What differs between them is data (DecoderConfig), filled by each architecture's own file.
#pragma once
#include <memory>
#include <variant>

#include "base/json.h"
#include "models/model.h"
#include "nn/attention.h"
#include "nn/mla.h"
#include "nn/mlp.h"
#include "nn/sparse_mlp.h"

namespace inflight::models {

struct DecoderConfig {
  std::int64_t vocabulary = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  nn::AttentionSizes attention;
  nn::LatentAttentionSizes latent;    // with a rank: attention is over latents, of which `attention` says hidden, heads and rope_pairs
  nn::Rope rope;
  std::vector<std::int64_t> windows;  // per layer: keys visible to a query; 0: all
  bool tied = false;                  // the head is the embedding table
  std::string scope = "model";        // where the checkpoint's names begin
  nn::SparseMlpSizes sparse;          // of the layers that have experts
  std::vector<bool> sparse_layers;    // which have them; empty: none
  std::vector<std::string> notes;

  bool is_sparse(std::int64_t layer) const { return !sparse_layers.empty() && sparse_layers[static_cast<std::size_t>(layer)]; }
};

// What the architecture says where config.json is silent.
struct DecoderDefaults {
  double rope_theta = 10000;
  double norm_eps = 1e-6;
  bool qk_norm = false;
  double partial_rotary = 1;  // share of each head that is rotated
  std::int64_t rotary_head_dim = 0;  // above 0: rotary embedding is of a part of this many numbers, and config.json's head_dim says nothing
};

// Reads the keys that all dense decoders have, in both config styles. Sliding windows follow transformers: none unless
// `use_sliding_window` (where the family has that key); then the layers that `layer_types` names, or those from `max_window_layers` on.
Result<DecoderConfig> read_decoder_config(const JsonView& config, const DecoderDefaults& defaults, const nn::Declarations& declarations);

// Qwen's rule of which layers are sparse: layer i unless "mlp_only_layers" names it, where (i + 1) is a multiple of "decoder_sparse_step".
Result<void> read_sparse_layers(const JsonView& config, DecoderConfig& decoder);
// Layers past the last, of which "num_nextn_predict_layers" says how many, are ignored by a rule.
Result<void> ignore_further_layers(const JsonView& config, const DecoderConfig& decoder, const nn::Declarations& declarations);
// Errors where the sizes of the sparse layers contradict each other.
Result<void> check_sparse(const JsonView& config, const DecoderConfig& decoder);

class Decoder : public Model {
 public:
  Decoder(std::string architecture, DecoderConfig config, const nn::Declarations& declarations);
  void forward(const nn::Step& step, nn::Runtime& runtime) const override;

 private:
  struct Layer {
    nn::RmsNorm input_norm;
    std::variant<nn::Attention, nn::LatentAttention> attention;
    nn::RmsNorm post_attention_norm;
    std::variant<nn::Mlp, nn::SparseMlp> mlp;
    Layer(const nn::Scope& scope, const DecoderConfig& config, std::int64_t index);
  };

  DecoderConfig config_;
  nn::Embedding embedding_;
  std::vector<Layer> layers_;
  nn::RmsNorm final_norm_;
  nn::Head head_;
};

}  // namespace inflight::models
