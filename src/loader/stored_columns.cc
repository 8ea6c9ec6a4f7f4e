#include "loader/stored_columns.h"

#include <cstring>

namespace inflight::loader {

StoredColumns stored_columns(const quant::Slot& slot, const Route& route, DType dtype) {
  const quant::Format& format = *slot.format;
  const auto t = static_cast<std::size_t>(route.stored);
  const bool wide = dtype == DType::kF32;
  const auto of = [&](std::int64_t inputs) { return format.stored(1, inputs, format.group, wide)[t]; };
  const quant::StoredTensor whole = of(route.inputs);
  StoredColumns columns{.end = whole.row_bytes};
  if ((slot.inputs == route.inputs && slot.lead == 0) || (t != 0 && whole.shape[1] == 1)) return columns;  // a scale of all inputs
  const std::int64_t first = route.slice.col_begin - slot.lead;  // a multiple of what shares a scale or a word
  if (first != 0) columns.begin = of(first).row_bytes;
  columns.end = columns.begin + of(slot.inputs).row_bytes;
  if (t != 0) return columns;
  const int bits = format.codes == quant::Codes::kU4 || format.codes == quant::Codes::kLut4 ? 4 : 8;
  const bool ragged = bits == 4 && slot.inputs % 8 != 0 && route.slice.col_end < route.inputs;
  columns.lead = slot.lead;
  columns.inputs = ragged ? slot.inputs : columns.bytes() * 8 / bits;
  if (ragged || slot.lead != 0) columns.code_bits = bits;
  return columns;
}

void set_edges(const StoredColumns& columns, const std::byte* row, std::byte* out) {
  std::memcpy(out, row, static_cast<std::size_t>(columns.bytes()));
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      if (columns.code_bits == 8) out[k] = std::byte{0};
      else out[k / 2] = k % 2 == 0 ? (out[k / 2] & std::byte{0xf0}) | std::byte{0x08} : (out[k / 2] & std::byte{0x0f}) | std::byte{0x80};
    }
  };
  clear(0, columns.lead);
  clear(columns.inputs, columns.bytes() * 8 / columns.code_bits);
}

}  // namespace inflight::loader
