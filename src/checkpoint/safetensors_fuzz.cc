// Any bytes as a safetensors file: parsing must not fault, and what it accepts must lie inside the file, without gaps or overlaps.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "checkpoint/safetensors.h"

namespace {

void check(bool claim) {
  if (!claim) __builtin_trap();
}

void parse(std::string_view bytes, std::int64_t file_size) {
  const auto header = inflight::checkpoint::parse_header(bytes, file_size, "fuzz");
  if (!header) {
    check(!header.error().message.empty() && header.error().code != inflight::Code::kInternal);
    for (const char c : header.error().message) check(c >= 0x20 && c <= 0x7e);
    return;
  }
  std::int64_t covered = header->data_begin;
  std::set<std::string_view> names;
  for (const auto& tensor : header->tensors) {
    check(tensor.begin == covered && tensor.end >= tensor.begin && tensor.elements() >= 0);
    check(static_cast<std::uint64_t>(tensor.bytes()) * 8 ==
          static_cast<std::uint64_t>(tensor.elements()) * static_cast<std::uint64_t>(inflight::dtype_bits(tensor.dtype)));
    check(names.insert(tensor.name).second);
    covered = tensor.end;
  }
  check(covered == file_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes, static_cast<std::int64_t>(size));
  // The same start in front of far more data than anyone has, as far as it is a whole header.
  std::uint64_t length = 0;
  if (size >= 8) __builtin_memcpy(&length, data, 8);
  if (size >= 8 && length <= size - 8) parse(bytes, INT64_MAX);
  return 0;
}
