// The header of a GGUF file: metadata, and which tensor lies where. Believed only after every number in it is checked against the file.
//
//     const InputFile file = TRY(InputFile::open(path));
//     const GgufHeader header = TRY(read_gguf_header(file));
//     std::optional<std::int64_t> layers = TRY(header.integer("llama.block_count"));
//
// Layout (docs/formats/gguf.md): magic, version, counts, metadata, tensor infos; padding; tensors, each at a multiple of the alignment. Little endian.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace inflight::checkpoint {

inline constexpr std::int64_t kMaxGgufHeaderBytes = std::int64_t{1} << 28;
inline constexpr int kMaxGgufDimensions = 4;

// As the file numbers them.
enum class GgufKind : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
std::string_view gguf_kind_name(GgufKind kind);

// A value of the metadata: its bytes in the file. Elements of an array lie behind each other; strings are a u64 length and that many bytes.
struct GgufValue {
  GgufKind kind = GgufKind::kU8;
  GgufKind element = GgufKind::kU8;  // of an array
  std::uint64_t count = 1;           // elements of an array
  std::string_view bytes;            // of a string: its text alone
};

struct GgufHeader {
  std::uint32_t version = 3;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<TensorInfo> tensors;   // in file-offset order, names as in the file; shapes outermost first
  std::string where;                 // the file's name in messages
  std::shared_ptr<const std::string> text;  // what the values point into

  bool has(std::string_view key) const { return metadata.contains(key); }
  // nullopt where the key does not exist; kCorrupt, with both kinds, where it is of another kind. Integers of any width are integers, also numbers.
  Result<std::optional<std::int64_t>> integer(std::string_view key) const;
  Result<std::optional<double>> number(std::string_view key) const;  // FP32 as the shortest decimal that is it
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> string(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> strings(std::string_view key) const;  // valid as long as `text`
  Result<std::optional<std::vector<std::int64_t>>> integers(std::string_view key) const;
  Result<std::optional<std::vector<float>>> floats(std::string_view key) const;
};

// `bytes`: the file from its start, at least its header, or as much of it as there is. `file_size`: of the whole file. `where`: its name in messages.
// kCorrupt: the file contradicts itself or its size. kUnsupported: a version or an element type that is not read, by name. needs_more, where given, is set to
// true where the error is that `bytes` end too early and the file does not. Allocates in proportion to `bytes` alone.
Result<GgufHeader> parse_gguf_header(std::shared_ptr<const std::string> bytes, std::int64_t file_size, std::string_view where, bool* needs_more = nullptr);

// Reads the header alone. `file` must not be O_DIRECT.
Result<GgufHeader> read_gguf_header(const InputFile& file);

// "F32 F16 BF16 Q4_0 ...": the element types that are read.
std::string_view gguf_types();

}  // namespace inflight::checkpoint
