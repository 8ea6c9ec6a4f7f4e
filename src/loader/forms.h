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

// The inputs around [begin, end) that can be read alone: no element of any tensor, no group and no block is cut. `begin` is a multiple of `step` too.
struct InputRange {
  std::int64_t begin = 0, end = 0;
};
InputRange whole_units(const FormSource& source, InputRange inputs, std::int64_t step);

// Some outputs of a matrix, and of these some inputs: whole_units().
struct FormArea {
  std::int64_t first = 0, count = 0;
  InputRange inputs;
};

// The bytes of tensor `t` that say something of an area: of lines [begin, end) of the file, `bytes` of each from `offset` on.
struct FormLines {
  std::int64_t begin = 0, end = 0;
  std::int64_t line_bytes = 0;
  std::int64_t offset = 0, bytes = 0;
  std::int64_t origin = 0;          // FormBytes::origin
  std::int64_t total() const { return (end - begin) * bytes; }
  bool whole() const { return bytes == line_bytes; }
};
FormLines form_lines(const FormSource& source, std::size_t t, const checkpoint::TensorInfo& info, const FormArea& area);

// Reads them into `buffer` [total()], which the result points into. `file` must not be O_DIRECT.
Result<quant::FormBytes> read_form(const InputFile& file, const checkpoint::TensorInfo& info, const FormLines& lines, std::byte* buffer);

// The same where the whole tensor is in memory.
quant::FormBytes form_view(const checkpoint::TensorInfo& info, const FormLines& lines, const std::byte* whole);

// Rows of a form on their way: taken apart, and where no format of ours keeps the parts, as FP32 numbers. 16 rows of a matrix at a time.
class FormScratch {
 public:
  explicit FormScratch(const FormSource& source);
  quant::RowParts parts(const FormSource& source, int rows, InputRange inputs);
  float* numbers() { return numbers_.data(); }  // [16][inputs]

 private:
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_, offsets_, numbers_;
};
std::int64_t form_scratch_bytes(const FormSource& source);

// Leaves `inputs` inputs of the parts, from input `skip` on, where a group begins; the first `lead` of these become zeros.
void keep_inputs(quant::RowParts& parts, std::int64_t skip, std::int64_t inputs, std::int64_t lead);

}  // namespace inflight::loader
