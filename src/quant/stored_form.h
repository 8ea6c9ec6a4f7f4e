// Checkpoints that other tools have quantized: in which tensors a matrix W [outputs, inputs] lies, and how rows of it are taken apart.
// A form is one file that fills a StoredForm, and one line in stored_forms.cc. It knows bytes, not how they are read or what becomes of them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace inflight::quant {

struct Format;

// What a code means. kU4: 0..15, zero 8. kU8: 0..255, zero 128. kE4M3: the bits of an OCP FP8 number.
enum class CodeKind { kU4, kU8, kE4M3 };

// Some rows taken apart, inputs in the order `order` where there is one, else as they are.
//   kU4, kU8:  w = scale * (code - zero) + offset, each FP32;   kE4M3: w = scale * value(code)
struct RowParts {
  CodeKind kind = CodeKind::kU4;
  int rows = 0;                        // 1..16
  std::int64_t inputs = 0;
  std::int64_t group = 0;              // inputs that a scale covers, in order; 0: all of the row
  std::uint8_t* codes = nullptr;       // [rows][inputs], one a byte
  float* scales = nullptr;             // [rows][groups]
  float* offsets = nullptr;            // [rows][groups]; nullptr: none
  const std::int32_t* order = nullptr; // [inputs]: codes[r][j] belongs to input order[j]
  std::int64_t first_input = 0;        // the rows begin with this input of the matrix, a multiple of what shares a scale or an element of any tensor (0 with an order)
  std::int64_t matrix_inputs = 0;      // of whole rows; 0: as many as `inputs`
  std::int64_t groups() const { return group == 0 ? 1 : (inputs + group - 1) / group; }
};

// Inputs sorted by group, where the groups of a matrix are not consecutive inputs; nullptr: they are.
using InputOrder = std::shared_ptr<const std::vector<std::int32_t>>;

// What is known of one matrix before its numbers are read: from config.json, and from tensors that say how others are to be read.
struct FormSettings {
  CodeKind kind = CodeKind::kU4;
  int bits = 4;
  std::int64_t group = 0;          // inputs that a scale covers; 0: all of the row
  std::int64_t group_rows = 1;     // outputs that a scale covers (128 for block-wise FP8; 0: all of the matrix)
  bool offsets = false;            // zero points or minima
  int zero_bias = 0;               // added to a stored zero point (GPTQ's first version stores it less one)
  bool interleaved = false;        // Paddle: the published byte order; else row-major
  bool by_input = false;           // Paddle, row-major: a row of the file is one input (int4: two), not one output
  bool packed = true;              // compressed-tensors: codes lie in 32-bit words, not one a byte
  bool packed_zeros = true;        // the same of zero points beside packed codes
  bool ordered = false;            // a tensor that sorts inputs into groups must be there
  DType block = DType::kU8;        // GGUF: the block type
  InputOrder order;
};

// How a tensor of a form lies along the outputs.
enum class Reach {
  kRows,     // a row of the file belongs to `unit` outputs
  kColumns,  // a row of the file holds all outputs, each element `unit` of them
  kWhole,    // says something of all outputs
};

struct FormTensor {
  std::string suffix;               // the tensor is "<base>.<suffix>"
  std::vector<DType> dtypes;        // accepted
  std::vector<std::int64_t> shape;
  Reach reach = Reach::kRows;
  std::int64_t unit = 1;
  bool optional = false;            // read where it exists
  std::int64_t rows = 1;            // kRows: of the file, that `unit` outputs share; they lie one after the other
  std::int64_t input_unit = 0;      // inputs that share an element (kColumns: a row of the file); 0: the tensor says the same of all inputs
};

// Bytes of one tensor for some outputs and inputs, from RowParts::first_input on. Row `i` of the file (of several that outputs share: row i of these, `rows` as one),
// counted from the one that holds output `origin`, begins at data + i * stride.
struct FormBytes {
  const std::byte* data = nullptr;  // nullptr: an optional tensor that is not there. No alignment promised
  std::int64_t stride = 0;
  std::int64_t origin = 0;          // the first output that the bytes hold; a multiple of `unit`
  DType dtype = DType::kU8;
};

// The tensor "<base>.<suffix>" as the file declares it; nullopt: it is not there.
struct SeenTensor {
  DType dtype;
  std::vector<std::int64_t> shape;
};
using TensorsSeen = std::function<std::optional<SeenTensor>(std::string_view suffix)>;

struct StoredForm {
  std::string_view name;            // in messages and tables: "GPTQ"
  // The tensors of a matrix; the first holds the codes. An error where the sizes do not suit the form.
  Result<std::vector<FormTensor>> (*tensors)(const FormSettings& settings, std::int64_t outputs, std::int64_t inputs);
  // Fills `parts` (its arrays are there, everything else is set) with outputs [first, first + parts.rows) of the matrix [outputs, inputs].
  // `bytes` is in the order of tensors(). An error says which row and column hold what cannot be.
  Result<void> (*take_apart)(const FormSettings& settings, std::span<const FormBytes> bytes, std::int64_t first, RowParts& parts);
  // Before tensors(): completes settings by what config.json leaves to types and shapes. nullptr: it leaves nothing. An error where none of the variants fits.
  Result<void> (*look)(FormSettings& settings, std::int64_t outputs, std::int64_t inputs, const TensorsSeen& seen) = nullptr;
};

// out [rows][inputs], inputs in their natural order: the numbers that the parts mean, rounded to FP32 once (fma(scale, code - zero, offset)).
void dequantize_parts(const RowParts& parts, float* out);

// A format that keeps such parts as they are, or nullptr: then a matrix is FP32.
const Format* native_format(CodeKind kind, std::int64_t group, bool offsets);

}  // namespace inflight::quant
