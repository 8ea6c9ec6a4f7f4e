// For tests: what a trainer sends.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "engine/test_folder.h"

namespace inflight::engine {

// The folder with every number's lowest mantissa bit flipped: another model of the same shape.
inline TestFolder changed(const std::string& folder) {
  TestFolder other = TestFolder::read(folder);
  for (auto& [name, tensor] : other.tensors) {
    const std::size_t width = static_cast<std::size_t>(dtype_bits(tensor.dtype)) / 8;
    for (std::size_t i = 0; i < tensor.data.size(); i += width) tensor.data[i] = static_cast<char>(tensor.data[i] ^ 1);
  }
  return other;
}

// The folder's tensors of the names that are wanted; `folder` must outlive the stream.
inline Engine::TensorStream stream_of(const TestFolder& folder, const std::function<bool(const std::string&)>& wanted = [](const std::string&) { return true; }) {
  return [&folder, wanted, at = folder.tensors.begin()]() mutable -> Result<std::optional<loader::NamedTensor>> {
    while (at != folder.tensors.end() && !wanted(at->first)) ++at;
    if (at == folder.tensors.end()) return std::nullopt;
    const auto& [name, tensor] = *at++;
    return loader::NamedTensor{name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.data))};
  };
}

}  // namespace inflight::engine
