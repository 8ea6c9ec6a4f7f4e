// What tokens cost: bytes that a decode step must read, operations that a prompt must do. Counted once each, from the parameters.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/open_model.h"
#include "quant/apply.h"

namespace inflight::cli {

// Stored bytes (codes, scales, padding) of every matrix that a decode step of `batch` tokens uses, the head included, and one
// embedding row a token; of a matrix that derived ones stand for, those. K and V, or latents, come on top: KvShape::token_bytes() for every visible token of every sequence.
std::int64_t decode_bytes(const engine::OpenedModel& opened, std::int64_t batch);

// Operations of one kind of arithmetic.
struct Work {
  quant::Arithmetic arithmetic = quant::Arithmetic::kFp32;
  double operations = 0;
};

// A prompt of `tokens` tokens: 2 x tokens x inputs x outputs a matrix in the arithmetic it runs in, the head for one token,
// causal attention (q . k and p . v over the visible keys; of latent attention in the form that prompts take, keys and values made once) in that of prompts over a cache of this type. One entry per kind of arithmetic that occurs.
std::vector<Work> prefill_work(const engine::OpenedModel& opened, std::int64_t tokens, DType cache);

}  // namespace inflight::cli
