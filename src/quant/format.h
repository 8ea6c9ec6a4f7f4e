// A weight format: what the numbers are, how rows of a checkpoint tensor become packed memory, how they are stored in a
// converted folder and read back. A new format is one file and one line in registry.cc.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"

namespace inflight::quant {

struct Matrix;
struct RowParts;

// The part of the kernels' vocabulary that loading speaks: rows of a checkpoint tensor, the table, the panel height.
using kernels::Kernels;
using kernels::kPanelRows;
using kernels::SourceRows;

// How codes lie in a packed panel (kernels.h); the products are chosen by it.
enum class Codes { kF32, kBf16, kU8, kU4, kLut4, kE4M3 };

// A tensor that a converted folder holds for one piece of a parameter, besides or instead of "<base>.weight".
struct StoredTensor {
  std::string suffix;               // "weight_packed": the tensor is "<base>.weight_packed"
  DType dtype;
  std::vector<std::int64_t> shape;  // for the whole piece
  std::int64_t row_bytes;           // bytes of one output row; 0: not per row (written and checked whole)
};

// Memory of a packed matrix [outputs, inputs], both rounded up to whole panels.
struct PackedBytes {
  std::int64_t codes = 0;
  std::int64_t scales = 0;
  std::int64_t offsets = 0;
};

// Of formats whose scales cover several rows of a checkpoint's matrix: these are seen twice, first for their magnitude, then to be stored.
struct SharedScales {
  std::int64_t rows = 0;    // that share scales, counted from the matrix's first; 0: all
  std::int64_t inputs = 0;  // that share a scale; 0: all
  std::int64_t groups(std::int64_t all_inputs) const { return inputs == 0 ? 1 : (all_inputs + inputs - 1) / inputs; }
  // out [rows][groups]: the largest magnitude of every group. Returns as Format::store.
  std::int64_t (*absmax)(const Kernels& kernels, const SourceRows& source, float* out) = nullptr;
  // Sets the scales of outputs [row_begin, row_end) from the magnitudes [groups] over all of them. Then store() may take these rows.
  void (*set)(Matrix& matrix, std::int64_t row_begin, std::int64_t row_end, std::span<const float> absmax) = nullptr;
};

// Everything a format is. All functions are non-null; `Matrix` is the destination, whole panels of 16 rows.
struct Format {
  std::string_view name;      // what --quantization says
  std::string_view summary;   // one line for --help
  std::int64_t group = 0;     // inputs a scale of Weight covers; 0: per output channel, no scale, or scales of its own form (wlut4)
  Codes codes = Codes::kBf16;
  bool quantized() const { return codes != Codes::kF32 && codes != Codes::kBf16; }  // false: keeps the checkpoint's numbers
  bool exact_scales = false;  // numbers of another tool: group scales are FP16 only where that rounds none of them
  std::int64_t scale_rows() const { return shared ? shared->rows : 1; }           // rows of a checkpoint's matrix that share a scale; 0: all
  std::int64_t scale_inputs() const { return shared ? shared->inputs : group; }    // inputs that share a scale; 0: all
  std::int64_t lead_step() const;                                                // a slice of the inputs that begins at a multiple of it needs no lead (Matrix::lead)
  std::uint8_t zero_byte() const { return codes == Codes::kU8 ? 0x80 : codes == Codes::kU4 || codes == Codes::kLut4 ? 0x88 : 0; }  // every byte of an all-zero panel

  PackedBytes (*bytes)(std::int64_t outputs, std::int64_t inputs, std::int64_t group);
  // Quantizes (or copies) rows into the matrix, starting at output `row`; at most to the end of its panel (so 1..16 rows).
  // Returns -1, or row * inputs + k of the first NaN or infinity.
  std::int64_t (*store)(const Kernels& kernels, const SourceRows& source, std::int64_t row, Matrix& matrix);
  // The same where a scale's numbers lie on several ranks. absmax [rows][groups of scale_inputs()]: the largest magnitudes over all of them. `source` begins with the
  // matrix's lead; of formats with whole_groups, that and up to a whole group at the end are the neighbours' numbers: they count where codes are chosen, and then
  // are zeros. nullptr: what is stored has no such scales, or they are shared.
  std::int64_t (*store_part)(const Kernels& kernels, const SourceRows& source, const float* absmax, std::int64_t row, Matrix& matrix) = nullptr;
  std::int64_t whole_groups = 0;  // inputs that choose their codes together, by more than their largest magnitude; 0: there are none
  // Dequantizes one output row into [inputs] f32, as kernels' FP32 arithmetic sees it: q * scale.
  void (*dequantize)(const Matrix& matrix, std::int64_t row, float* out);
  // The tensors of a converted folder for one piece [rows, inputs]. scales_fp32: the group scales of this matrix did not fit FP16.
  std::vector<StoredTensor> (*stored)(std::int64_t rows, std::int64_t inputs, std::int64_t group, bool scales_fp32);
  // Copies rows between packed memory and the bytes of stored tensor `tensor` (index into stored()), one row at a time.
  void (*export_row)(const Matrix& matrix, std::int64_t row, std::size_t tensor, void* bytes);
  // An error when the bytes hold what this format cannot (a code out of range, a non-finite scale).
  Result<void> (*import_row)(Matrix& matrix, std::int64_t row, std::size_t tensor, DType dtype, const void* bytes);
  bool half_scales = false;  // import_row() takes FP16 group scales straight to their place where begin() was told that all are stored so
  // The same for 1 to 16 rows of tensor 0 in one panel, by kernels. false: something is odd, and import_row() will say what. nullptr: there is no such road.
  bool (*import_codes)(const Kernels& kernels, Matrix& matrix, std::int64_t row, int rows, const void* bytes, std::int64_t stride_bytes) = nullptr;
  const SharedScales* shared = nullptr;  // nullptr: a row's scales follow from the row alone
  // Packs rows that another tool quantized (stored_form.h) from output `row` on, within one panel. nullptr: this format keeps no such numbers.
  void (*import_parts)(const Kernels& kernels, const RowParts& parts, std::int64_t row, Matrix& matrix) = nullptr;
};

inline std::int64_t Format::lead_step() const {
  if (whole_groups != 0) return whole_groups;
  if (scale_inputs() != 0) return scale_inputs();
  return codes == Codes::kU4 ? 8 : 1;  // 4-bit codes lie eight in a word
}

// The format of that name, formats() and forms() alike; an error lists those that a user may ask for and the nearest.
Result<const Format*> find_format(std::string_view name);
// Formats a user may ask for, in the order of --help.
std::span<const Format* const> formats();
// Formats that keep what other tools quantized: a converted folder may name them, nothing is quantized to them in flight.
std::span<const Format* const> forms();

const Format& bf16_format();  // BF16 as stored
const Format& f32_format();   // F32 and F16 checkpoints: FP32, never squeezed

}  // namespace inflight::quant
