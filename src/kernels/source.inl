// Reading rows of a checkpoint tensor as lanes, for every ISA with a vector vocabulary (dot.h).

template <DType kType>
struct Source;
template <>
struct Source<DType::kF32> {
  static constexpr std::int64_t kBytes = 4;
  LANES_INLINE static Lanes load(const char* p) { return load_lanes(reinterpret_cast<const float*>(p)); }
};
template <>
struct Source<DType::kBF16> {
  static constexpr std::int64_t kBytes = 2;
  LANES_INLINE static Lanes load(const char* p) { return load_bf16(reinterpret_cast<const std::uint16_t*>(p)); }
};
template <>
struct Source<DType::kF16> {
  static constexpr std::int64_t kBytes = 2;
  LANES_INLINE static Lanes load(const char* p) { return load_fp16(reinterpret_cast<const std::uint16_t*>(p)); }
};

// Elements [0, n) at p, n <= 16; the others 0. Reads no byte past them.
template <DType kType>
LANES_INLINE Lanes load_source(const char* p, std::int64_t n) {
  if (n >= 16) return Source<kType>::load(p);
  char whole[64] = {};
  if (n > 0) std::memcpy(whole, p, static_cast<std::size_t>(n * Source<kType>::kBytes));
  return Source<kType>::load(whole);
}

// Largest magnitude of n elements as the bits of a float; at least 0x7f800000 when one is NaN or infinite.
template <DType kType>
LANES_INLINE std::uint32_t largest_bits(const char* p, std::int64_t n) {
  Ints most = splat_int(0);
  std::int64_t k = 0;
  for (; k + 16 <= n; k += 16) most = maximum_bits(most, Source<kType>::load(p + k * Source<kType>::kBytes));
  if (k < n) most = maximum_bits(most, load_source<kType>(p + k * Source<kType>::kBytes, n - k));
  return largest_of(most);
}
template <>
LANES_INLINE std::uint32_t largest_bits<DType::kBF16>(const char* p, std::int64_t n) {
  return static_cast<std::uint32_t>(largest_half(p, n)) << 16;
}

constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// The first NaN or infinity as row * inputs + k, or -1. Slow: called for a tensor that is about to be refused.
template <DType kType>
[[gnu::noinline]] std::int64_t first_non_finite(const SourceRows& source) {
  for (std::int64_t row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs; ++k)
      if (largest_bits<kType>(static_cast<const char*>(source.data) + (row * source.stride + k) * Source<kType>::kBytes, 1) >= kInfinityBits) return row * source.inputs + k;
  return -1;
}

LANES_INLINE float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
