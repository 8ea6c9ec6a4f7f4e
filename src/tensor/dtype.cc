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
}  // namespace

int dtype_bits(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.bits;
  return 0;
}

std::string_view dtype_name(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.name;
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace inflight
