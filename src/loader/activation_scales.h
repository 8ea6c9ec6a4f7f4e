// Static scales of activations that a checkpoint holds, whoever wrote it, by the point of the forward pass that they are of (params/points.h).
// Names and conventions: docs/formats/tensor_wise_fp8.md.
//   Hugging Face: `<matrix>.input_scale`; `<attention>.q_scale`, `.k_scale`, `.v_scale`, or `<attention>.k_proj.output_scale` and the like: dequantization multipliers.
//   PaddlePaddle: `<point>.activation_scale`: the largest |x| in self_attn, elsewhere the multiplier.
// Scales that share a point (pieces of a fused matrix, the up_gate_proj of all experts of a layer) become the largest of them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "params/param_spec.h"
#include "quant/activation_scales.h"

namespace inflight::loader {

// One tensor of the checkpoint that says something of a point.
struct ScaleTensor {
  std::string point;
  int tensor = 0;        // index into Checkpoint::tensors()
  bool absmax = false;   // it holds the largest |x|, not the multiplier
};

// All of them; a tensor may be of several points.
std::vector<ScaleTensor> scale_tensors(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const JsonView& config);

// What config.json says of the activations of FP8 weights.
struct StoredActivations {
  std::string_view scheme = "none";  // "static": scales are in the checkpoint; "dynamic": each token has its own; "none": they stay as they are (also: scales for parts of a token)
  float bound = 0;                   // 448 or 240, the largest code that the scales are made for; 0: not said
  bool plain_queries = false;        // attention is meant to round neither queries nor probabilities, although they have scales
};
Result<StoredActivations> stored_activations(const JsonView& config);

// FP32 multipliers; empty where the checkpoint has none. A scale of 0 is none: an expert that no token reached takes the largest of its layer's others.
// Small reads, one a tensor.
// kCorrupt names the tensor: another dtype than BF16, F16 or F32, too many numbers, a scale that is negative, infinite or no number.
Result<quant::ActivationScales> read_activation_scales(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const JsonView& config);

}  // namespace inflight::loader
