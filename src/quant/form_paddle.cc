// PaddlePaddle's weight-only int8 and int4, in the byte order of its GPU kernels. Bytes: docs/formats/paddle-weight-only.md.
#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kScale };

constexpr std::int64_t kTile = 64;  // inputs of one output that lie together

// Two outputs (int4: four) share two rows of the file: their tiles alternate.
std::int64_t interleaved(const FormSettings& settings) { return settings.bits == 8 ? 2 : 4; }

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t unit = interleaved(settings);
  if (inputs % kTile != 0 || outputs % unit != 0)
    return fail(Code::kUnsupported, "PaddlePaddle's byte order needs a multiple of {} inputs and of {} outputs; the matrix is [{}, {}]", kTile, unit, outputs, inputs);
  FormTensor codes{"quant_weight", {DType::kI8}, {settings.bits == 8 ? outputs : outputs / 2, inputs}, Reach::kRows, unit};
  codes.rows = 2;
  return std::vector<FormTensor>{std::move(codes), {"weight_scale", {DType::kBF16, DType::kF16, DType::kF32}, {outputs, 1}}};
}

// int8: byte p of 16 is input p / 2, those of odd p 8 further.
void take_bytes(const std::uint8_t* tile, std::uint8_t* codes) {
  for (int p = 0; p < kTile; ++p) codes[p / 16 * 16 + p % 16 / 2 + p % 2 * 8] = tile[p];
}

// int4: byte j of 32 has inputs 2j and 2j + 1 before two orders: bytes within 16, then nibbles within 4 bytes.
void take_nibbles(const std::uint8_t* tile, std::uint8_t* codes) {
  for (int p = 0; p < kTile / 2; ++p) {
    const int j = p / 16 * 16 + p % 2 * 8 + p / 2 % 2 * 4 + p % 16 / 4, from = p / 4 * 4 + p % 2, shift = p % 4 > 1 ? 4 : 0;
    codes[2 * j] = static_cast<std::uint8_t>(tile[from] >> shift & 15);
    codes[2 * j + 1] = static_cast<std::uint8_t>(tile[from + 2] >> shift & 15);
  }
}

Result<void> take_apart(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts) {
  TRY(read_scales(bytes[kScale], Reach::kRows, 1, first, parts));
  const FormBytes& codes = bytes[kCodes];
  const std::int64_t unit = interleaved(settings), width = settings.bits == 8 ? kTile : kTile / 2;  // bytes of a tile
  for (int r = 0; r < parts.rows; ++r) {
    const std::int64_t output = first + r;
    const std::byte* block = codes.data + (output - codes.origin) / unit * 2 * codes.stride;
    for (std::int64_t k = 0; k < parts.inputs; k += kTile) {
      const std::int64_t at = (k / kTile * unit + output % unit) * width;  // of the 2 * inputs bytes of the block
      const auto* tile = reinterpret_cast<const std::uint8_t*>(block + at / parts.inputs * codes.stride + at % parts.inputs);
      if (settings.bits == 8) take_bytes(tile, parts.codes + r * parts.inputs + k);
      else take_nibbles(tile, parts.codes + r * parts.inputs + k);
    }
  }
  return {};
}

}  // namespace

const StoredForm& paddle_form() {
  static constexpr StoredForm kForm = {.name = "PaddlePaddle weight-only", .tensors = tensors, .take_apart = take_apart};
  return kForm;
}

}  // namespace inflight::quant
