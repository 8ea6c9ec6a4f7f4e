// Where activations are measured and quantized: named places of the forward pass, as calibration files and FP8 checkpoints name them
// (without their ".activation_scale").
#pragma once
#include <string>
#include <string_view>

#include "params/param_spec.h"

namespace inflight::params {

// The point of what goes into a matrix: "model.layers.3.self_attn.qkv_proj", "model.layers.3.mlp.down_proj". The experts of a layer share the point of their
// up_gate_proj ("model.layers.3.mlp.experts.up_gate_proj"); each has its own of down_proj ("model.layers.3.mlp.experts.7.down_proj").
std::string input_point(const ParamSpec& row);

// Points of an attention block, after its scope ("model.layers.3.self_attn"): Q and K after norm and rotation, V.
inline constexpr std::string_view kQueryPoint = "q_matmul";
inline constexpr std::string_view kKeyPoint = "cachek_matmul";
inline constexpr std::string_view kValuePoint = "cachev_matmul";

}  // namespace inflight::params
