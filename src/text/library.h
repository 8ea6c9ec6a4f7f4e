// Shared by this room's files: buffers and errors of the C face of the Rust library (text/rust/inflight_text.h).
#pragma once
#include <string>
#include <utility>

#include "base/result.h"
#include "text/rust/inflight_text.h"

namespace inflight::text {

// "tokenizers 0.23.2, minijinja 2.24.0", for `--version`.
std::string library_versions();

// A buffer that the library filled; frees itself.
struct Buffer {
  inflight_text_bytes bytes{};
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { inflight_text_free_bytes(bytes); }
  std::string str() const { return bytes.size == 0 ? std::string() : std::string(bytes.data, bytes.size); }
};

// The library's code as ours: a template's raise_exception and faulty input are the caller's, a panic is internal.
inline Code code_of(int code) {
  switch (code) {
    case INFLIGHT_TEXT_INTERNAL: return Code::kInternal;
    case INFLIGHT_TEXT_UNSUPPORTED: return Code::kUnsupported;
    default: return Code::kInvalidArgument;
  }
}

}  // namespace inflight::text
