// Which tokens of which sequences the next step computes: continuous batching with chunked prefill and preemption (docs/engine.md).
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sequence.h"

namespace inflight::engine {

struct SchedulerLimits {
  std::int64_t max_num_seqs = 32;             // sequences in a step, >= 1
  std::int64_t max_num_batched_tokens = 512;  // tokens in a step, >= 1
};

// One sequence's part of a step: tokens [computed, computed + count), with blocks for them.
struct Chunk {
  Sequence* sequence = nullptr;
  std::int64_t count = 0;
  bool samples() const { return count == sequence->remaining(); }
};

// Holds no sequence: they must outlive their stay here. Both queues are in order of arrival, and everything that runs arrived before everything that waits.
class Scheduler {
 public:
  // The pool must hold at least one sequence of the longest accepted length.
  Scheduler(const SchedulerLimits& limits, BlockPool& pool) : limits_(limits), pool_(pool) {}

  void add(Sequence& sequence) { waiting_.push_back(&sequence); }
  // Takes it out of its queue and frees its blocks.
  void remove(Sequence& sequence);
  // What runs gives its blocks back and will be computed again from its tokens.
  void preempt_all() {
    while (!running_.empty()) preempt_youngest();
  }
  bool empty() const { return waiting_.empty() && running_.empty(); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }

  // First one token of each decoding sequence, then prompt chunks of running sequences, then of waiting ones. Never empty unless empty().
  std::vector<Chunk> schedule();

 private:
  void preempt_youngest();
  void schedule_decodes();
  void schedule_prefills();
  void admit();
  void take(Sequence& sequence, std::int64_t count);

  const SchedulerLimits limits_;
  BlockPool& pool_;
  std::vector<Sequence*> running_;
  std::deque<Sequence*> waiting_;

  std::vector<Chunk> chunks_;  // of the step being scheduled
  std::int64_t budget_ = 0;    // tokens left in it
};

}  // namespace inflight::engine
