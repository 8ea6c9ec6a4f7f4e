// The table that byte shuffles decode FP8 codes by.
#pragma once
#include <cstdint>

namespace inflight::kernels {
namespace {

// Bits of the BF16 number of magnitude codes 0..127, their low and high bytes.
struct E4m3Bytes {
  alignas(64) std::uint8_t low[128], high[128];
};
constexpr E4m3Bytes e4m3_bytes() {
  E4m3Bytes table{};
  for (int m = 1; m < 128; ++m) {
    int top = 0;  // a subnormal's highest bit
    while (m < 8 && m >> (top + 1) != 0) ++top;
    const int bits = m < 8 ? (127 - 9 + top) << 7 | (m - (1 << top)) << (7 - top) : (m << 4) + (120 << 7);
    table.low[m] = static_cast<std::uint8_t>(bits & 0xff);
    table.high[m] = static_cast<std::uint8_t>(bits >> 8);
  }
  return table;
}
constexpr E4m3Bytes kE4m3Bytes = e4m3_bytes();

}  // namespace
}  // namespace inflight::kernels
