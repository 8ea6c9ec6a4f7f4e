// The specification of the matrix products: each output element by itself, in the order that every other table keeps.
#include <cstring>

#include "base/bf16.h"
#include "kernels/kernels.h"

namespace inflight::kernels {
namespace {

float f32_weight(const Weight& w, std::int64_t panel, std::int64_t k, int lane) { return static_cast<const float*>(w.codes)[(panel * w.inputs + k) * 16 + lane]; }

float bf16_weight(const Weight& w, std::int64_t panel, std::int64_t k, int lane) {
  const std::int64_t pairs = (w.inputs + 1) / 2;
  return bf16_to_float(static_cast<const std::uint16_t*>(w.codes)[(panel * pairs + k / 2) * 32 + lane * 2 + k % 2]);
}

int u8_weight(const Weight& w, std::int64_t panel, std::int64_t k, int lane) {
  const std::int64_t blocks = (w.inputs + 3) / 4;
  return static_cast<const std::uint8_t*>(w.codes)[(panel * blocks + k / 4) * 64 + lane * 4 + k % 4] - 128;
}

int u4_weight(const Weight& w, std::int64_t panel, std::int64_t k, int lane) {
  const std::int64_t blocks = (w.inputs + 7) / 8;
  const std::uint8_t byte = static_cast<const std::uint8_t*>(w.codes)[(panel * blocks + k / 8) * 64 + lane * 4 + k % 4];
  return (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

float scale_of(const Weight& w, std::int64_t panel, std::int64_t g, int lane) {
  const std::int64_t at = (panel * w.groups() + g) * 16 + lane;
  return w.scales_fp16 ? fp16_to_float(static_cast<const std::uint16_t*>(w.scales)[at]) : static_cast<const float*>(w.scales)[at];
}

std::int64_t group_width(const Weight& w) { return w.group == 0 ? w.inputs : w.group; }

float widen(float x) { return x; }
float widen(std::uint16_t x) { return bf16_to_float(x); }

// sum = 0; sum = fma(w[k], x[k], sum) for k ascending.
template <auto kWeightAt, class X>
void gemm_float(const Weight& w, const X* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float sum = 0;
        for (std::int64_t k = 0; k < w.inputs; ++k) sum = __builtin_fmaf(kWeightAt(w, panel, k, lane), widen(x[t * ldx + k]), sum);
        y[t * ldy + panel * 16 + lane] = sum;
      }
}

// acc = 0; per group ascending (a channel is one group): sum = 0, sum = fma(float(q[k]), x[k], sum) for k ascending, then acc = fma(sum, scale, acc).
template <auto kWeightAt>
void gemm_quantized(const Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const std::int64_t width = group_width(w);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float acc = 0;
        for (std::int64_t g = 0; g < w.groups(); ++g) {
          float sum = 0;
          for (std::int64_t k = g * width; k < (g + 1) * width && k < w.inputs; ++k)
            sum = __builtin_fmaf(static_cast<float>(kWeightAt(w, panel, k, lane)), x[t * ldx + k], sum);
          acc = __builtin_fmaf(sum, scale_of(w, panel, g, lane), acc);
        }
        y[t * ldy + panel * 16 + lane] = acc;
      }
}

// Activations here: per token a float scale, 60 bytes unused, high [K] int8, low [K] int8, up to a multiple of 64 bytes. Needs no sums.
constexpr std::int64_t kHeader = 64;
std::int64_t token_bytes(std::int64_t inputs) { return (kHeader + 2 * inputs + 63) / 64 * 64; }

std::size_t int8_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t) { return static_cast<std::size_t>(tokens * token_bytes(inputs)); }

void quantize_int8(const float* x, std::int64_t ldx, std::int64_t, std::int64_t inputs, std::int64_t, std::int64_t begin, std::int64_t end, void* out) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* row = x + t * ldx;
    char* token = static_cast<char*>(out) + t * token_bytes(inputs);
    float most = 0;
    for (std::int64_t k = 0; k < inputs; ++k)
      if (__builtin_fabsf(row[k]) > most) most = __builtin_fabsf(row[k]);
    const float scale = most / 16256.0f;
    std::memcpy(token, &scale, sizeof scale);
    auto* high = reinterpret_cast<std::int8_t*>(token + kHeader);
    auto* low = high + inputs;
    for (std::int64_t k = 0; k < inputs; ++k) {
      float rounded = 0;
      if (scale != 0) {  // 0 also when a tiny absmax underflows
        const float ratio = row[k] / scale;
        rounded = ratio + __builtin_copysignf(0.5f, ratio);
        if (!(rounded < 16256.0f)) rounded = 16256.0f;  // NaN too
        if (rounded < -16256.0f) rounded = -16256.0f;
      }
      const int q = static_cast<int>(rounded);
      const int top = (q + 64) >> 7;
      high[k] = static_cast<std::int8_t>(top);
      low[k] = static_cast<std::int8_t>(q - 128 * top);
    }
  }
}

template <auto kWeightAt>
void gemm_int8(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const std::int64_t width = group_width(w);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const char* token = static_cast<const char*>(activations) + t * token_bytes(w.inputs);
    float scale_x;
    std::memcpy(&scale_x, token, sizeof scale_x);
    const auto* high = reinterpret_cast<const std::int8_t*>(token + kHeader);
    const auto* low = high + w.inputs;
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float acc = 0;
        for (std::int64_t g = 0; g < w.groups(); ++g) {
          std::uint32_t h = 0, l = 0;  // int32 modulo 2^32: exact up to K = 2^31 / 127^2
          for (std::int64_t k = g * width; k < (g + 1) * width && k < w.inputs; ++k) {
            const int q = kWeightAt(w, panel, k, lane);
            h += static_cast<std::uint32_t>(q * high[k]);
            l += static_cast<std::uint32_t>(q * low[k]);
          }
          const float v = __builtin_fmaf(128.0f, static_cast<float>(static_cast<std::int32_t>(h)), static_cast<float>(static_cast<std::int32_t>(l)));
          const float scale = scale_of(w, panel, g, lane);
          acc = w.group == 0 ? v * (scale * scale_x) : __builtin_fmaf(v, scale, acc);
        }
        y[t * ldy + panel * 16 + lane] = w.group == 0 ? acc : acc * scale_x;
      }
  }
}

// Prompt activations here: per token the scale, then q int16 [K], up to a multiple of 64 bytes.
std::size_t prompt_token_bytes(std::int64_t inputs, std::int64_t = 0) { return static_cast<std::size_t>((4 + 2 * inputs + 63) / 64 * 64); }

std::size_t grouped_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t) { return static_cast<std::size_t>(tokens) * prompt_token_bytes(inputs); }

float clipped_rms(const float* row, std::int64_t inputs, float bound) {
  float squares[16] = {}, sum = 0;
  for (std::int64_t k = 0; k < inputs; ++k) {
    const float size = __builtin_fabsf(row[k]), x = size < bound ? size : bound;
    squares[k % 16] = __builtin_fmaf(x, x, squares[k % 16]);
  }
  for (const float lane : squares) sum += lane;
  return __builtin_sqrtf(sum / static_cast<float>(inputs));
}

void quantize_grouped(const float* x, std::int64_t ldx, std::int64_t, std::int64_t inputs, std::int64_t, std::int64_t begin, std::int64_t end, void* out) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* row = x + t * ldx;
    char* token = static_cast<char*>(out) + static_cast<std::size_t>(t) * prompt_token_bytes(inputs);
    auto* codes = reinterpret_cast<std::int16_t*>(token + 4);
    float absmax = 0;
    for (std::int64_t k = 0; k < inputs; ++k)
      if (__builtin_fabsf(row[k]) > absmax) absmax = __builtin_fabsf(row[k]);
    const float rms = clipped_rms(row, inputs, __builtin_inff()), limit = kOneByteRms * clipped_rms(row, inputs, kOutlierRms * rms);
    float top = absmax < limit ? absmax : limit;
    if (top < absmax / 255.0f) top = absmax / 255.0f;
    const bool zero = absmax < 0x1p-100f;
    for (std::int64_t k = 0; k < inputs; ++k) {
      const float scaled = row[k] * (zero ? 0 : 127.0f / top);
      codes[k] = scaled >= -32767 && scaled <= 32767 ? static_cast<std::int16_t>(__builtin_nearbyintf(scaled)) : std::int16_t{0};
    }
    const float scale = zero ? 0 : top / 127.0f;
    std::memcpy(token, &scale, 4);
  }
}

void quantize_token(const float* x, std::int64_t inputs, std::int64_t group, void* token) { quantize_grouped(x, inputs, 1, inputs, group, 0, 1, token); }

void gather_grouped(const void* tokens, std::int64_t stride, std::int64_t inputs, std::int64_t, const std::int32_t* rows, std::int64_t, std::int64_t begin, std::int64_t end, void* out) {
  const std::size_t bytes = prompt_token_bytes(inputs);
  for (std::int64_t r = begin; r < end; ++r)
    std::memcpy(static_cast<char*>(out) + static_cast<std::size_t>(r) * bytes, static_cast<const char*>(tokens) + rows[r] * stride, 4 + static_cast<std::size_t>(inputs) * 2);
}

template <auto kWeightAt>
void gemm_grouped(const Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  const std::int64_t width = group_width(w);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const char* token = static_cast<const char*>(activations) + static_cast<std::size_t>(t) * prompt_token_bytes(w.inputs);
    const auto* codes = reinterpret_cast<const std::int16_t*>(token + 4);
    float scale_x;
    std::memcpy(&scale_x, token, 4);
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float acc = 0;
        for (std::int64_t g = 0; g < w.groups(); ++g) {
          int sum = 0;
          for (std::int64_t k = g * width; k < (g + 1) * width && k < w.inputs; ++k) sum += kWeightAt(w, panel, k, lane) * codes[k];
          const float v = static_cast<float>(sum), scale = scale_of(w, panel, g, lane);
          acc = w.group == 0 ? v * (scale * scale_x) : __builtin_fmaf(v, scale, acc);
        }
        y[t * ldy + panel * 16 + lane] = w.group == 0 ? acc : acc * scale_x;
      }
  }
}

}  // namespace

extern const LinearKernels linear_scalar;
const LinearKernels linear_scalar{
    .gemm_f32 = gemm_float<f32_weight, float>,
    .gemm_bf16 = gemm_float<bf16_weight, float>,
    .gemm_bf16_bf16 = gemm_float<bf16_weight, std::uint16_t>,
    .gemm_u8 = gemm_quantized<u8_weight>,
    .gemm_u4 = gemm_quantized<u4_weight>,
    .int8_bytes = int8_bytes,
    .quantize_int8 = quantize_int8,
    .gemm_u8_int8 = gemm_int8<u8_weight>,
    .gemm_u4_int8 = gemm_int8<u4_weight>,
    .grouped_bytes = grouped_bytes,
    .quantize_grouped = quantize_grouped,
    .gemm_u8_grouped = gemm_grouped<u8_weight>,
    .gemm_u4_grouped = gemm_grouped<u4_weight>,
    .token_bytes = prompt_token_bytes,
    .quantize_token = quantize_token,
    .gather_grouped = gather_grouped,
};

}  // namespace inflight::kernels
