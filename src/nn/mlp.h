// The gated feed-forward block: y = down(silu(gate(x)) * up(x)).
#pragma once
#include "nn/module.h"

namespace inflight::nn {

class Mlp {
 public:
  Mlp(const Scope& scope, std::int64_t hidden, std::int64_t intermediate);
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy, const quant::PrepareRows& prepare = {}) const;
  // This rank's part of y: the sum over ranks is the caller's.
  void part(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const;

 private:
  // What down takes: [T, ld].
  struct Activated {
    float* data;
    std::int64_t ld;
    quant::PrepareRows prepare;
  };
  Activated activate(const Pass& pass, const float* x, std::int64_t ldx, const quant::PrepareRows& prepare) const;

  std::int64_t intermediate_;  // of this rank
  Linear up_gate_, down_;
};

}  // namespace inflight::nn
