// Any bytes as an index: parsing must not fault, and every accepted file name must be a plain name inside the folder.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/index_json.h"

namespace {

void check(bool claim) {
  if (!claim) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto index = inflight::checkpoint::parse_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index) {
    for (const char c : index.error().message) check(c >= 0x20 && c <= 0x7e);
    return 0;
  }
  check(!index->files.empty() && std::ranges::is_sorted(index->files) && std::ranges::adjacent_find(index->files) == index->files.end());
  for (const auto& file : index->files) check(file.find('/') == file.npos && file.find('\0') == file.npos && file != ".." && file.ends_with(".safetensors"));
  for (std::size_t i = 0; i < index->tensors.size(); ++i) {
    const auto& [name, shard] = index->tensors[i];
    check(index->shard_of(name) == shard && shard >= 0 && static_cast<std::size_t>(shard) < index->files.size());
    check(i == 0 || index->tensors[i - 1].first < name);
  }
  return 0;
}
