// From what the user typed (a folder, a GGUF file, or a hub id such as "Qwen/Qwen3-0.6B") to a checkpoint folder or GGUF file. Never touches the network.
#pragma once
#include <string>

#include "base/result.h"

namespace inflight::checkpoint {

// A folder is returned as it is, and so is a file that ends in .gguf. A hub id "org/name" is looked up in the local Hugging Face cache:
//   root:     HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub (an empty variable counts as unset)
//   snapshot: <root>/models--org--name/snapshots/<commit>, where <commit> is the content of <root>/models--org--name/refs/main
// and only a complete snapshot is taken: config.json and all weight files. Else kNotFound, with the `hf download` command.
// kInvalidArgument: another file instead of a folder, with what to give instead.
Result<std::string> resolve_model_folder(const std::string& name);

}  // namespace inflight::checkpoint
