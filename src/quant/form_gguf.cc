// GGUF's blocks: consecutive inputs of a row with their scales beside them. Layouts: docs/formats/gguf.md.
#include <cstring>

#include "base/bf16.h"
#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

using Bytes = const std::uint8_t*;

// Where one block's parts go: codes of its inputs, scales and offsets of its groups.
struct BlockOut {
  std::uint8_t* codes;
  float* scales;
  float* offsets;
};

float half_at(Bytes bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return fp16_to_float(bits);
}

// 32 codes of 16 bytes: the low halves, then the high ones. With bits: `base` and 16 times bit i are added to code i.
void halves_of_16(Bytes from, std::uint8_t* to) {
  for (int i = 0; i < 16; ++i) {
    to[i] = from[i] & 15;
    to[16 + i] = from[i] >> 4;
  }
}
void halves_with_bits(Bytes from, Bytes bits, std::uint8_t base, std::uint8_t* to) {
  std::uint32_t high;
  std::memcpy(&high, bits, 4);
  halves_of_16(from, to);
  for (int i = 0; i < 32; ++i) to[i] = static_cast<std::uint8_t>(to[i] + base + ((high >> i & 1) << 4));
}

// w = d (q - 8)
void take_q4_0(Bytes block, BlockOut out) {
  out.scales[0] = half_at(block);
  halves_of_16(block + 2, out.codes);
}

// w = d q + m; of a 4-bit code the zero is 8
void take_q4_1(Bytes block, BlockOut out) {
  const float d = half_at(block);
  out.scales[0] = d;
  out.offsets[0] = half_at(block + 2) + 8 * d;
  halves_of_16(block + 4, out.codes);
}

// w = d (q - 16), q of 5 bits
void take_q5_0(Bytes block, BlockOut out) {
  out.scales[0] = half_at(block);
  halves_with_bits(block + 6, block + 2, 128 - 16, out.codes);
}

// w = d q + m, q of 5 bits
void take_q5_1(Bytes block, BlockOut out) {
  out.scales[0] = half_at(block);
  out.offsets[0] = half_at(block + 2);
  halves_with_bits(block + 8, block + 4, 128, out.codes);
}

// w = d q, q signed
void take_q8_0(Bytes block, BlockOut out) {
  out.scales[0] = half_at(block);
  for (int i = 0; i < 32; ++i) out.codes[i] = block[2 + i] ^ 0x80;
}

// w = d s q - e t: s and t of 4 bits for 16 inputs, q of 2
void take_q2_k(Bytes block, BlockOut out) {
  const float d = half_at(block + 80), e = half_at(block + 82);
  for (int g = 0; g < 16; ++g) {
    out.scales[g] = d * static_cast<float>(block[g] & 15);
    out.offsets[g] = 8 * out.scales[g] - e * static_cast<float>(block[g] >> 4);
  }
  Bytes codes = block + 16;
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 32; ++i) out.codes[half * 128 + j * 32 + i] = codes[half * 32 + i] >> (2 * j) & 3;
}

// w = d (s - 32) (q - 4): s of 6 bits for 16 inputs, q of 3
void take_q3_k(Bytes block, BlockOut out) {
  Bytes high = block, codes = block + 32, scales = block + 96;
  const float d = half_at(block + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    out.scales[g] = d * static_cast<float>((low | (scales[8 + g % 4] >> (2 * (g / 4)) & 3) << 4) - 32);
  }
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 32; ++i)
        out.codes[half * 128 + j * 32 + i] = static_cast<std::uint8_t>((codes[half * 32 + i] >> (2 * j) & 3) + ((high[i] >> (4 * half + j) & 1) << 2) + 4);
}

struct ScaleAndMin {
  float scale, minimum;
};
// Of group g of 8: 6 bits each, in 12 bytes.
ScaleAndMin packed_of(Bytes bytes, int g) {
  if (g < 4) return {static_cast<float>(bytes[g] & 63), static_cast<float>(bytes[g + 4] & 63)};
  return {static_cast<float>((bytes[g + 4] & 15) | (bytes[g - 4] >> 6) << 4), static_cast<float>(bytes[g + 4] >> 4 | (bytes[g] >> 6) << 4)};
}

// w = d s q - e t: s and t of 6 bits for 32 inputs, q of 4
void take_q4_k(Bytes block, BlockOut out) {
  const float d = half_at(block), e = half_at(block + 2);
  for (int g = 0; g < 8; ++g) {
    const ScaleAndMin packed = packed_of(block + 4, g);
    out.scales[g] = d * packed.scale;
    out.offsets[g] = 8 * out.scales[g] - e * packed.minimum;
  }
  Bytes codes = block + 16;
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      out.codes[pair * 64 + i] = codes[pair * 32 + i] & 15;
      out.codes[pair * 64 + 32 + i] = codes[pair * 32 + i] >> 4;
    }
}

// The same with q of 5 bits
void take_q5_k(Bytes block, BlockOut out) {
  const float d = half_at(block), e = half_at(block + 2);
  for (int g = 0; g < 8; ++g) {
    const ScaleAndMin packed = packed_of(block + 4, g);
    out.scales[g] = d * packed.scale;
    out.offsets[g] = -(e * packed.minimum);
  }
  Bytes high = block + 16, codes = block + 48;
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      const int bits = high[i] >> (2 * pair);
      out.codes[pair * 64 + i] = static_cast<std::uint8_t>(128 + (codes[pair * 32 + i] & 15) + ((bits & 1) << 4));
      out.codes[pair * 64 + 32 + i] = static_cast<std::uint8_t>(128 + (codes[pair * 32 + i] >> 4) + ((bits >> 1 & 1) << 4));
    }
}

// w = d s (q - 32): s signed for 16 inputs, q of 6 bits
void take_q6_k(Bytes block, BlockOut out) {
  Bytes low = block, high = block + 128;
  const float d = half_at(block + 208);
  for (int g = 0; g < 16; ++g) out.scales[g] = d * static_cast<float>(static_cast<std::int8_t>(block[192 + g]));
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[half * 64 + j % 2 * 32 + i] >> (j / 2 * 4) & 15;
        out.codes[half * 128 + j * 32 + i] = static_cast<std::uint8_t>(128 - 32 + (nibble | (high[half * 32 + i] >> (2 * j) & 3) << 4));
      }
}

struct BlockForm {
  DType dtype;
  CodeKind kind;
  int group;
  bool offsets;
  int halves[2];  // where a block's FP16 numbers lie; -1: there is no second
  void (*take)(Bytes block, BlockOut out);
};
constexpr BlockForm kBlocks[] = {
    {DType::kQ4_0, CodeKind::kU4, 32, false, {0, -1}, take_q4_0},  {DType::kQ4_1, CodeKind::kU4, 32, true, {0, 2}, take_q4_1},
    {DType::kQ5_0, CodeKind::kU8, 32, false, {0, -1}, take_q5_0},  {DType::kQ5_1, CodeKind::kU8, 32, true, {0, 2}, take_q5_1},
    {DType::kQ8_0, CodeKind::kU8, 32, false, {0, -1}, take_q8_0},  {DType::kQ2_K, CodeKind::kU4, 16, true, {80, 82}, take_q2_k},
    {DType::kQ3_K, CodeKind::kU4, 16, false, {108, -1}, take_q3_k}, {DType::kQ4_K, CodeKind::kU4, 32, true, {0, 2}, take_q4_k},
    {DType::kQ5_K, CodeKind::kU8, 32, true, {0, 2}, take_q5_k},    {DType::kQ6_K, CodeKind::kU8, 16, false, {208, -1}, take_q6_k},
};

const BlockForm* block_form(DType dtype) {
  for (const BlockForm& block : kBlocks)
    if (block.dtype == dtype) return &block;
  return nullptr;
}

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  if (!block_form(settings.block)) return fail(Code::kInternal, "{} is no type of GGUF's blocks", dtype_name(settings.block));
  if (inputs % block_elements(settings.block) != 0)
    return fail(Code::kCorrupt, "a matrix [{}, {}] in {}: rows are not whole blocks of {} inputs", outputs, inputs, dtype_name(settings.block), block_elements(settings.block));
  return std::vector<FormTensor>{by_inputs(block_elements(settings.block), {"weight", {settings.block}, {outputs, inputs}, Reach::kRows})};
}

Result<void> take_apart(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  const BlockForm& form = *block_form(settings.block);
  const int elements = block_elements(settings.block), size = block_bytes(settings.block), groups = elements / form.group;
  for (int r = 0; r < parts.rows; ++r) {
    const auto* row = reinterpret_cast<Bytes>(row_of(bytes[0], first + r));
    for (std::int64_t b = 0; b < parts.inputs / elements; ++b) {
      Bytes block = row + b * size;
      for (const int at : form.halves)
        if (at >= 0 && (block[at + 1] & 0x7c) == 0x7c)  // an exponent of all ones
          return fail(Code::kCorrupt, "row {}, columns {} to {}: the block's scale or minimum is {}", first + r, parts.first_input + b * elements, parts.first_input + (b + 1) * elements - 1, half_at(block + at));
      const std::int64_t g = r * parts.groups() + b * groups;
      form.take(block, {parts.codes + r * parts.inputs + b * elements, parts.scales + g, parts.offsets ? parts.offsets + g : nullptr});
    }
  }
  return {};
}

}  // namespace

const StoredForm& gguf_form() {
  static constexpr StoredForm kForm = {.name = "GGUF", .tensors = tensors, .take_apart = take_apart};
  return kForm;
}

FormSettings gguf_settings(DType block) {
  const BlockForm* form = block_form(block);
  if (!form) return {.block = block};
  return {.kind = form->kind, .bits = form->kind == CodeKind::kU4 ? 4 : 8, .group = form->group, .offsets = form->offsets, .block = block};
}

}  // namespace inflight::quant
