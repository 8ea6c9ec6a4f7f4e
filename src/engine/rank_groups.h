// Data-parallel attention: ranks in groups of equally many, one after another, each with its own sequences. Which group a sequence belongs to, the part of a step that
// a group computes, and the way of its logits back to rank 0.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "models/model.h"
#include "nn/runtime.h"
#include "nn/step.h"

namespace inflight::engine {

// On rank 0. A sequence joins the group that has fewest tokens of the step in which it begins, and stays there: its keys and values do. It is known by the first block
// of its table, which is its own as long as it has blocks; one whose first token comes (again, after preemption) is assigned anew.
class GroupAssignment {
 public:
  explicit GroupAssignment(int groups) : groups_(groups) {}
  // The group of each span.
  std::vector<std::int32_t> assign(const nn::Step& step);
  void forget(const nn::KvCache* cache);  // that is dropped

 private:
  int groups_;
  std::map<std::pair<const nn::KvCache*, std::int32_t>, std::int32_t> group_of_;  // by cache and first block
};

// The part of a step that one group computes; what it points to lives until the next build().
class GroupStep {
 public:
  GroupStep(int groups, int tensor_ranks) : groups_(groups), tensor_ranks_(tensor_ranks), tokens_(static_cast<std::size_t>(groups)) {}
  int groups() const { return groups_; }

  // whole: the step of all groups, on every rank; group_of: the group of each span.
  const nn::Step& build(const nn::Step& whole, std::span<const std::int32_t> group_of, int rank, const models::Model& model, bool hidden);
  const std::vector<nn::Runtime::GroupTokens>& tokens() const { return tokens_; }
  // A collective: what every group computed comes to rank 0, into whole.logits and whole.hidden there.
  void collect(const nn::Step& whole, comm::Comm& ranks, const models::Model& model) const;

 private:
  int groups_, tensor_ranks_;
  nn::Step step_;
  std::vector<std::int32_t> ids_, positions_, rows_;
  std::vector<nn::Span> spans_;
  std::vector<float> logits_, hidden_;
  std::vector<nn::Runtime::GroupTokens> tokens_;            // of each group
  std::vector<std::int32_t> token_group_, row_group_;       // of each token, of each row of logits of the whole step
  bool wants_hidden_ = false;
};

}  // namespace inflight::engine
