// Which matrices of a checkpoint lie in a stored form of another tool (quant/stored_form.h), in which tensors, and how bytes of those are read.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "quant/format.h"
#include "quant/stored_form.h"
#include "quant/stored_forms.h"

namespace inflight::loader {

// One matrix: all outputs of "<base>.weight", which pieces of several parameters may share.
struct FormSource {
  std::string base;
  const quant::StoredForm* form = nullptr;
  quant::FormSettings settings;
  std::int64_t outputs = 0, inputs = 0;
  std::vector<quant::FormTensor> tensors;  // the first holds the codes
  std::vector<int> places;                 // of each: index into Checkpoint::tensors(), or -1 where it is not there
};

// Whether a parameter of that format keeps the form's codes and scales as they are.
bool keeps(const FormSource& source, const quant::Format& format);

class Forms {
 public:
  // Errors are those of config.json's quantization_config: an unknown or unsupported method, or one that contradicts itself.
  static Result<Forms> of(const checkpoint::Checkpoint& checkpoint);
  // Whether a model may count on the tensor: it is there, or the matrix that it would hold is there in a stored form.
  bool has(std::string_view tensor) const;
  // The form of the matrix "<base>.weight" [outputs, inputs], places filled in; nullopt: its numbers are plain, or not there at all.
  Result<std::optional<FormSource>> find(std::string_view weight, std::int64_t outputs, std::int64_t inputs) const;

 private:
  explicit Forms(const checkpoint::Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}
  const checkpoint::Checkpoint* checkpoint_;
  std::optional<quant::FormConfig> config_;
};

// The rows of the file (kRows) or columns of its rows (kColumns) that say something of outputs [first, first + count).
struct FormRange {
  std::int64_t begin = 0, end = 0;  // rows, or elements of each row
  std::int64_t origin = 0;          // the first output they cover
};
FormRange form_range(const quant::FormTensor& tensor, std::int64_t first, std::int64_t count);

// Bytes of a buffer for that, without alignment.
std::int64_t form_bytes(const checkpoint::TensorInfo& info, const quant::FormTensor& tensor, std::int64_t first, std::int64_t count);

// Reads them into `buffer`, which the result points into. `file` must not be O_DIRECT.
Result<quant::FormBytes> read_form(const InputFile& file, const checkpoint::TensorInfo& info, const quant::FormTensor& tensor, std::int64_t first, std::int64_t count, std::byte* buffer);

// The same where the whole tensor is in memory.
quant::FormBytes form_view(const checkpoint::TensorInfo& info, const quant::FormTensor& tensor, std::int64_t first, const std::byte* whole);

// Rows of a form on their way: taken apart, and where no format of ours keeps the parts, as FP32 numbers. 16 rows of a matrix at a time.
class FormScratch {
 public:
  explicit FormScratch(const FormSource& source);
  quant::RowParts parts(const FormSource& source, int rows);
  float* numbers() { return numbers_.data(); }  // [16][inputs]

 private:
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_, offsets_, numbers_;
};
std::int64_t form_scratch_bytes(const FormSource& source);

}  // namespace inflight::loader
