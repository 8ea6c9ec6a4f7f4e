// Any bytes as a GGUF file: parsing must not fault, what it accepts must lie inside the file, apart from each other, and every value must be readable.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/gguf.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_names.h"

namespace {

using namespace inflight;
using namespace inflight::checkpoint;

void check(bool claim) {
  if (!claim) __builtin_trap();
}

template <class T>
void check_outcome(const Result<T>& result) {
  if (result) return;
  check(!result.error().message.empty() && result.error().code != Code::kInternal);
  for (const char c : result.error().message) check(c >= 0x20 && c <= 0x7e);
}

void parse(const std::shared_ptr<const std::string>& bytes, std::int64_t file_size) {
  const auto header = parse_gguf_header(bytes, file_size, "fuzz");
  check_outcome(header);
  if (!header) return;
  std::int64_t covered = 0;
  for (const TensorInfo& tensor : header->tensors) {
    check(tensor.begin >= covered && tensor.end >= tensor.begin && tensor.end <= file_size && tensor.elements() > 0);
    check(row_bytes(tensor.dtype, tensor.elements()) == tensor.bytes());
    covered = tensor.end;
  }
  for (const auto& [key, value] : header->metadata) {
    check_outcome(header->integer(key));
    check_outcome(header->number(key));
    check_outcome(header->boolean(key));
    check_outcome(header->string(key));
    check_outcome(header->strings(key));
    check_outcome(header->integers(key));
    check_outcome(header->floats(key));
  }
  check_outcome(gguf_generation_config(*header));
  for (const char* name : {"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "glm4moe", "ernie4_5", "ernie4_5-moe", "deepseek2"}) {
    const GgufFamily& family = **find_gguf_family(name, "fuzz");
    check_outcome(gguf_config(family, *header, header->tensors, {}));
    for (const TensorInfo& tensor : header->tensors) {
      const auto renamed = rename_gguf_tensor(family, tensor, "fuzz");
      check_outcome(renamed);
      std::int64_t at = tensor.begin;
      if (renamed)
        for (const TensorInfo& part : *renamed) {
          check(part.begin == at && row_bytes(part.dtype, part.elements()) == part.bytes());
          at = part.end;
        }
      check(!renamed || renamed->empty() || at == tensor.end);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::make_shared<const std::string>(reinterpret_cast<const char*>(data), size);
  parse(bytes, static_cast<std::int64_t>(size));
  parse(bytes, INT64_MAX);  // the same start in front of far more data than anyone has
  return 0;
}
