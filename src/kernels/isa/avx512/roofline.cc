#include "kernels/isa/avx512/dot.h"

namespace inflight::kernels {
namespace {

#include "kernels/roofline.inl"

std::uint64_t read(const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  Ints seen[4] = {};
  for (std::size_t at = 0; at < bytes; at += 256)
    for (int i = 0; i < 4; ++i) seen[i] = _mm512_or_si512(seen[i], _mm512_load_si512(p + at + i * 64));
  return static_cast<std::uint64_t>(_mm512_reduce_or_epi64(_mm512_or_si512(_mm512_or_si512(seen[0], seen[1]), _mm512_or_si512(seen[2], seen[3]))));
}

double int8(std::int64_t iterations) {
  const Ints by = _mm512_set1_epi8(3);
  return chains<Ints>(iterations, by, [](Ints sum, Ints x) __attribute__((always_inline)) { return _mm512_dpbusd_epi32(sum, x, x); }) * 128;
}

double fp32(std::int64_t iterations) {
  const Lanes by = _mm512_set1_ps(0.999f);
  return chains<Lanes>(iterations, by, [](Lanes sum, Lanes x) __attribute__((always_inline)) { return _mm512_fmadd_ps(sum, x, x); }) * 32;
}

}  // namespace

extern const RooflineKernels roofline_avx512;
const RooflineKernels roofline_avx512{.read = read, .int8 = int8, .bf16 = fp32, .fp32 = fp32};

}  // namespace inflight::kernels
