// Packing and quantizing FP8 weights, and rounding activations to E4M3 (fp8.h), for every ISA with a vector vocabulary (dot.h) and its isa/<name>/fp8.h.

#include "kernels/divisor.inl"
#include "kernels/source.inl"

// Column j of chunk[0 .. rows), four codes of each row, goes to lanes [lane, lane + rows) of block j of the panel, j < blocks.
LANES_INLINE void scatter_codes(const std::uint32_t (&chunk)[16][16], int lane, int rows, std::int64_t blocks, std::uint8_t* panel) {
  if (rows == 16) {
    alignas(64) std::uint32_t moved[16 * 16];
    scatter(chunk, 0, 16, blocks, moved);
    for (std::int64_t j = 0; j < blocks; ++j) store_ints(panel + j * 64, pairs_together(load_ints(moved + j * 16)));
    return;
  }
  for (std::int64_t j = 0; j < blocks; ++j)
    for (int row = 0; row < rows; ++row) {
      std::uint8_t* to = panel + j * 64 + (lane + row) / 4 * 16 + (lane + row) % 4 * 2;
      const auto* from = reinterpret_cast<const char*>(&chunk[row][j]);
      std::memcpy(to, from, 2);
      std::memcpy(to + 8, from + 2, 2);
    }
}

// 64 codes.
using CodeWords = std::uint32_t __attribute__((vector_size(64)));

std::int64_t first_nan_code(const StoredCodes& source) {
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs; ++k)
      if ((static_cast<const std::uint8_t*>(source.data)[row * source.stride + k] & 0x7f) == 0x7f) return row * source.inputs + k;
  return -1;
}

std::int64_t pack_e4m3(const StoredCodes& source, int lane, std::uint8_t* panel) {
  const char* base = static_cast<const char*>(source.data);
  alignas(64) std::uint32_t chunk[16][16];
  CodeWords nan = {};
  for (std::int64_t k = 0; k < source.inputs; k += 64) {
    const std::int64_t n = source.inputs - k < 64 ? source.inputs - k : 64;
    for (int row = 0; row < source.rows; ++row) {
      CodeWords codes = {};
      if (n == 64) std::memcpy(&codes, base + row * source.stride + k, 64);
      else std::memcpy(&codes, base + row * source.stride + k, static_cast<std::size_t>(n));
      nan |= (codes & 0x7f7f7f7fu) + 0x01010101u;  // the top bit of a byte only where all seven below were set
      std::memcpy(chunk[row], &codes, 64);
    }
    scatter_codes(chunk, lane, source.rows, (n + 3) / 4, panel + k * 16);
  }
  std::uint32_t any = 0;
  for (int i = 0; i < 16; ++i) any |= nan[i];
  return (any & 0x80808080u) != 0 ? first_nan_code(source) : -1;
}

template <DType kType>
std::int64_t quantize_e4m3_rows(const SourceRows& source, int lane, std::int64_t group, const float* scales, std::uint8_t* panel) {
  const char* base = static_cast<const char*>(source.data);
  constexpr std::int64_t kBytes = Source<kType>::kBytes;
  for (int row = 0; row < source.rows; ++row)
    if (largest_bits<kType>(base + row * source.stride * kBytes, source.inputs) >= kInfinityBits) return first_non_finite<kType>(source);
  const std::int64_t width = group == 0 ? source.inputs : group;
  alignas(64) std::uint32_t chunk[16][16];
  const Lanes bound = splat(448.0f);
  std::int64_t g = 0, stop = width;  // the group of the next 16 inputs, and where it ends
  for (std::int64_t k = 0; k < source.inputs; k += 64) {
    const std::int64_t n = source.inputs - k < 64 ? source.inputs - k : 64;
    const float* scales_of[4];
    for (int i = 0; i < 4; ++i) {
      if (k + i * 16 >= stop && k + i * 16 < source.inputs) {
        ++g;
        stop += width;
      }
      scales_of[i] = scales + g * 16 + lane;
    }
    for (int row = 0; row < source.rows; ++row) {
      const char* p = base + (row * source.stride + k) * kBytes;
      Ints q[4];
      for (int i = 0; i < 4; ++i) {
        const float scale = scales_of[i][row];
        const Lanes values = n == 64 ? Source<kType>::load(p + i * 16 * kBytes) : load_source<kType>(p + i * 16 * kBytes, n - i * 16);
        q[i] = all_bits(e4m3_codes(divide(values, splat(divisor(scale))), bound), splat_int(scale == 0 ? 0 : -1));
      }
      store_codes(chunk[row], q);
    }
    scatter_codes(chunk, lane, source.rows, (n + 3) / 4, panel + k * 16);
  }
  return -1;
}

std::int64_t quantize_e4m3(const SourceRows& source, int lane, std::int64_t group, const float* scales, std::uint8_t* panel) {
  if (source.dtype == DType::kF32) return quantize_e4m3_rows<DType::kF32>(source, lane, group, scales, panel);
  if (source.dtype == DType::kF16) return quantize_e4m3_rows<DType::kF16>(source, lane, group, scales, panel);
  return quantize_e4m3_rows<DType::kBF16>(source, lane, group, scales, panel);
}

template <DType kType>
std::int64_t absmax_rows(const SourceRows& source, std::int64_t group, float* out) {
  const char* base = static_cast<const char*>(source.data);
  const std::int64_t width = group == 0 ? source.inputs : group;
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs; k += width) {
      const std::uint32_t most = largest_bits<kType>(base + (row * source.stride + k) * Source<kType>::kBytes, source.inputs - k < width ? source.inputs - k : width);
      if (most >= kInfinityBits) return first_non_finite<kType>(source);
      *out++ = from_bits(most);
    }
  return -1;
}

std::int64_t absmax_e4m3(const SourceRows& source, std::int64_t group, float* out) {
  if (source.dtype == DType::kF32) return absmax_rows<DType::kF32>(source, group, out);
  if (source.dtype == DType::kF16) return absmax_rows<DType::kF16>(source, group, out);
  return absmax_rows<DType::kBF16>(source, group, out);
}

void encode_e4m3(const float* x, std::int64_t n, float inverse, float bound, std::uint8_t* codes) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_bytes(codes + i, e4m3_codes(multiply(load_lanes(x + i), splat(inverse)), splat(bound)));
  if (i == n) return;
  std::uint8_t last[16];
  store_bytes(last, e4m3_codes(multiply(load_some(x + i, n - i), splat(inverse)), splat(bound)));
  std::memcpy(codes + i, last, static_cast<std::size_t>(n - i));
}

void encode_e4m3_bf16(const float* x, std::int64_t n, float inverse, float bound, std::uint16_t* y) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_high_halves(y + i, e4m3_numbers(multiply(load_lanes(x + i), splat(inverse)), splat(bound)));
  if (i == n) return;
  std::uint16_t last[16];
  store_high_halves(last, e4m3_numbers(multiply(load_some(x + i, n - i), splat(inverse)), splat(bound)));
  std::memcpy(y + i, last, static_cast<std::size_t>(n - i) * 2);
}
