// Who looks at activations while a model computes (calibration). Runtime::observer is nullptr otherwise, and nothing is paid.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace inflight::nn {

class Observer {
 public:
  // kInput: what a matrix multiplies. Of an attention block: queries and keys after norm and rotation, values; all heads of a token side by side.
  enum class Place { kInput, kQuery, kKey, kValue };

  virtual ~Observer() = default;

  // x [tokens, ldx], of which a token has `columns` numbers: FP32, before the arithmetic of the step rounds them. `row` of the parameter table: the matrix, or the
  // block's qkv_proj. An expert's down_proj is shown its own tokens, the layer's first up_gate_proj all, the head every token's final state.
  // Called by the thread that runs forward(), between parallel regions: the pool is free, and x is whole. It holds until the call returns.
  virtual void see(std::size_t row, Place place, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t columns) = 0;

  // Experts of a layer that all tokens of the step go through once more, each alone; what they give is dropped, and see() is shown the input of their down_proj.
  virtual std::span<const std::int32_t> forced_experts(std::int64_t /*layer*/) const { return {}; }
};

// For reports: where a point ("model.layers.3.self_attn.o_proj", or the end of it) comes in the forward pass of its layer; points of one kind have the same number.
int order_of_point(std::string_view point);

}  // namespace inflight::nn
