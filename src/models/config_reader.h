// Reading of config.json that several architectures share.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace inflight::models {

// An integer from 1 to 2^31; an error names file, key and value.
Result<std::int64_t> positive(const JsonView& config, std::string_view key);

// PaddlePaddle's checkpoints store linears [inputs, outputs]. As FastDeploy tells them apart: `torch_dtype` means PyTorch; `dtype` beside a
// transformers_version above 4.56.0 too; `dtype` otherwise means PaddlePaddle. Folders that this program converted are [outputs, inputs].
Result<bool> is_paddle_layout(const JsonView& config);

}  // namespace inflight::models
