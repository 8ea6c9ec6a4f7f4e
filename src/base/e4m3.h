// OCP FP8 E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, NaN is 0x7f and 0xff, the largest number 448, the smallest 2^-9.
// Decoding is exact in FP32 and in BF16. Scalar, and the specification; the ISA folders hold vector forms.
// Gaudi's E4M3 ends at 240; its numbers have the same codes, so one decoder serves both and an encoder knows its bound.
// Source: OCP 8-bit Floating Point Specification (OFP8), revision 1.0.
#pragma once
#include <bit>
#include <cstdint>

namespace inflight {

inline constexpr float kE4m3Max = 448.0f;       // code 0x7e
inline constexpr float kGaudiE4m3Max = 240.0f;  // code 0x77

constexpr bool e4m3_is_nan(std::uint8_t code) { return (code & 0x7f) == 0x7f; }

constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));  // zero or subnormal
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Round to nearest, ties to even, in one step from FP32; beyond +-bound (kE4m3Max or kGaudiE4m3Max), infinity too, the code of the bound. NaN stays NaN.
constexpr std::uint8_t float_to_e4m3(float value, float bound = kE4m3Max) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 24 & 0x80u, most = std::bit_cast<std::uint32_t>(bound);
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude > most) magnitude = most;
  if (magnitude < 0x3c800000u) {  // below 2^-6: subnormal, or rounds up to 2^-6
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;  // 2^14 has an ulp of 2^-9: rounds there
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1p14f)));
  }
  return static_cast<std::uint8_t>(sign | (((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3)));
}

}  // namespace inflight
