// AWQ, its "gemm" version: eight outputs in a word, even ones in the low half. Bytes: docs/formats/awq.md.
#include <algorithm>

#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kZeros, kScales };

// Outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight lie in nibbles 0 to 7.
int nibble_of(std::int64_t output) { return static_cast<int>(output % 8 / 2 + output % 2 * 4); }

// Byte j of word i and byte i of word j change places.
void transpose(std::uint64_t (&words)[8]) {
  constexpr std::uint64_t kLow[3] = {0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff};
  for (int step = 0; step < 3; ++step) {
    const int apart = 1 << step;
    for (int i = 0; i < 8; ++i) {
      if (i & apart) continue;
      const std::uint64_t change = (words[i] >> (8 * apart) ^ words[i + apart]) & kLow[step];
      words[i + apart] ^= change;
      words[i] ^= change << (8 * apart);
    }
  }
}

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t groups = settings.group == 0 ? 1 : (inputs + settings.group - 1) / settings.group;
  if (outputs % 8 != 0) return fail(Code::kUnsupported, "AWQ holds 8 outputs in a word; a matrix [{}, {}] has {}", outputs, inputs, outputs);
  return std::vector<FormTensor>{
      by_inputs(1, {"qweight", {DType::kI32, DType::kU32}, {inputs, outputs / 8}, Reach::kColumns, 8}),
      by_inputs(settings.group, {"qzeros", {DType::kI32, DType::kU32}, {groups, outputs / 8}, Reach::kColumns, 8, !settings.offsets}),
      by_inputs(settings.group, {"scales", {DType::kF16, DType::kBF16, DType::kF32}, {groups, outputs}, Reach::kColumns})};
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
      std::uint64_t block[8] = {};  // of an input, its nibbles in bytes; then of a nibble, its inputs
      for (std::int64_t i = 0; i < inputs; ++i) block[i] = spread_nibbles(word_at(from + (k + i) * codes.stride));
      transpose(block);
      for (int o = 0; o < count; ++o) std::memcpy(parts.codes + (r + o) * parts.inputs + k, &block[nibble_of(in_word + o)], static_cast<std::size_t>(inputs));
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
