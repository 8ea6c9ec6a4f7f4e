// A generation request and what comes back, in token ids. Text is the caller's business (text/).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace inflight::engine {

// Greedy when temperature is 0 (below 1e-5), top_k is 1 or top_p is 0. Order: penalties on logits, temperature, top_k, top_p, min_p, draw.
struct SamplingParams {
  double temperature = 1.0;         // >= 0
  double top_p = 1.0;               // [0, 1]; 1: off
  std::int64_t top_k = 0;           // 0 (or -1): off
  double min_p = 0.0;               // [0, 1]; keeps tokens with p >= min_p * max p
  double repetition_penalty = 1.0;  // > 0; prompt and output; divides positive logits, multiplies negative ones
  double presence_penalty = 0.0;    // [-2, 2]; output only; subtracted once
  double frequency_penalty = 0.0;   // [-2, 2]; output only; subtracted per occurrence
  std::int64_t max_tokens = 0;      // 0: what is left of the context
  std::int64_t min_tokens = 0;      // stop ids are masked until then
  bool ignore_eos = false;
  std::optional<std::uint64_t> seed;  // none: fresh randomness
};

// Checks ranges; an error names the flag or field and the allowed range.
Result<void> validate(const SamplingParams& params);

struct Request {
  std::vector<std::int32_t> prompt;           // token ids, at least one
  SamplingParams sampling;
  std::vector<std::int32_t> stop_ids;         // end-of-sequence ids (the union of every source); unused when ignore_eos
};

using RequestId = std::int64_t;

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// One event of a step: a new token, or the end of a request, or both at once.
struct Event {
  RequestId request = 0;
  std::optional<std::int32_t> token;  // a generated token; the stop id itself is not reported
  FinishReason finish = FinishReason::kNone;
  std::string error;                  // kError: what went wrong (non-finite logits, ...)
};

// Timing and counts of a finished request.
struct RequestStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;  // reported tokens (the stop id not counted)
  double prefill_seconds = 0;         // submission of the first chunk to the first token
  double decode_seconds = 0;          // first token to the last
  std::int64_t preemptions = 0;
};

}  // namespace inflight::engine
