#include "nn/observer.h"

#include <array>

namespace inflight::nn {

int order_of_point(std::string_view point) {
  constexpr std::array<std::string_view, 17> kOrder = {
      "qkv_proj", "qkv_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "q_proj", "kv_b_proj", "q_matmul", "cachek_matmul", "cachev_matmul", "self_attn.o_proj", "mlp.up_gate_proj", "mlp.down_proj",
      "shared_experts.up_gate_proj", "shared_experts.down_proj", ".experts.up_gate_proj", "down_proj", "lm_head"};
  for (std::size_t i = 0; i < kOrder.size(); ++i)
    if (point.ends_with(kOrder[i])) return static_cast<int>(i);
  return static_cast<int>(kOrder.size());
}

}  // namespace inflight::nn
