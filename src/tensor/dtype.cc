#include "tensor/dtype.h"

#include <array>

namespace inflight {
namespace {
struct Row {
  DType dtype;
  int bits;
  std::string_view name;
};
constexpr std::array kRows = {
    Row{DType::kF64, 64, "F64"},       Row{DType::kF32, 32, "F32"},       Row{DType::kF16, 16, "F16"},
    Row{DType::kBF16, 16, "BF16"},     Row{DType::kF8E4M3, 8, "F8_E4M3"}, Row{DType::kF8E5M2, 8, "F8_E5M2"},
    Row{DType::kF8E8M0, 8, "F8_E8M0"}, Row{DType::kI64, 64, "I64"},       Row{DType::kI32, 32, "I32"},
    Row{DType::kI16, 16, "I16"},       Row{DType::kI8, 8, "I8"},          Row{DType::kU64, 64, "U64"},
    Row{DType::kU32, 32, "U32"},       Row{DType::kU16, 16, "U16"},       Row{DType::kU8, 8, "U8"},
    Row{DType::kBool, 8, "BOOL"},      Row{DType::kF4, 4, "F4"},
};

struct BlockRow {
  DType dtype;
  int elements, bytes;
  std::string_view name;
};
constexpr std::array kBlockRows = {
    BlockRow{DType::kQ4_0, 32, 18, "Q4_0"}, BlockRow{DType::kQ4_1, 32, 20, "Q4_1"},  BlockRow{DType::kQ5_0, 32, 22, "Q5_0"},   BlockRow{DType::kQ5_1, 32, 24, "Q5_1"},
    BlockRow{DType::kQ8_0, 32, 34, "Q8_0"}, BlockRow{DType::kQ2_K, 256, 84, "Q2_K"}, BlockRow{DType::kQ3_K, 256, 110, "Q3_K"}, BlockRow{DType::kQ4_K, 256, 144, "Q4_K"},
    BlockRow{DType::kQ5_K, 256, 176, "Q5_K"}, BlockRow{DType::kQ6_K, 256, 210, "Q6_K"},
};

const BlockRow* block_row(DType dtype) {
  for (const BlockRow& row : kBlockRows)
    if (row.dtype == dtype) return &row;
  return nullptr;
}
}  // namespace

int dtype_bits(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.bits;
  return 0;
}

std::string_view dtype_name(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.name;
  const BlockRow* block = block_row(dtype);
  return block ? block->name : "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

int block_elements(DType dtype) {
  const BlockRow* block = block_row(dtype);
  return block ? block->elements : 1;
}

int block_bytes(DType dtype) {
  const BlockRow* block = block_row(dtype);
  return block ? block->bytes : dtype_bits(dtype) / 8;
}

std::int64_t row_bytes(DType dtype, std::int64_t elements) {
  const BlockRow* block = block_row(dtype);
  return block ? elements / block->elements * block->bytes : elements * dtype_bits(dtype) / 8;
}

}  // namespace inflight
