// The header of a .safetensors file: which tensor lies where. Believed only after every number in it is checked against the file.
//
//     const InputFile file = TRY(InputFile::open(path));
//     const SafetensorsHeader header = TRY(read_header(file));
//     for (const TensorInfo& tensor : header.tensors) file.read_at(into, tensor.bytes(), tensor.begin);
//
// Layout (docs/formats/safetensors.md): u64 header length n, little endian; n bytes of JSON; data without gaps to the end of the file.
// Verdicts equal the reference parser's (safetensors 0.8), but for those listed in docs/threats.md.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace inflight::checkpoint {

inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the reference parser's own cap

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // outermost first, row-major; [] is a scalar; a zero dimension is allowed
  std::int64_t begin = 0, end = 0;  // absolute byte offsets in the file

  std::int64_t elements() const;
  std::int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // in file-offset order (empty ones of one offset by name); together they cover [data_begin, file size) exactly
  std::map<std::string, std::string> metadata;  // the "__metadata__" object
  std::int64_t data_begin = 0;                  // 8 + n
};

// `bytes`: the file from its start, at least 8 + n bytes of it (or all, where the file is shorter). `where`: its name in messages.
// kCorrupt: the file contradicts itself or its size. kUnsupported: an element type we do not know. Allocates in proportion to `bytes` alone.
Result<SafetensorsHeader> parse_header(std::string_view bytes, std::int64_t file_size, std::string_view where);

// Reads the header alone. The length is checked against the cap and the file's size before it sizes anything. `file` must not be O_DIRECT.
Result<SafetensorsHeader> read_header(const InputFile& file);

}  // namespace inflight::checkpoint
