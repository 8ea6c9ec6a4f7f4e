// Inputs along the rows of a file become inputs along the rows of a matrix.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/format.h"

namespace inflight::loader {

// out [rows][ld] = the transpose of in [inputs][rows], whose lines are stride_bytes apart and may lie at any address. rows <= 16. width: bytes of an element, 2 or 4.
template <class T>
void transpose(const std::byte* in, std::int64_t stride_bytes, std::int64_t inputs, std::int64_t rows, std::byte* out, std::int64_t ld) {
  auto* to = reinterpret_cast<T*>(out);
  for (std::int64_t k = 0; k < inputs; ++k) {
    T line[quant::kPanelRows];
    std::memcpy(line, in + k * stride_bytes, static_cast<std::size_t>(rows) * sizeof(T));
    for (std::int64_t r = 0; r < rows; ++r) to[r * ld + k] = line[r];
  }
}
inline void transpose(std::int64_t width, const std::byte* in, std::int64_t stride_bytes, std::int64_t inputs, std::int64_t rows, std::byte* out, std::int64_t ld) {
  if (width == 4) transpose<std::uint32_t>(in, stride_bytes, inputs, rows, out, ld);
  else transpose<std::uint16_t>(in, stride_bytes, inputs, rows, out, ld);
}

}  // namespace inflight::loader
