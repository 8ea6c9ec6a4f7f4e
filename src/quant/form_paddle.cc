// PaddlePaddle's weight-only int8 and int4, in the byte order of its GPU kernels or row-major. Bytes: docs/formats/paddle-weight-only.md.
#include <fmt/format.h>

#include "quant/form_bytes.h"
#include "quant/stored_forms.h"

namespace inflight::quant {
namespace {

enum Tensors { kCodes, kScale };

constexpr std::int64_t kTile = 64;  // inputs of one output that lie together

// Two outputs (int4: four) share two rows of the file: their tiles alternate.
std::int64_t interleaved(const FormSettings& settings) { return settings.bits == 8 ? 2 : 4; }

const std::vector<DType> kScaleTypes = {DType::kBF16, DType::kF16, DType::kF32};

// Row-major: codes of two's complement, int4 in pairs of inputs, the even one in the low nibble.
Result<void> look(FormSettings& settings, std::int64_t outputs, std::int64_t inputs, const TensorsSeen& seen) {
  const auto codes = seen("quant_weight");
  if (settings.interleaved || !codes) return {};
  const std::int64_t bytes = inputs * settings.bits / 8;
  const bool by_output = codes->shape == std::vector{outputs, bytes};
  settings.by_input = !by_output && codes->shape == std::vector{bytes, outputs};
  if (by_output || settings.by_input) return {};
  std::string shape;
  for (const std::int64_t side : codes->shape) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", side);
  return fail(Code::kCorrupt, "quant_weight has shape [{}]; with \"is_permuted\": false expected [{}, {}] (a row an output) or [{}, {}] (a row {})", shape, outputs, bytes, bytes, outputs,
              settings.bits == 8 ? "an input" : "two inputs");
}

Result<std::vector<FormTensor>> row_major_tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  if (settings.bits == 4 && inputs % 2 != 0) return fail(Code::kUnsupported, "int4 holds two inputs in a byte; the matrix [{}, {}] has an odd number of inputs", outputs, inputs);
  const std::int64_t bytes = inputs * settings.bits / 8;
  FormTensor codes{"quant_weight", {DType::kI8}, {outputs, bytes}};
  if (settings.by_input) codes = {"quant_weight", {DType::kI8}, {bytes, outputs}, Reach::kColumns};
  return std::vector<FormTensor>{by_inputs(settings.bits == 8 ? 1 : 2, std::move(codes)), {"weight_scale", kScaleTypes, {outputs, 1}}};
}

void take_row_major(const FormSettings& settings, const FormBytes& codes, std::int64_t first, RowParts& parts) {
  const bool wide = settings.bits == 8;
  const std::int64_t bytes = parts.inputs * settings.bits / 8;
  const auto put = [&](int r, std::int64_t i, std::byte byte) {
    const auto bits = static_cast<std::uint8_t>(byte);
    std::uint8_t* row = parts.codes + r * parts.inputs;
    if (wide) {
      row[i] = bits ^ 0x80;
      return;
    }
    row[2 * i] = (bits & 15) ^ 8;
    row[2 * i + 1] = static_cast<std::uint8_t>(bits >> 4) ^ 8;
  };
  if (settings.by_input) {
    for (std::int64_t i = 0; i < bytes; ++i)
      for (int r = 0; r < parts.rows; ++r) put(r, i, codes.data[i * codes.stride + first + r - codes.origin]);
    return;
  }
  for (int r = 0; r < parts.rows; ++r) {
    const std::byte* row = row_of(codes, first + r);
    for (std::int64_t i = 0; i < bytes; ++i) put(r, i, row[i]);
  }
}

Result<std::vector<FormTensor>> tensors(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs) {
  if (!settings.interleaved) return row_major_tensors(settings, outputs, inputs);
  const std::int64_t unit = interleaved(settings);
  if (inputs % kTile != 0 || outputs % unit != 0)
    return fail(Code::kUnsupported, "PaddlePaddle's byte order needs a multiple of {} inputs and of {} outputs; the matrix is [{}, {}]", kTile, unit, outputs, inputs);
  FormTensor codes{"quant_weight", {DType::kI8}, {settings.bits == 8 ? outputs : outputs / 2, inputs}, Reach::kRows, unit};
  codes.rows = 2;
  return std::vector<FormTensor>{by_inputs(kTile, std::move(codes)), {"weight_scale", kScaleTypes, {outputs, 1}}};
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
  if (!settings.interleaved) {
    take_row_major(settings, codes, first, parts);
    return {};
  }
  const std::int64_t unit = interleaved(settings), width = settings.bits == 8 ? kTile : kTile / 2;  // bytes of a tile
  for (int r = 0; r < parts.rows; ++r) {
    const std::int64_t output = first + r;
    const std::byte* block = row_of(codes, output, unit);  // both rows as one
    for (std::int64_t k = 0; k < parts.inputs; k += kTile) {
      const auto* tile = reinterpret_cast<const std::uint8_t*>(block + (k / kTile * unit + output % unit) * width);
      if (settings.bits == 8) take_bytes(tile, parts.codes + r * parts.inputs + k);
      else take_nibbles(tile, parts.codes + r * parts.inputs + k);
    }
  }
  return {};
}

}  // namespace

const StoredForm& paddle_form() {
  static constexpr StoredForm kForm = {.name = "PaddlePaddle weight-only", .tensors = tensors, .take_apart = take_apart, .look = look};
  return kForm;
}

}  // namespace inflight::quant
