// The specification of packing and quantizing weights, one element at a time.
#include <cstring>

#include "base/bf16.h"
#include "kernels/isa/scalar/source.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {

float absmax_of(const SourceRows& source, int row, std::int64_t begin, std::int64_t end) {
  float most = 0;
  for (std::int64_t k = begin; k < end; ++k) {
    const float magnitude = __builtin_fabsf(element(source, row, k));
    if (magnitude > most) most = magnitude;
  }
  return most;
}

// A scale of 0 (absmax 0, or so small that the quotient underflows) gives 0. Clamping before truncation is clamping after it.
int quantize(float value, float scale, float bound) {
  if (scale == 0) return 0;
  const float ratio = value / scale;
  float rounded = ratio + __builtin_copysignf(0.5f, ratio);
  if (!(rounded < bound)) rounded = bound;  // NaN too
  if (rounded < -bound) rounded = -bound;
  return static_cast<int>(rounded);
}

std::int64_t pack_f32(const SourceRows& source, int lane, float* panel) {
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs; ++k) panel[k * 16 + lane + row] = element(source, row, k);
  return first_non_finite(source);
}

std::int64_t pack_bf16(const SourceRows& source, int lane, std::uint16_t* panel) {
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs + (source.inputs & 1); ++k) {
      std::uint16_t bits = 0;
      if (k < source.inputs) std::memcpy(&bits, static_cast<const char*>(source.data) + (row * source.stride + k) * 2, 2);
      panel[k / 2 * 32 + (lane + row) * 2 + k % 2] = bits;
    }
  return first_non_finite(source);
}

std::int64_t quantize_u8(const SourceRows& source, int lane, const float* absmax, std::uint8_t* panel, float* scales) {
  const std::int64_t bad = first_non_finite(source);
  if (bad >= 0) return bad;
  for (int row = 0; row < source.rows; ++row) {
    const float scale = (absmax ? absmax[row] : absmax_of(source, row, 0, source.inputs)) / 127.0f;
    scales[lane + row] = scale;
    for (std::int64_t k = 0; k < (source.inputs + 3) / 4 * 4; ++k) {
      const int q = k < source.inputs ? quantize(element(source, row, k), scale, 127.0f) : 0;
      panel[k / 4 * 64 + (lane + row) * 4 + k % 4] = static_cast<std::uint8_t>(q + 128);
    }
  }
  return -1;
}

std::int64_t quantize_u4(const SourceRows& source, int lane, std::int64_t group, const float* absmax, std::uint8_t* panel, float* scales) {
  const std::int64_t bad = first_non_finite(source);
  if (bad >= 0) return bad;
  const std::int64_t width = group == 0 ? source.inputs : group;
  const std::int64_t groups = (source.inputs + width - 1) / width;
  for (int row = 0; row < source.rows; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t end = (g + 1) * width < source.inputs ? (g + 1) * width : source.inputs;
      scales[g * 16 + lane + row] = (absmax ? absmax[row * groups + g] : absmax_of(source, row, g * width, end)) / 7.0f;
    }
    for (std::int64_t k = 0; k < (source.inputs + 7) / 8 * 8; ++k) {
      const int q = k < source.inputs ? quantize(element(source, row, k), scales[k / width * 16 + lane + row], 7.0f) : 0;
      std::uint8_t& byte = panel[k / 8 * 64 + (lane + row) * 4 + k % 4];
      if (k % 8 < 4) byte = static_cast<std::uint8_t>(q + 8);
      else byte = static_cast<std::uint8_t>(byte | (q + 8) << 4);
    }
  }
  return -1;
}

bool unpack_u8(const StoredCodes& source, int lane, std::uint8_t* panel) {
  bool clean = true;
  for (int row = 0; row < source.rows; ++row) {
    const auto* from = static_cast<const std::int8_t*>(source.data) + row * source.stride;
    for (std::int64_t k = 0; k < (source.inputs + 3) / 4 * 4; ++k) {
      const int q = k < source.inputs ? from[k] : 0;
      clean &= q != -128;
      panel[k / 4 * 64 + (lane + row) * 4 + k % 4] = static_cast<std::uint8_t>(q + 128);
    }
  }
  return clean;
}

bool unpack_u4(const StoredCodes& source, int lane, std::uint8_t* panel) {
  bool clean = true;
  for (int row = 0; row < source.rows; ++row) {
    const auto* from = static_cast<const std::uint8_t*>(source.data) + row * source.stride;
    for (std::int64_t k = 0; k < (source.inputs + 7) / 8 * 8; ++k) {
      const int code = from[k / 2] >> (k % 2 * 4) & 15;
      clean &= code != 0;
      std::uint8_t& byte = panel[k / 8 * 64 + (lane + row) * 4 + k % 4];
      byte = static_cast<std::uint8_t>(k % 8 < 4 ? code : byte | code << 4);
    }
  }
  return clean;
}

}  // namespace

extern const LoadKernels load_scalar;
const LoadKernels load_scalar{.pack_f32 = pack_f32, .pack_bf16 = pack_bf16, .quantize_u8 = quantize_u8, .quantize_u4 = quantize_u4, .unpack_u8 = unpack_u8, .unpack_u4 = unpack_u4};

}  // namespace inflight::kernels
