// The gated feed-forward block: y = down(silu(gate(x)) * up(x)).
#pragma once
#include "nn/module.h"

namespace inflight::nn {

class Mlp {
 public:
  Mlp(const Scope& scope, std::int64_t hidden, std::int64_t intermediate);
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;

 private:
  std::int64_t intermediate_;
  Linear up_gate_, down_;
};

}  // namespace inflight::nn
