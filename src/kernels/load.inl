// Packing and quantizing weights, for every ISA with a vector vocabulary (dot.h): rows pass in chunks of 16 dwords a row
// (a dword is what one lane holds of a 64-byte block), then the chunk of all rows is transposed into its lanes.

#include "kernels/divisor.inl"
#include "kernels/source.inl"

template <DType kType>
std::int64_t pack_f32_rows(const SourceRows& source, int lane, float* panel) {
  const char* base = static_cast<const char*>(source.data);
  constexpr std::int64_t kBytes = Source<kType>::kBytes;
  alignas(64) std::uint32_t chunk[16][16];
  Ints most = splat_int(0);
  for (std::int64_t k = 0; k < source.inputs; k += 16) {
    const std::int64_t n = source.inputs - k < 16 ? source.inputs - k : 16;
    for (int row = 0; row < source.rows; ++row) {
      const Lanes x = load_source<kType>(base + (row * source.stride + k) * kBytes, n);
      most = maximum_bits(most, x);
      store_lanes(reinterpret_cast<float*>(chunk[row]), x);
    }
    scatter(chunk, lane, source.rows, n, reinterpret_cast<std::uint32_t*>(panel + k * 16));
  }
  return largest_of(most) >= kInfinityBits ? first_non_finite<kType>(source) : -1;
}

std::int64_t pack_f32(const SourceRows& source, int lane, float* panel) {
  if (source.dtype == DType::kF32) return pack_f32_rows<DType::kF32>(source, lane, panel);
  if (source.dtype == DType::kF16) return pack_f32_rows<DType::kF16>(source, lane, panel);
  return pack_f32_rows<DType::kBF16>(source, lane, panel);
}

std::int64_t pack_bf16(const SourceRows& source, int lane, std::uint16_t* panel) {
  const char* base = static_cast<const char*>(source.data);
  alignas(64) std::uint32_t chunk[16][16] = {};
  bool finite = true;
  for (int row = 0; row < source.rows; ++row) finite &= largest_half(base + row * source.stride * 2, source.inputs) < 0x7f80;
  if (!finite) return first_non_finite<DType::kBF16>(source);
  for (std::int64_t k = 0; k < source.inputs; k += 32) {
    const std::int64_t n = source.inputs - k < 32 ? source.inputs - k : 32;
    for (int row = 0; row < source.rows; ++row) {
      if (n < 32) chunk[row][n / 2] = 0;
      if (n == 32) std::memcpy(chunk[row], base + (row * source.stride + k) * 2, 64);
      else std::memcpy(chunk[row], base + (row * source.stride + k) * 2, static_cast<std::size_t>(n) * 2);
    }
    scatter(chunk, lane, source.rows, (n + 1) / 2, reinterpret_cast<std::uint32_t*>(panel + k * 16));
  }
  return -1;
}

template <DType kType>
std::int64_t quantize_u8_rows(const SourceRows& source, int lane, const float* absmax, std::uint8_t* panel, float* scales) {
  const char* base = static_cast<const char*>(source.data);
  constexpr std::int64_t kBytes = Source<kType>::kBytes;
  float by[16];
  for (int row = 0; row < source.rows; ++row) {
    const std::uint32_t most = largest_bits<kType>(base + row * source.stride * kBytes, source.inputs);
    if (most >= kInfinityBits) return first_non_finite<kType>(source);
    const float scale = (absmax ? absmax[row] : from_bits(most)) / 127.0f;
    scales[lane + row] = scale;
    by[row] = divisor(scale);
  }
  alignas(64) std::uint32_t chunk[16][16];
  const Lanes bound = splat(127.0f);
  for (std::int64_t k = 0; k < source.inputs; k += 64) {
    const std::int64_t n = source.inputs - k < 64 ? source.inputs - k : 64;
    for (int row = 0; row < source.rows; ++row) {
      const char* p = base + (row * source.stride + k) * kBytes;
      const Lanes scale = splat(by[row]);
      Ints q[4];
      if (n == 64) {
        for (int i = 0; i < 4; ++i) q[i] = quantize_lanes(Source<kType>::load(p + i * 16 * kBytes), scale, bound);
      } else {
        for (int i = 0; i < 4; ++i) q[i] = quantize_lanes(load_source<kType>(p + i * 16 * kBytes, n - i * 16), scale, bound);
      }
      store_u8_codes(chunk[row], q);
    }
    scatter(chunk, lane, source.rows, (n + 3) / 4, reinterpret_cast<std::uint32_t*>(panel + k * 16));
  }
  return -1;
}

std::int64_t quantize_u8(const SourceRows& source, int lane, const float* absmax, std::uint8_t* panel, float* scales) {
  if (source.dtype == DType::kF32) return quantize_u8_rows<DType::kF32>(source, lane, absmax, panel, scales);
  if (source.dtype == DType::kF16) return quantize_u8_rows<DType::kF16>(source, lane, absmax, panel, scales);
  return quantize_u8_rows<DType::kBF16>(source, lane, absmax, panel, scales);
}

// How the divisors of 128 inputs of a row are given: one for all, one for 16 inputs each, one for each input.
enum class Divisors { kOne, kRuns, kEach };

// Codes of the first n of 128 inputs of one row.
template <DType kType, Divisors kDivisors>
LANES_INLINE void u4_row(const char* p, std::int64_t n, const float* by, std::uint32_t* chunk) {
  const Lanes bound = splat(7.0f);
  constexpr std::int64_t kBytes = Source<kType>::kBytes;
  for (int half = 0; half < 2; ++half) {
    Ints q[4];
    for (int i = 0; i < 4; ++i) {
      const std::int64_t at = half * 64 + i * 16;
      const Lanes scale = kDivisors == Divisors::kEach ? load_lanes(by + at) : splat(by[kDivisors == Divisors::kOne ? 0 : half * 4 + i]);
      q[i] = quantize_lanes(n == 128 ? Source<kType>::load(p + at * kBytes) : load_source<kType>(p + at * kBytes, n - at), scale, bound);
    }
    store_u4_codes(chunk + half * 8, q);
  }
}

template <DType kType>
std::int64_t quantize_u4_rows(const SourceRows& source, int lane, std::int64_t group, const float* absmax, std::uint8_t* panel, float* scales) {
  const char* base = static_cast<const char*>(source.data);
  constexpr std::int64_t kBytes = Source<kType>::kBytes;
  const std::int64_t width = group == 0 ? source.inputs : group;
  const std::int64_t groups = (source.inputs + width - 1) / width;
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t at = g * width, n = source.inputs - at < width ? source.inputs - at : width;
      const std::uint32_t most = largest_bits<kType>(base + (row * source.stride + at) * kBytes, n);
      if (most >= kInfinityBits) return first_non_finite<kType>(source);
      scales[g * 16 + lane + row] = (absmax ? absmax[row * groups + g] : from_bits(most)) / 7.0f;
    }
  alignas(64) std::uint32_t chunk[16][16];
  const bool runs = group % 16 == 0;
  std::int64_t first_group = 0, first_end = width;  // the group that holds input k, and where it ends
  for (std::int64_t k = 0; k < source.inputs; k += 128) {
    const std::int64_t n = source.inputs - k < 128 ? source.inputs - k : 128;
    while (k >= first_end) {
      ++first_group;
      first_end += width;
    }
    for (int row = 0; row < source.rows; ++row) {
      const char* p = base + (row * source.stride + k) * kBytes;
      std::int64_t g = first_group, stop = first_end;
      float now = divisor(scales[g * 16 + lane + row]);
      if (n == 128 && stop >= k + 128) {
        u4_row<kType, Divisors::kOne>(p, 128, &now, chunk[row]);
        continue;
      }
      float by[128];
      if (n == 128 && (width == 32 || width == 64)) {  // whole groups, as most chunks are
        const int shift = width == 32 ? 1 : 2;
        for (int i = 0; i < 8; ++i) by[i] = divisor(scales[(g + (i >> shift)) * 16 + lane + row]);
        u4_row<kType, Divisors::kRuns>(p, 128, by, chunk[row]);
        continue;
      }
      for (std::int64_t i = 0, step = runs ? 16 : 1; i < 128; i += step) {
        if (k + i >= stop && g + 1 < groups) {
          ++g;
          stop += width;
          now = divisor(scales[g * 16 + lane + row]);
        }
        by[runs ? i / 16 : i] = now;
      }
      if (runs) u4_row<kType, Divisors::kRuns>(p, n, by, chunk[row]);
      else u4_row<kType, Divisors::kEach>(p, n, by, chunk[row]);
    }
    scatter(chunk, lane, source.rows, (n + 7) / 8, reinterpret_cast<std::uint32_t*>(panel + k * 8));
  }
  return -1;
}

std::int64_t quantize_u4(const SourceRows& source, int lane, std::int64_t group, const float* absmax, std::uint8_t* panel, float* scales) {
  if (source.dtype == DType::kF32) return quantize_u4_rows<DType::kF32>(source, lane, group, absmax, panel, scales);
  if (source.dtype == DType::kF16) return quantize_u4_rows<DType::kF16>(source, lane, group, absmax, panel, scales);
  return quantize_u4_rows<DType::kBF16>(source, lane, group, absmax, panel, scales);
}

// 64 bytes of one row. Checks gather in such a vector too: to one number once a panel.
using Words = std::uint32_t __attribute__((vector_size(64)));

LANES_INLINE bool all_zero(const Words& x) {
  std::uint32_t any = 0;
  for (int i = 0; i < 16; ++i) any |= x[i];
  return any == 0;
}

bool unpack_u8(const StoredCodes& source, int lane, std::uint8_t* panel) {
  const char* base = static_cast<const char*>(source.data);
  alignas(64) std::uint32_t chunk[16][16];
  Words bad = {};
  for (std::int64_t k = 0; k < source.inputs; k += 64) {
    const std::int64_t n = source.inputs - k < 64 ? source.inputs - k : 64;
    for (int row = 0; row < source.rows; ++row) {
      Words code = {};
      if (n == 64) std::memcpy(&code, base + row * source.stride + k, 64);
      else std::memcpy(&code, base + row * source.stride + k, static_cast<std::size_t>(n));
      code ^= 0x80808080u;                                // q + 128; a byte 0 is q = -128
      bad |= (code - 0x01010101u) & ~code & 0x80808080u;  // not zero exactly when some byte of the word is
      std::memcpy(chunk[row], &code, 64);
    }
    scatter(chunk, lane, source.rows, (n + 3) / 4, reinterpret_cast<std::uint32_t*>(panel + k * 16));
  }
  return all_zero(bad);
}

bool unpack_u4(const StoredCodes& source, int lane, std::uint8_t* panel) {
  const char* base = static_cast<const char*>(source.data);
  const std::int64_t words = (source.inputs + 7) / 8;
  alignas(64) std::uint32_t chunk[16][16];
  Words bad = {};
  for (std::int64_t w = 0; w < words; w += 16) {
    const std::int64_t n = words - w < 16 ? words - w : 16;
    for (int row = 0; row < source.rows; ++row) {
      Words codes = Words{} + 0x11111111u;
      if (n == 16) std::memcpy(&codes, base + row * source.stride + w * 4, 64);
      else std::memcpy(&codes, base + row * source.stride + w * 4, static_cast<std::size_t>(n) * 4);
      bad |= (codes - 0x11111111u) & ~codes & 0x88888888u;
      // Byte j of the panel's word: code j low, code 4 + j high.
      Words low = codes & 0xffffu, high = codes >> 16;
      low = (low | low << 8) & 0x00ff00ffu;
      low = (low | low << 4) & 0x0f0f0f0fu;
      high = (high | high << 8) & 0x00ff00ffu;
      high = (high | high << 4) & 0x0f0f0f0fu;
      codes = low | high << 4;
      std::memcpy(chunk[row], &codes, 64);
    }
    scatter(chunk, lane, source.rows, n, reinterpret_cast<std::uint32_t*>(panel + w * 64));
  }
  return all_zero(bad);
}
