// Names of tensors in GGUF files, and what Hugging Face's checkpoints call the same ones.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace inflight::checkpoint {

// An architecture of GGUF's general.architecture that is read.
struct GgufFamily {
  std::string_view name;          // "qwen3moe", also the prefix of its metadata
  std::string_view shared;        // where the shared expert lies: "shared_experts"
  std::string_view correction;    // whose e_score_correction_bias the experts are chosen by
};

// kUnsupported: with the architectures that are read.
Result<const GgufFamily*> find_gguf_family(std::string_view architecture, std::string_view where);

// The tensor under Hugging Face's name and in its shape; one for each expert where it stacks them. None for rope_freqs, which becomes part of config.json.
// A name that is not known stays as it is. kCorrupt: a stack of experts without its three dimensions. `where`: the file.
Result<std::vector<TensorInfo>> rename_gguf_tensor(const GgufFamily& family, TensorInfo tensor, std::string_view where);

inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";
inline constexpr std::string_view kGgufEmbedding = "token_embd.weight";
inline constexpr std::string_view kGgufHead = "output.weight";

}  // namespace inflight::checkpoint
