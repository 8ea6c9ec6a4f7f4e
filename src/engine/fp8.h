// How a model runs in FP8: static scales of activations, from a calibration file or from the checkpoint, and what uses them.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "engine/options.h"
#include "nn/runtime.h"
#include "params/param_spec.h"
#include "quant/activation_scales.h"
#include "quant/store.h"

namespace inflight::engine {

// What static scales there are, and for which largest code: those of --fp8-amax (absmax / bound), or the checkpoint's.
struct Fp8Scales {
  quant::ActivationScales scales;
  std::string_view declared = "none";  // what the checkpoint says of activations: "static", "dynamic" or "none"
  float bound = 448;
  bool plain_queries = false;            // the checkpoint says that attention rounds neither queries nor probabilities, also with --fp8-sdpa
};
Result<Fp8Scales> find_scales(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const EngineOptions& options);

// --fp8-target gaudi on weights that are stored with codes above 240: they get others, and a note says how many.
void limit_codes(const EngineOptions& options, quant::ParamStore& store, std::size_t params, std::vector<std::string>& notes);

// Gives every FP8 matrix its Matrix::fp8_input: of --fp8-activations and the scales that there are. kInvalidArgument: static is asked for, and scales are missing (named).
Result<void> assign_inputs(const params::ParamTable& table, const EngineOptions& options, const Fp8Scales& scales, quant::ParamStore& store);

// Scales of an E4M3 KV cache and of FP8 attention, one entry a layer. No scales at all: every scale is 1, with a note in `notes`.
// kInvalidArgument: some layers have scales and some do not; FP8 attention without scales of Q, or without an E4M3 cache; a model whose cache holds latents.
Result<std::vector<nn::AttentionScales>> attention_scales(const params::ParamTable& table, const EngineOptions& options, std::int64_t layers, const quant::ActivationScales& scales,
                                                          std::vector<std::string>& notes);

bool kv_cache_is_fp8(const EngineOptions& options);

}  // namespace inflight::engine
