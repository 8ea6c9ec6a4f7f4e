// The specification of fp8.h, one element at a time.
#include "kernels/fp8.h"

#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/e4m3.h"
#include "kernels/isa/scalar/source.h"

namespace inflight::kernels {
namespace {

std::int64_t padded(std::int64_t inputs) { return (inputs + 3) / 4 * 4; }

std::int64_t pack(const StoredCodes& source, int lane, std::uint8_t* panel) {
  std::int64_t bad = -1;
  for (int row = 0; row < source.rows; ++row) {
    const auto* from = static_cast<const std::uint8_t*>(source.data) + row * source.stride;
    for (std::int64_t k = 0; k < padded(source.inputs); ++k) {
      const std::uint8_t code = k < source.inputs ? from[k] : 0;
      if (e4m3_is_nan(code) && bad < 0) bad = row * source.inputs + k;
      panel[e4m3_place(k, lane + row)] = code;
    }
  }
  return bad;
}

std::int64_t quantize(const SourceRows& source, int lane, std::int64_t group, const float* scales, std::uint8_t* panel) {
  if (const std::int64_t bad = first_non_finite(source); bad >= 0) return bad;
  const std::int64_t width = group == 0 ? source.inputs : group;
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < padded(source.inputs); ++k) {
      const float scale = k < source.inputs ? scales[k / width * 16 + lane + row] : 0;
      panel[e4m3_place(k, lane + row)] = scale == 0 ? std::uint8_t{0} : float_to_e4m3(element(source, row, k) / scale);
    }
  return -1;
}

std::int64_t absmax(const SourceRows& source, std::int64_t group, float* out) {
  if (const std::int64_t bad = first_non_finite(source); bad >= 0) return bad;
  const std::int64_t width = group == 0 ? source.inputs : group, groups = (source.inputs + width - 1) / width;
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g) {
      float most = 0;
      for (std::int64_t k = g * width; k < (g + 1) * width && k < source.inputs; ++k) most = std::fmax(most, std::fabs(element(source, row, k)));
      out[row * groups + g] = most;
    }
  return -1;
}

void encode(const float* x, std::int64_t n, float inverse, float bound, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = float_to_e4m3(x[i] * inverse, bound);
}

void encode_bf16(const float* x, std::int64_t n, float inverse, float bound, std::uint16_t* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = float_to_bf16(e4m3_to_float(float_to_e4m3(x[i] * inverse, bound)));
}

float widen(float x) { return x; }
float widen(std::uint16_t x) { return bf16_to_float(x); }

template <class X>
void gemm(const Weight& w, const X* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const std::int64_t width = w.group == 0 ? w.inputs : w.group;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        const auto* codes = static_cast<const std::uint8_t*>(w.codes) + panel * e4m3_panel_bytes(w.inputs);
        const auto* scales = static_cast<const float*>(w.scales) + panel * w.groups() * 16;
        float acc = 0;
        for (std::int64_t g = 0; g < w.groups(); ++g) {
          float sum = 0;
          for (std::int64_t k = g * width; k < (g + 1) * width && k < w.inputs; ++k) sum = std::fma(e4m3_to_float(codes[e4m3_place(k, lane)]), widen(x[t * ldx + k]), sum);
          acc = std::fma(sum, scales[g * 16 + lane], acc);
        }
        y[t * ldy + panel * 16 + lane] = acc;
      }
}

}  // namespace

extern const Fp8Kernels fp8_scalar;
const Fp8Kernels fp8_scalar{.pack = pack, .quantize = quantize, .absmax = absmax, .encode = encode, .encode_bf16 = encode_bf16, .gemm_e4m3 = gemm<float>, .gemm_e4m3_bf16 = gemm<std::uint16_t>};

}  // namespace inflight::kernels
