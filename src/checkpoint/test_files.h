// For tests: a folder that is removed when the test ends, and files made by hand.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/file.h"

namespace inflight::checkpoint {

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "inflight_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string write(std::string_view name, std::string_view bytes) const {
    const std::string file = *this / name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

 private:
  std::string path_;
};

// A safetensors file: u64 length (of `header`, unless given), header, data.
inline std::string pack(std::string_view header, std::string_view data, std::uint64_t length) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(length >> (8 * i));
  return file.append(header).append(data);
}
inline std::string pack(std::string_view header, std::string_view data = {}) { return pack(header, data, header.size()); }

// An F32 tensor of one element per name, in that order; element i holds the float i.
inline std::string pack_floats(std::initializer_list<std::string_view> names) {
  std::string header = "{", data;
  std::size_t i = 0;
  for (const std::string_view name : names) {
    header += fmt::format("{}\"{}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{},{}]}}", i ? "," : "", name, 4 * i, 4 * i + 4);
    const float value = static_cast<float>(i++);
    data.append(reinterpret_cast<const char*>(&value), 4);
  }
  return pack(header + "}", data);
}

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

}  // namespace inflight::checkpoint
