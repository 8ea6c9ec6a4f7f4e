// config.json of a GGUF file: what its metadata and tensors say, under the keys that the family's config.json has.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_names.h"

namespace inflight::checkpoint {

// `tensors`: of all files of the model, under GGUF's names. `rope_factors`: of the tensor rope_freqs, empty where there is none.
// kCorrupt: a key is missing, of the wrong kind or contradicts another. kUnsupported: the metadata asks for what the family does not do here.
Result<Json> gguf_config(const GgufFamily& family, const GgufHeader& header, std::span<const TensorInfo> tensors, const std::vector<float>& rope_factors);

// general.sampling.* as generation_config.json; nullopt where there is none.
Result<std::optional<Json>> gguf_generation_config(const GgufHeader& header);

}  // namespace inflight::checkpoint
