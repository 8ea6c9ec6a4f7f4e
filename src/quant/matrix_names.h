// Names of a decoder's matrices that quantization tells apart.
#pragma once
#include <array>
#include <string_view>

namespace inflight::quant {

inline constexpr std::string_view kQkvProj = "qkv_proj";  // in every attention block with keys and values of heads, and nowhere else
inline constexpr std::array<std::string_view, 4> kDenseMatrices = {kQkvProj, "o_proj", "up_gate_proj", "down_proj"};

}  // namespace inflight::quant
