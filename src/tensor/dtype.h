// Element types of checkpoint tensors and of our own buffers.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace inflight {

// The last line: GGUF's block types (docs/formats/gguf.md), in which some consecutive elements of a row share their scales.
enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kF8E8M0, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool, kF4,
                                  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K };

// Bits per element: 4 for F4, else a multiple of 8; 0 for block types, whose elements have no place of their own.
int dtype_bits(DType dtype);
// The name that safetensors files use, e.g. "BF16", "F8_E4M3"; of block types ggml's, e.g. "Q4_K".
std::string_view dtype_name(DType dtype);
// The inverse, case sensitive; nullopt for a name that safetensors does not know, block types among them.
std::optional<DType> dtype_from_name(std::string_view name);

// Elements and bytes of a block; 1 and the element's bytes where elements stand alone (0 bytes for F4).
int block_elements(DType dtype);
int block_bytes(DType dtype);
inline bool is_block_type(DType dtype) { return block_elements(dtype) > 1; }
// Bytes of `elements` consecutive elements that begin a block and end one (F4: a byte).
std::int64_t row_bytes(DType dtype, std::int64_t elements);

}  // namespace inflight
