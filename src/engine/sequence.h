// A request on its way: its tokens, how many of them are in the cache, and the blocks that hold them.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/block_manager.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace inflight::engine {

// Tokens are the prompt followed by what was generated. K and V of the first `computed` are in the cache. A step computes the next ones; when it
// reaches the last token, its logits give the next token. Preemption sets `computed` back to 0 and changes nothing else, so that nothing is sampled twice.
struct Sequence {
  using Clock = std::chrono::steady_clock;

  Sequence(RequestId request_id, BlockPool& pool) : id(request_id), blocks(pool) {}

  RequestId id;  // ascending in order of arrival
  std::vector<std::int32_t> tokens;
  std::int64_t prompt_tokens = 0;
  std::int64_t max_tokens = 0;      // tokens.size() at which the sequence ends: max_tokens or the context, whichever comes first
  SamplingParams sampling;
  std::vector<std::int32_t> stop_ids;  // sorted; empty under ignore_eos
  std::uint64_t seed = 0;
  TokenHistory history;             // filled when the sampling parameters have penalties

  BlockTable blocks;
  std::int64_t computed = 0;
  std::int64_t scheduled = 0;       // tokens of the step under way

  RequestStats stats;
  Clock::time_point first_step{}, first_token{};

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t remaining() const { return length() - computed; }  // >= 1
  std::int64_t generated() const { return length() - prompt_tokens; }
  // Only the newest generated token is left to compute.
  bool decoding() const { return remaining() == 1 && generated() > 0; }
};

}  // namespace inflight::engine
