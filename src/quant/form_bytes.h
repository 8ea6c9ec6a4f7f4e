// What the forms of other tools share: numbers and 32-bit words in bytes of no alignment, scales and zero points of the rows asked for.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "quant/stored_form.h"

namespace inflight::quant {

inline std::uint32_t word_at(const std::byte* bytes) {
  std::uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// Nibble i of a word, low bits first, in byte i.
inline std::uint64_t spread_nibbles(std::uint32_t word) {
  std::uint64_t x = word;
  x = (x | x << 16) & 0x0000ffff0000ffffu;
  x = (x | x << 8) & 0x00ff00ff00ff00ffu;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

// The tensor, some inputs of which may be read alone.
inline FormTensor by_inputs(std::int64_t input_unit, FormTensor tensor) {
  tensor.input_unit = input_unit;
  return tensor;
}

// Code `index` of a word that holds codes of `bits` bits (4 or 8), the first in the low bits.
inline int code_in(std::uint32_t word, std::int64_t index, int bits) { return static_cast<int>(word >> (index * bits) & ((1u << bits) - 1)); }

// What a code kU4 or kU8 of the number zero is.
inline int zero_code(CodeKind kind) { return kind == CodeKind::kU4 ? 8 : kind == CodeKind::kU8 ? 128 : 0; }

// Element `index` of F32, F16, BF16 or F8_E8M0.
float number_at(const std::byte* bytes, DType dtype, std::int64_t index);

// Where the row of a kRows tensor lies that belongs to output `output`; `unit` outputs share it.
inline const std::byte* row_of(const FormBytes& bytes, std::int64_t output, std::int64_t unit = 1) {
  return bytes.data + (output - bytes.origin) / unit * bytes.stride;
}

// Group g of the parts, as the whole matrix counts them.
inline std::int64_t group_in_matrix(const RowParts& parts, std::int64_t g) { return parts.group == 0 ? g : parts.first_input / parts.group + g; }

// parts.scales from a tensor whose element [output / unit][group] is the scale (kRows), whose element [group][output] is it (kColumns), or that holds one
// scale for all (kWhole). An error names the first that is negative, infinite or not a number.
Result<void> read_scales(const FormBytes& bytes, Reach reach, std::int64_t unit, std::int64_t first, RowParts& parts);

// Sets the offset of row r and group g to what a zero point means: (code of zero - zero point) * scale. Where the rows have no offsets, a zero point that
// is not the code of zero is an error, which names the key that promised it.
Result<void> set_zero(int zero, std::int64_t first, int r, std::int64_t g, std::string_view symmetric_key, RowParts& parts);

// [inputs] codes of row r in the order of the inputs are in `natural`: into parts.codes, in the order of the parts.
void put_codes(const std::uint8_t* natural, int r, RowParts& parts);
// Where codes of row r are to be written in the order of the inputs: the row itself, or `scratch` (then put_codes() follows).
std::uint8_t* natural_row(int r, RowParts& parts, std::vector<std::uint8_t>& scratch);

// An error naming the first code of a row that is no number (kE4M3).
Result<void> check_fp8(std::int64_t first, const RowParts& parts);

}  // namespace inflight::quant
