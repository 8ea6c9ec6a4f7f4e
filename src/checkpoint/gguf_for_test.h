// For tests: GGUF files made by hand.
#pragma once
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf.h"

namespace inflight::checkpoint {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string gguf_string(std::string_view text) { return raw<std::uint64_t>(text.size()) + std::string(text); }

// A value with its kind in front, as metadata has it.
inline std::string gguf_u32(std::uint32_t value) { return raw<std::uint32_t>(4) + raw(value); }
inline std::string gguf_f32(float value) { return raw<std::uint32_t>(6) + raw(value); }
inline std::string gguf_bool(bool value) { return raw<std::uint32_t>(7) + std::string(1, value ? 1 : 0); }
inline std::string gguf_text(std::string_view text) { return raw<std::uint32_t>(8) + gguf_string(text); }
inline std::string gguf_texts(const std::vector<std::string>& list) {
  std::string bytes = raw<std::uint32_t>(9) + raw<std::uint32_t>(8) + raw<std::uint64_t>(list.size());
  for (const std::string& text : list) bytes += gguf_string(text);
  return bytes;
}
inline std::string gguf_i32s(const std::vector<std::int32_t>& list) {
  std::string bytes = raw<std::uint32_t>(9) + raw<std::uint32_t>(5) + raw<std::uint64_t>(list.size());
  for (const std::int32_t value : list) bytes += raw(value);
  return bytes;
}

struct GgufBuilder {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dimensions;  // innermost first, as in the file
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };
  std::uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> metadata;  // key, kind and value
  std::vector<Tensor> tensors;
  std::string data;
  std::int64_t alignment = 32;

  GgufBuilder& set(std::string key, std::string value) {
    metadata.emplace_back(std::move(key), std::move(value));
    return *this;
  }
  // With `bytes` of data, zeros, behind those before.
  GgufBuilder& add(std::string name, std::vector<std::uint64_t> dimensions, std::uint32_t type, std::size_t bytes) {
    data.resize((data.size() + static_cast<std::size_t>(alignment) - 1) / static_cast<std::size_t>(alignment) * static_cast<std::size_t>(alignment));
    tensors.push_back({std::move(name), std::move(dimensions), type, data.size()});
    data.resize(data.size() + bytes);
    return *this;
  }
  GgufBuilder& floats(std::string name, std::vector<std::uint64_t> dimensions) {
    std::size_t count = 1;
    for (const std::uint64_t n : dimensions) count *= n;
    return add(std::move(name), std::move(dimensions), 0, count * 4);
  }
  std::string header() const {
    std::string bytes = "GGUF" + raw(version) + raw<std::uint64_t>(tensors.size()) + raw<std::uint64_t>(metadata.size());
    for (const auto& [key, value] : metadata) bytes += gguf_string(key) + value;
    for (const Tensor& tensor : tensors) {
      bytes += gguf_string(tensor.name) + raw<std::uint32_t>(static_cast<std::uint32_t>(tensor.dimensions.size()));
      for (const std::uint64_t n : tensor.dimensions) bytes += raw(n);
      bytes += raw(tensor.type) + raw(tensor.offset);
    }
    return bytes;
  }
  std::string file() const {
    std::string bytes = header();
    if (data.empty()) return bytes;
    bytes.resize((bytes.size() + static_cast<std::size_t>(alignment) - 1) / static_cast<std::size_t>(alignment) * static_cast<std::size_t>(alignment));
    return bytes + data;
  }
};

inline Result<GgufHeader> parse_gguf(const std::string& file, std::int64_t size = -1) {
  return parse_gguf_header(std::make_shared<const std::string>(file), size < 0 ? static_cast<std::int64_t>(file.size()) : size, "m.gguf");
}

}  // namespace inflight::checkpoint
