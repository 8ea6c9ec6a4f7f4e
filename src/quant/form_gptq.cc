// GPTQ: codes and zero points of eight (four) inputs or outputs in a 32-bit word, groups in the order of `g_idx`. Bytes: docs/formats/gptq.md.
#include <algorithm>

#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kZeros, kScales };

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t per_word = 32 / settings.bits, groups = settings.group == 0 ? 1 : (inputs + settings.group - 1) / settings.group;
  if (inputs % per_word != 0 || outputs % per_word != 0)
    return fail(Code::kUnsupported, "GPTQ with {} bits holds {} inputs and {} outputs in a word; a matrix [{}, {}] does not divide", settings.bits, per_word, per_word, outputs, inputs);
  return std::vector<FormTensor>{
      by_inputs(per_word, {"qweight", {DType::kI32, DType::kU32}, {inputs / per_word, outputs}, Reach::kColumns}),
      by_inputs(settings.group, {"qzeros", {DType::kI32, DType::kU32}, {groups, outputs / per_word}, Reach::kColumns, per_word, !settings.offsets}),
      by_inputs(settings.group, {"scales", {DType::kF16, DType::kBF16, DType::kF32}, {groups, outputs}, Reach::kColumns}),
      {"g_idx", {DType::kI32}, {inputs}, Reach::kWhole, 1, !settings.ordered}};
}

Result<void> take_apart(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  const int bits = settings.bits;
  const std::int64_t per_word = 32 / bits, words = parts.inputs / per_word;
  TRY(read_scales(bytes[kScales], Reach::kColumns, 1, first, parts));

  if (const FormBytes& zeros = bytes[kZeros]; zeros.data) {
    // The bias is added to whole words: a zero point of 0, stored as -1, borrowed from its neighbours.
    const std::uint32_t bias = static_cast<std::uint32_t>(settings.zero_bias) * (bits == 4 ? 0x11111111u : 0x01010101u);
    for (std::int64_t g = 0; g < parts.groups(); ++g)
      for (int r = 0; r < parts.rows; ++r) {
        const std::int64_t at = first + r - zeros.origin;
        const std::uint32_t word = word_at(zeros.data + g * zeros.stride + at / per_word * 4) + bias;
        TRY(set_zero(code_in(word, at % per_word, bits), first, r, g, "\"sym\": true", parts));
      }
  }

  // Words of neighbouring outputs share cache lines: some inputs of every row before the next inputs.
  const FormBytes& codes = bytes[kCodes];
  std::vector<std::uint8_t> scratch(parts.order ? static_cast<std::size_t>(parts.rows * parts.inputs) : 0);
  std::uint8_t* natural = parts.order ? scratch.data() : parts.codes;
  constexpr std::int64_t kBlock = 32;
  for (std::int64_t block = 0; block < words; block += kBlock)
    for (int r = 0; r < parts.rows; ++r) {
      std::uint8_t* row = natural + r * parts.inputs;
      const std::byte* from = codes.data + (first + r - codes.origin) * 4;
      for (std::int64_t i = block; i < std::min(block + kBlock, words); ++i) {
        const std::uint32_t word = word_at(from + i * codes.stride);
        if (bits == 4) {
          const std::uint64_t spread = spread_nibbles(word);
          std::memcpy(row + i * 8, &spread, 8);
        } else {
          std::memcpy(row + i * 4, &word, 4);
        }
      }
    }
  for (int r = 0; r < parts.rows; ++r) put_codes(natural + r * parts.inputs, r, parts);
  return {};
}

}  // namespace

const StoredForm& gptq_form() {
  static constexpr StoredForm kForm = {.name = "GPTQ", .tensors = tensors, .take_apart = take_apart};
  return kForm;
}

}  // namespace inflight::quant
