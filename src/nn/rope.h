// Rotary position embedding: frequencies of the default, linear, dynamic, yarn and llama3 types, as transformers'
// modeling_rope_utils computes them (FP32 throughout, so that angles agree at large positions); and of the type "factors", which divides each
// default frequency by a number of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace inflight::nn {

// What the architecture says where config.json is silent.
struct RopeDefaults {
  double theta = 10000;
  double partial = 1;  // share of head_dim that is rotated
};

class Rope {
 public:
  // Reads both config styles: `rope_parameters` (nested, newer), or `rope_theta` and `rope_scaling` at top level. Nested values win,
  // then top level, then the architecture's default. An unknown type or a key that nothing reads is refused by name.
  static Result<Rope> parse(const JsonView& config, std::int64_t head_dim, const RopeDefaults& defaults, std::int64_t max_positions);

  std::int64_t rotary_dim() const { return rotary_dim_; }
  // The longest context this scaling was made for, given the config's max_position_embeddings.
  std::int64_t max_positions() const { return max_positions_; }
  const std::string& type() const { return type_; }
  // cos, sin [rotary_dim / 2] at `position`; `length` is the sequence length that the dynamic type sees.
  void angles(std::int64_t position, std::int64_t length, float* cos, float* sin) const;
  // The inverse frequencies in use at a sequence length.
  std::vector<float> inverse_frequencies(std::int64_t length) const;
  float attention_factor() const { return attention_factor_; }  // multiplies cos and sin
  // Multiplies q . k in models whose rotary part is some of a head's numbers only (DeepSeek): the square of 0.1 * mscale_all_dim * ln(factor) + 1; 1 without that key.
  double score_factor() const { return score_factor_; }

 private:
  std::string type_ = "default";
  std::int64_t rotary_dim_ = 0;
  std::int64_t max_positions_ = 0;
  double theta_ = 10000;
  double factor_ = 1;
  std::int64_t dynamic_from_ = 0;        // dynamic: lengths above this change the base
  std::vector<float> inverse_;           // at lengths where the base does not change
  float attention_factor_ = 1;
  double score_factor_ = 1;
};

}  // namespace inflight::nn
