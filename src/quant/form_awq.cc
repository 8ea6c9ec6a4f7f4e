// AWQ, its "gemm" version: eight outputs in a word, even ones in the low half. Bytes: docs/formats/awq.md.
#include <algorithm>

#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kZeros, kScales };

// Outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight lie in nibbles 0 to 7.
int nibble_of(std::int64_t output) { return static_cast<int>(output % 8 / 2 + output % 2 * 4); }

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t groups = settings.group == 0 ? 1 : (inputs + settings.group - 1) / settings.group;
  if (outputs % 8 != 0) return fail(Code::kUnsupported, "AWQ holds 8 outputs in a word; a matrix [{}, {}] has {}", outputs, inputs, outputs);
  return std::vector<FormTensor>{
      {"qweight", {DType::kI32, DType::kU32}, {inputs, outputs / 8}, Reach::kColumns, 8},
      {"qzeros", {DType::kI32, DType::kU32}, {groups, outputs / 8}, Reach::kColumns, 8, !settings.offsets},
      {"scales", {DType::kF16, DType::kBF16, DType::kF32}, {groups, outputs}, Reach::kColumns}};
}

Result<void> take_apart(const FormSettings&, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  TRY(read_scales(bytes[kScales], Reach::kColumns, 1, first, parts));
  if (const FormBytes& zeros = bytes[kZeros]; zeros.data)
    for (std::int64_t g = 0; g < parts.groups(); ++g)
      for (int r = 0; r < parts.rows; ++r) {
        const std::int64_t at = first + r - zeros.origin;
        TRY(set_zero(code_in(word_at(zeros.data + g * zeros.stride + at / 8 * 4), nibble_of(at), 4), first, r, g, "\"zero_point\": false", parts));
      }

  const FormBytes& codes = bytes[kCodes];
  for (int r = 0; r < parts.rows;) {  // the outputs of one word at a time, eight inputs by eight
    const std::int64_t at = first + r - codes.origin, in_word = at % 8;
    const int count = static_cast<int>(std::min<std::int64_t>(8 - in_word, parts.rows - r));
    const std::byte* from = codes.data + at / 8 * 4;
    for (std::int64_t k = 0; k < parts.inputs; k += 8) {
      const std::int64_t inputs = std::min<std::int64_t>(8, parts.inputs - k);
      std::uint8_t block[8][8] = {};  // [input][nibble]
      for (std::int64_t i = 0; i < inputs; ++i) {
        const std::uint64_t spread = spread_nibbles(word_at(from + (k + i) * codes.stride));
        std::memcpy(block[i], &spread, 8);
      }
      for (int o = 0; o < count; ++o) {
        std::uint8_t* out = parts.codes + (r + o) * parts.inputs + k;
        const int nibble = nibble_of(in_word + o);
        if (inputs == 8) {
          for (int i = 0; i < 8; ++i) out[i] = block[i][nibble];
        } else {
          for (std::int64_t i = 0; i < inputs; ++i) out[i] = block[i][nibble];
        }
      }
    }
    r += count;
  }
  return {};
}

}  // namespace

const StoredForm& awq_form() {
  static constexpr StoredForm kForm = {.name = "AWQ", .tensors = tensors, .take_apart = take_apart};
  return kForm;
}

}  // namespace inflight::quant
