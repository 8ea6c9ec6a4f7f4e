#include "checkpoint/read_tensor.h"

#include <algorithm>
#include <new>

#include "base/bf16.h"
#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

// Reads in pieces and converts each element with `convert(const T&)`.
template <class T, class Out, class Convert>
Result<std::vector<Out>> read_elements(const InputFile& file, const TensorInfo& tensor, Convert convert) {
  constexpr std::int64_t kPiece = 1 << 16;  // elements
  const std::int64_t count = tensor.elements();
  std::vector<Out> out;
  std::vector<T> piece(static_cast<std::size_t>(std::min(kPiece, count)));
  try {
    out.reserve(static_cast<std::size_t>(count));
  } catch (const std::exception&) {
    return fail(Code::kExhausted, "{}: no memory for the {} elements of tensor {}", file.path(), count, show(tensor.name));
  }
  for (std::int64_t at = 0; at < count; at += kPiece) {
    const auto n = static_cast<std::size_t>(std::min(kPiece, count - at));
    TRY(file.read_at(piece.data(), n * sizeof(T), tensor.begin + at * static_cast<std::int64_t>(sizeof(T))));
    for (std::size_t i = 0; i < n; ++i) out.push_back(convert(piece[i]));
  }
  return out;
}

template <class T>
Result<std::vector<std::int64_t>> read_integers(const InputFile& file, const TensorInfo& tensor) {
  return read_elements<T, std::int64_t>(file, tensor, [](T value) { return static_cast<std::int64_t>(value); });
}

std::unexpected<Error> wrong_type(const InputFile& file, const TensorInfo& tensor, std::string_view wanted) {
  return fail(Code::kUnsupported, "{}: tensor {} is {}, but {} was asked for", file.path(), show(tensor.name), dtype_name(tensor.dtype), wanted);
}

struct Named {
  InputFile file;
  TensorInfo tensor;
};
Result<Named> open_named(const std::string& path, std::string_view name) {
  InputFile file = TRY(InputFile::open(path));
  SafetensorsHeader header = TRY(read_header(file));
  for (TensorInfo& tensor : header.tensors)
    if (tensor.name == name) return Named{std::move(file), std::move(tensor)};
  return fail(Code::kNotFound, "{}: no tensor {} among its {}", path, show(name), header.tensors.size());
}

}  // namespace

Result<std::vector<float>> read_as_f32(const InputFile& file, const TensorInfo& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return read_elements<float, float>(file, tensor, [](float value) { return value; });
    case DType::kF16:
      return read_elements<std::uint16_t, float>(file, tensor, fp16_to_float);
    case DType::kBF16:
      return read_elements<std::uint16_t, float>(file, tensor, bf16_to_float);
    default:
      return wrong_type(file, tensor, "F32, F16 or BF16");
  }
}

Result<std::vector<std::int64_t>> read_i64(const InputFile& file, const TensorInfo& tensor) {
  switch (tensor.dtype) {
    case DType::kI64:
      return read_integers<std::int64_t>(file, tensor);
    case DType::kI32:
      return read_integers<std::int32_t>(file, tensor);
    case DType::kI16:
      return read_integers<std::int16_t>(file, tensor);
    case DType::kI8:
      return read_integers<std::int8_t>(file, tensor);
    case DType::kU32:
      return read_integers<std::uint32_t>(file, tensor);
    case DType::kU16:
      return read_integers<std::uint16_t>(file, tensor);
    case DType::kU8:
    case DType::kBool:
      return read_integers<std::uint8_t>(file, tensor);
    default:
      return wrong_type(file, tensor, "an integer type");
  }
}

Result<std::vector<float>> read_as_f32(const Checkpoint& checkpoint, const Tensor& tensor) {
  return read_as_f32(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)], tensor.info);
}

Result<std::vector<std::int64_t>> read_i64(const Checkpoint& checkpoint, const Tensor& tensor) {
  return read_i64(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)], tensor.info);
}

Result<std::vector<float>> read_named_f32(const std::string& path, std::string_view name) {
  const Named named = TRY(open_named(path, name));
  return read_as_f32(named.file, named.tensor);
}

Result<std::vector<std::int64_t>> read_named_i64(const std::string& path, std::string_view name) {
  const Named named = TRY(open_named(path, name));
  return read_i64(named.file, named.tensor);
}

}  // namespace inflight::checkpoint
