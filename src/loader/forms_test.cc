// Which bytes of a stored form are read for some outputs and inputs of a matrix.
#include "loader/forms.h"

#include <gtest/gtest.h>

namespace inflight::loader {
namespace {

using checkpoint::TensorInfo;
using quant::CodeKind;
using quant::FormSettings;

constexpr std::int64_t kOutputs = 256, kInputs = 4096;

struct Stored {
  std::string name;
  const quant::StoredForm* form;
  FormSettings settings;
};

std::vector<Stored> all_forms() {
  return {{"gptq", &quant::gptq_form(), {.bits = 4, .group = 128, .offsets = true}},
          {"gptq, 8 bits", &quant::gptq_form(), {.kind = CodeKind::kU8, .bits = 8}},
          {"awq", &quant::awq_form(), {.bits = 4, .group = 64, .offsets = true}},
          {"compressed-tensors", &quant::compressed_form(), {.bits = 4, .group = 32, .offsets = true}},
          {"compressed-tensors, int8", &quant::compressed_form(), {.kind = CodeKind::kU8, .bits = 8, .packed = false}},
          {"fp8 blocks", &quant::fp8_form(), {.kind = CodeKind::kE4M3, .bits = 8, .group = 128, .group_rows = 128}},
          {"paddle int8", &quant::paddle_form(), {.kind = CodeKind::kU8, .bits = 8, .interleaved = true}},
          {"paddle int4", &quant::paddle_form(), {.bits = 4, .interleaved = true}},
          {"paddle int4, a row an output", &quant::paddle_form(), {.bits = 4}},
          {"paddle fp8", &quant::paddle_fp8_form(), {.kind = CodeKind::kE4M3, .bits = 8, .group_rows = 1}},
          {"gguf", &quant::gguf_form(), quant::gguf_settings(DType::kQ4_K)}};
}

struct Matrix {
  FormSource source;
  std::vector<TensorInfo> infos;
  std::int64_t bytes = 0;
};

Matrix matrix_of(const Stored& stored) {
  Matrix matrix{.source = {.base = stored.name, .form = stored.form, .settings = stored.settings, .outputs = kOutputs, .inputs = kInputs}};
  matrix.source.tensors = stored.form->tensors(stored.settings, kOutputs, kInputs).value();
  for (const quant::FormTensor& tensor : matrix.source.tensors) {
    const bool present = !tensor.optional;
    matrix.source.places.push_back(present ? 0 : -1);
    TensorInfo info{.name = tensor.suffix, .dtype = tensor.dtypes[0], .shape = tensor.shape};
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < info.shape.size(); ++d) rows *= info.shape[d];
    info.end = rows * row_bytes(info.dtype, info.shape.back());
    if (present) matrix.bytes += info.bytes();
    matrix.infos.push_back(info);
  }
  return matrix;
}

std::int64_t bytes_of(const Matrix& matrix, const FormArea& area) {
  std::int64_t bytes = 0;
  for (std::size_t t = 0; t < matrix.infos.size(); ++t)
    if (matrix.source.places[t] >= 0) bytes += form_lines(matrix.source, t, matrix.infos[t], area).total();
  return bytes;
}

TEST(FormLines, ranks_together_read_hardly_more_than_the_tensors) {
  for (const Stored& stored : all_forms())
    for (const std::int64_t ranks : {2, 4, 8}) {
      const Matrix matrix = matrix_of(stored);
      std::int64_t by_outputs = 0, by_inputs = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        by_outputs += bytes_of(matrix, {rank * kOutputs / ranks, kOutputs / ranks, {0, kInputs}});
        by_inputs += bytes_of(matrix, {0, kOutputs, whole_units(matrix.source, {rank * kInputs / ranks, (rank + 1) * kInputs / ranks}, 1)});
      }
      EXPECT_GE(by_outputs, matrix.bytes) << stored.name;
      EXPECT_GE(by_inputs, matrix.bytes) << stored.name;
      EXPECT_LE(static_cast<double>(by_outputs), 1.05 * static_cast<double>(matrix.bytes)) << stored.name << ", " << ranks << " ranks";
      EXPECT_LE(static_cast<double>(by_inputs), 1.05 * static_cast<double>(matrix.bytes)) << stored.name << ", " << ranks << " ranks";
    }
}

TEST(FormLines, inputs_inside_a_group_or_block_bring_all_of_it) {
  const auto range = [](const Stored& stored, std::int64_t begin, std::int64_t end, std::int64_t step) {
    const InputRange whole = whole_units(matrix_of(stored).source, {begin, end}, step);
    return std::pair(whole.begin, whole.end);
  };
  const std::vector<Stored> forms = all_forms();
  EXPECT_EQ(range(forms[0], 200, 300, 1), std::pair(std::int64_t{128}, std::int64_t{384}));    // groups of 128
  EXPECT_EQ(range(forms[1], 201, 303, 1), std::pair(std::int64_t{200}, std::int64_t{304}));    // words of 4
  EXPECT_EQ(range(forms[6], 100, 4090, 1), std::pair(std::int64_t{64}, std::int64_t{4096}));   // tiles of 64
  EXPECT_EQ(range(forms[6], 100, 4090, 96), std::pair(std::int64_t{0}, std::int64_t{4096}));   // and a format's groups of 96
  EXPECT_EQ(range(forms[10], 300, 500, 1), std::pair(std::int64_t{256}, std::int64_t{512}));   // blocks of 256
}

TEST(KeepInputs, leaves_a_run_of_groups) {
  std::vector<std::uint8_t> codes;
  for (int i = 0; i < 2 * 40; ++i) codes.push_back(static_cast<std::uint8_t>(i));
  std::vector<float> scales, offsets;
  for (int i = 0; i < 2 * 5; ++i) scales.push_back(static_cast<float>(i)), offsets.push_back(static_cast<float>(-i));
  quant::RowParts parts{.kind = CodeKind::kU8, .rows = 2, .inputs = 40, .group = 8, .codes = codes.data(), .scales = scales.data(), .offsets = offsets.data(), .first_input = 80};
  keep_inputs(parts, 16, 18, 3);
  EXPECT_EQ(parts.inputs, 18);
  EXPECT_EQ(parts.first_input, 96);
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < 18; ++k) EXPECT_EQ(parts.codes[r * 18 + k], k < 3 ? 128 : r * 40 + 16 + k);
    for (int g = 0; g < 3; ++g) {
      EXPECT_EQ(parts.scales[r * 3 + g], static_cast<float>(r * 5 + 2 + g));
      EXPECT_EQ(parts.offsets[r * 3 + g], static_cast<float>(-(r * 5 + 2 + g)));
    }
  }
}

}  // namespace
}  // namespace inflight::loader
