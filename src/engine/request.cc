#include "engine/request.h"

#include <cmath>

namespace inflight::engine {
namespace {

Result<void> in_range(std::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return {};  // false for NaN
  return fail(Code::kInvalidArgument, "{} {}: must be between {} and {}", name, value, least, most);
}

}  // namespace

Result<void> validate(const SamplingParams& params) {
  if (!(std::isfinite(params.temperature) && params.temperature >= 0))
    return fail(Code::kInvalidArgument, "temperature {}: must be a finite number, 0 (greedy) or more", params.temperature);
  TRY(in_range("top_p", params.top_p, 0, 1));
  if (params.top_k < -1) return fail(Code::kInvalidArgument, "top_k {}: must be 1 or more, or 0 or -1 for all tokens", params.top_k);
  TRY(in_range("min_p", params.min_p, 0, 1));
  if (!(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0))
    return fail(Code::kInvalidArgument, "repetition_penalty {}: must be a finite number above 0 (1 is off)", params.repetition_penalty);
  TRY(in_range("presence_penalty", params.presence_penalty, -2, 2));
  TRY(in_range("frequency_penalty", params.frequency_penalty, -2, 2));
  if (params.max_tokens < 0) return fail(Code::kInvalidArgument, "max_tokens {}: must be 1 or more, or 0 for what is left of the context", params.max_tokens);
  if (params.min_tokens < 0) return fail(Code::kInvalidArgument, "min_tokens {}: must be 0 or more", params.min_tokens);
  if (params.max_tokens > 0 && params.min_tokens > params.max_tokens)
    return fail(Code::kInvalidArgument, "min_tokens {} is more than max_tokens {}", params.min_tokens, params.max_tokens);
  return {};
}

}  // namespace inflight::engine
