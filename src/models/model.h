// What the engine sees of a model: its sizes and one virtual call per step.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nn/runtime.h"
#include "nn/step.h"
#include "params/param_spec.h"

namespace inflight::models {

struct ModelInfo {
  std::string architecture;          // "Qwen3ForCausalLM"
  std::int64_t layers = 0;
  std::int64_t hidden = 0;           // H
  std::int64_t vocabulary = 0;       // rows of the embedding: token ids are below it
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;        // above 0: attention over latents. The cache holds one row of head_dim numbers a token for all heads (kv_heads is 1),
                                     // the first value_dim of which are the value
  std::int64_t query_dim = 0;        // of latent attention: a head of q before it is brought into the latents' space
  std::int64_t expanded_value_dim = 0;  // of latent attention whose prompt tokens make keys and values from the latents: a head's value; 0: they do not
  std::int64_t experts = 0;          // routed experts of a sparse layer; 0: a dense model
  std::int64_t experts_per_token = 0;
  params::Topology topology = {};    // which share of the model this rank computes; the sizes here are those of the whole
  std::int64_t max_positions = 0;    // longest context that the configuration promises, rotary scaling included
  std::vector<std::string> notes;    // things a user should know, e.g. a tie that the config denies

  // Of this rank's cache.
  nn::KvShape kv_shape(std::int64_t block_size, DType dtype) const {
    return {.layers = layers, .kv_heads = topology.kv_share(kv_heads), .head_dim = head_dim, .block_size = block_size, .dtype = dtype, .latent = value_dim > 0};
  }
};

// The checkpoint's names of the output head and of the table that a tied head shares (the second as PaddlePaddle writes it).
inline constexpr std::string_view kHeadTensor = "lm_head.weight";
inline constexpr std::string_view kEmbeddingTensor = "model.embed_tokens.weight";
inline constexpr std::string_view kPaddleEmbeddingTensor = "ernie.embed_tokens.weight";

class Model {
 public:
  virtual ~Model() = default;
  const ModelInfo& info() const { return info_; }
  // Floats between two rows of logits: vocabulary rounded up to a panel. Entries past the vocabulary are padding, to be ignored.
  std::int64_t logits_stride() const { return (info_.vocabulary + 15) / 16 * 16; }
  // Computes a step: writes K and V of every token into step.cache, then the logits of step.logit_rows. Not thread-safe; deterministic.
  // On several ranks all compute the same step, each on its own cache; logits may be nullptr where they are not needed.
  virtual void forward(const nn::Step& step, nn::Runtime& runtime) const = 0;

 protected:
  ModelInfo info_;
};

}  // namespace inflight::models
