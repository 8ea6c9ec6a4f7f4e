// Static scales of activations: one for each point of the forward pass (params/points.h), whoever measured them.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace inflight::quant {

struct ActivationScales {
  // FP32 dequantization multipliers: x is about x8 * scale, scale = absmax / bound. By point, "model.layers.3.mlp.down_proj".
  std::map<std::string, float, std::less<>> scale;
  // 0: there is none.
  float of(std::string_view point) const {
    const auto found = scale.find(point);
    return found == scale.end() ? 0 : found->second;
  }
};

}  // namespace inflight::quant
