#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace inflight::engine {

void Scheduler::remove(Sequence& sequence) {
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
  sequence.blocks.clear();
  sequence.computed = 0;
}

std::vector<Chunk> Scheduler::schedule() {
  budget_ = limits_.max_num_batched_tokens;
  for (Sequence* sequence : running_) sequence->scheduled = 0;
  schedule_decodes();
  schedule_prefills();
  admit();
  return std::exchange(chunks_, {});
}

void Scheduler::take(Sequence& sequence, std::int64_t count) {
  sequence.scheduled = count;
  budget_ -= count;
  chunks_.push_back({&sequence, count});
}

// The youngest of the running sequences arrived before all that wait, so it goes to the front of the queue.
void Scheduler::preempt_youngest() {
  Sequence& youngest = *running_.back();
  running_.pop_back();
  waiting_.push_front(&youngest);
  youngest.blocks.clear();
  youngest.computed = 0;
  ++youngest.stats.preemptions;
}

void Scheduler::schedule_decodes() {
  for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) continue;
    // Younger sequences have no part of this step yet. The loop ends: alone, a sequence has the whole pool.
    while (!sequence.blocks.reserve(sequence.length())) {
      const bool itself = running_.back() == &sequence;
      preempt_youngest();
      if (itself) return;
    }
    take(sequence, 1);
  }
}

void Scheduler::schedule_prefills() {
  for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.decoding()) continue;
    const auto room = [&] { return (sequence.blocks.size() + pool_.free_blocks()) * pool_.block_size() - sequence.computed; };
    // Without room for a single token the youngest gives its blocks, unless it already has a part of this step (its turn will pass) or it is this one
    // (older ones hold the blocks and go on). Either way some sequence has a part of the step, or its blocks would have been taken.
    while (room() < 1 && running_.back() != &sequence && running_.back()->scheduled == 0) preempt_youngest();
    const std::int64_t count = std::min({sequence.remaining(), budget_, room()});
    if (count < 1 || !sequence.blocks.reserve(sequence.computed + count)) continue;
    take(sequence, count);
  }
}

// A sequence enters when blocks for all its tokens are free, beside those that running prompts still need and one spare block for each running
// sequence to grow into: so an entry is rarely undone by the next step, and a sequence that just gave its blocks does not enter again.
void Scheduler::admit() {
  std::int64_t spoken_for = 0;
  for (const Sequence* sequence : running_) spoken_for += std::max<std::int64_t>(pool_.blocks_for(sequence->length()) - sequence->blocks.size(), 0) + 1;
  while (budget_ > 0 && !waiting_.empty() && running() < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    const std::int64_t needed = pool_.blocks_for(sequence.length());
    if (!running_.empty() && needed + spoken_for > pool_.free_blocks()) return;
    const std::int64_t count = std::min(sequence.remaining(), budget_);
    if (!sequence.blocks.reserve(sequence.computed + count)) return;
    waiting_.pop_front();
    running_.push_back(&sequence);
    take(sequence, count);
    spoken_for += needed - sequence.blocks.size() + 1;
  }
}

}  // namespace inflight::engine
