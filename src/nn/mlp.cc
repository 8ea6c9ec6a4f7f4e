#include "nn/mlp.h"

namespace inflight::nn {

Mlp::Mlp(const Scope& scope, std::int64_t hidden, std::int64_t intermediate)
    : intermediate_(intermediate),
      up_gate_(scope, {.name = "up_gate_proj", .split = params::Split::kOutputs, .pieces = {{"gate_proj", intermediate}, {"up_proj", intermediate}}, .inputs = hidden}),
      down_(scope, {.name = "down_proj", .split = params::Split::kInputs, .pieces = {{"down_proj", hidden}}, .inputs = intermediate}) {}

void Mlp::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  Runtime& rt = pass.runtime;
  const std::int64_t stride = padded(2 * intermediate_);
  float* up_gate = rt.workspace.floats(pass.tokens * stride);  // [T, gate | up]
  up_gate_(pass, x, ldx, up_gate, stride, prepare);
  const auto gated = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* gate = up_gate + t * stride;
      rt.kernels->vector->silu_mul(gate, gate + intermediate_, intermediate_, gate);
    }
  };
  down_(pass, up_gate, stride, y, ldy, gated);
}

}  // namespace inflight::nn
