// wlut4-mix: wlut4 with other formats in places, within 4.6 bits a linear weight (docs/decisions/0006-four-bit-format.md).
#pragma once
#include <vector>

#include "params/param_spec.h"
#include "quant/policy.h"

namespace inflight::quant {

inline constexpr std::string_view kMixName = "wlut4-mix";
inline constexpr double kMixBits = 4.6;

// The first layer makes most of the loss. Its qkv_proj, o_proj and mlp.down_proj are wint8, in this order and as many as fit; where they do not,
// mlp.up_gate_proj of middle layers pays with wint4-g128, from the middle outwards and no more layers than needed. None where not even the first one fits.
std::vector<FormatPolicy::Override> mix_overrides(const params::ParamTable& table);

}  // namespace inflight::quant
