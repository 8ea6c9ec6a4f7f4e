// Element types of checkpoint tensors and of our own buffers.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace inflight {

enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kF8E8M0, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool, kF4 };

// Bits per element: 4 for F4, else a multiple of 8.
int dtype_bits(DType dtype);
// The name that safetensors files use, e.g. "BF16", "F8_E4M3".
std::string_view dtype_name(DType dtype);
// The inverse, case sensitive; nullopt for a name that safetensors does not know.
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace inflight
