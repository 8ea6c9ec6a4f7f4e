// A mixture of experts in place of the feed-forward block: a router picks top_k experts for each token; their outputs are summed by its weights.
#pragma once
#include <optional>
#include <vector>

#include "nn/expert_exchange.h"
#include "nn/mlp.h"
#include "nn/router.h"
#include "quant/experts.h"

namespace inflight::nn {

struct SparseMlpSizes {
  Routing routing;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;            // of one routed expert
  std::int64_t shared_intermediate = 0;     // of the shared experts together, 0: none
  std::string shared_name = "shared_experts";
  bool shared_gate = false;                 // the shared output is weighed by sigmoid(<shared_name>_gate . x) (Qwen2-MoE)
  bool use_bias = true;                     // apply the correction bias, where the checkpoint has one
};

// The checkpoint may store experts one by one (experts.3.gate_proj.weight), fused (experts.3.up_gate_proj.weight), or all in one tensor
// (experts.gate_up_proj [E, 2 * intermediate, hidden], experts.down_proj [E, hidden, intermediate], or both with the last two axes exchanged).
class SparseMlp {
 public:
  SparseMlp(const Scope& scope, const SparseMlpSizes& sizes, std::int64_t layer);
  // y [T, ldy >= padded(hidden)] = sum over chosen experts of weight * expert(x), and the shared experts. On several ranks each has all tokens and computes its
  // own experts, or its part of each; the sum over ranks ends the block. With Runtime::expert_ranks tokens travel to their experts: then all of those ranks call
  // it, also those that have no tokens.
  void operator()(const Pass& pass, const float* x, std::int64_t ldx, float* y, std::int64_t ldy) const;

 private:
  // Tokens of one arithmetic.
  struct Part {
    bool decode;
    std::int64_t tokens;
    const float* x;     // [tokens, ldx]
    std::int64_t ldx;
    float* y;           // [tokens, ldy]
    std::int64_t ldy;
  };
  struct Choices {
    std::int32_t* chosen;  // [tokens, top_k]
    float* weights;        // [tokens, top_k]
  };
  quant::ExpertArithmetic arithmetic_of(const Runtime& rt, const Part& part) const;
  // One region over the part's tokens: y begins with what the shared experts give, or zeros; tokens [first, last) are routed, to physical experts where there is
  // a placement; all are converted where that is wanted.
  Choices route_tokens(Runtime& rt, const Part& part, std::int64_t first, std::int64_t last, const quant::ExpertArithmetic* arithmetic, std::byte* converted) const;
  static std::int32_t replica_of(const params::ExpertPlacement& placement, std::int64_t layer, std::int32_t expert, float score);
  // What was chosen becomes this rank's experts, in the numbers of the model, and -1 for those of others.
  void localize(const Runtime& rt, int rank, std::int32_t* chosen, std::int64_t count) const;
  // Every rank has the part's tokens.
  void run_experts(Runtime& rt, const Part& part) const;
  // Tokens travel.
  void exchange(Runtime& rt, const Part& part) const;
  // y += what this rank's experts give. all: rows of each expert on any rank, where the observer is to see them.
  void compute(Runtime& rt, const quant::ExpertArithmetic& arithmetic, const std::byte* converted, const ExpertTokens& tokens, float* y, std::int64_t ldy, std::span<const std::int64_t> all) const;
  // Observer::forced_experts.
  void force_experts(Runtime& rt, const quant::ExpertArithmetic& arithmetic, std::int64_t tokens, const float* x, std::int64_t ldx, const std::byte* converted) const;
  // Shows what the expert's down_proj multiplies: [rows, intermediate] on the ranks that compute the expert.
  void show_activated(Runtime& rt, std::int64_t expert, float* activated, std::int64_t rows) const;
  // Of what is activated on all ranks, where experts are cut over several and their inputs sorted by group.
  static quant::GatherActivated gather_over_ranks(Runtime& rt);
  bool is_local(std::int64_t expert) const { return expert >= first_ && expert < first_ + count_; }

  SparseMlpSizes sizes_;  // intermediate: of this rank
  std::int64_t first_ = 0, count_ = 0;       // experts that this rank computes
  std::int64_t layer_;
  const quant::ParamStore* store_;
  std::size_t router_;
  std::int64_t bias_ = -1;                   // row index, or -1
  std::vector<std::size_t> up_gate_, down_;  // of each expert
  std::optional<Mlp> shared_;
  std::int64_t shared_gate_ = -1;
};

}  // namespace inflight::nn
