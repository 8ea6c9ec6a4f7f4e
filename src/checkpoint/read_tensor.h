// Whole small tensors as plain vectors: for tests, goldens and the odd scalar. The streaming loader does not use this.
#pragma once
#include <cstdint>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace inflight::checkpoint {

// Row-major elements of an F32, F16 or BF16 tensor, exactly. kUnsupported for other types, kExhausted when memory runs out.
Result<std::vector<float>> read_as_f32(const InputFile& file, const TensorInfo& tensor);
Result<std::vector<float>> read_as_f32(const Checkpoint& checkpoint, const Tensor& tensor);

// Row-major elements of a tensor of integers (I64, I32, I16, I8, U32, U16, U8, BOOL).
Result<std::vector<std::int64_t>> read_i64(const InputFile& file, const TensorInfo& tensor);
Result<std::vector<std::int64_t>> read_i64(const Checkpoint& checkpoint, const Tensor& tensor);

// By name in a file that has no config beside it, e.g. a golden: opens, reads the header, finds the tensor. kNotFound where there is none.
Result<std::vector<float>> read_named_f32(const std::string& path, std::string_view name);
Result<std::vector<std::int64_t>> read_named_i64(const std::string& path, std::string_view name);

}  // namespace inflight::checkpoint
