#include "nn/mlp.h"

#include <algorithm>

namespace inflight::nn {

Mlp::Mlp(const Scope& scope, std::int64_t hidden, std::int64_t intermediate)
    : intermediate_(scope.topology().share(intermediate)),
      up_gate_(scope, {.name = "up_gate_proj", .split = params::Split::kOutputs, .pieces = {{"gate_proj", intermediate}, {"up_proj", intermediate}}, .inputs = hidden}),
      down_(scope, {.name = "down_proj", .split = params::Split::kInputs, .pieces = {{"down_proj", hidden}}, .inputs = intermediate}) {}

void Mlp::operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare) const {
  const Activated in = activate(pass, x, ldx, prepare);
  down_(pass, in.data, in.ld, y, ldy, in.prepare);
}

void Mlp::part(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const {
  const Activated in = activate(pass, x, ldx, {});
  down_.part(pass, in.data, in.ld, y, ldy, in.prepare);
}

Mlp::Activated Mlp::activate(const Pass& pass, const float* x, std::int64_t ldx, const quant::PrepareRows& prepare) const {
  Runtime& rt = pass.runtime;
  const std::int64_t stride = padded(2 * intermediate_), lead = down_.lead(), ld = lead == 0 ? stride : padded(lead + intermediate_);
  float* up_gate = rt.workspace.floats(pass.tokens * stride);  // [T, gate | up]
  float* activated = lead == 0 ? up_gate : rt.workspace.floats(pass.tokens * ld);
  up_gate_(pass, x, ldx, up_gate, stride, prepare);
  return {activated, ld, [=, this, &rt](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t) {
              const float* gate = up_gate + t * stride;
              float* out = activated + t * ld;
              std::fill_n(out, lead, 0.0f);
              rt.kernels->vector->silu_mul(gate, gate + intermediate_, intermediate_, out + lead);
            }
          }};
}

}  // namespace inflight::nn
