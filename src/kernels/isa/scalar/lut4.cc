// The specification of lut4.h, one element at a time.
#include "kernels/lut4.h"

#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "kernels/isa/scalar/source.h"

namespace inflight::kernels {
namespace {

float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23); }  // normal results only

float scale_of(std::uint8_t exponent) { return std::bit_cast<float>(std::uint32_t{exponent} << 23); }

float step_of(std::uint8_t s) { return static_cast<float>((16 + (s & 15)) << (s >> 4 & 7)) * (s & 128 ? -1.0f : 1.0f); }

int nearest_value(int y) {
  int nibble = 0;
  while (nibble < 15 && y > (kLut4Values[nibble] + kLut4Values[nibble + 1]) >> 1) ++nibble;
  return nibble;
}

struct Group {
  std::uint8_t step = 0;
  int nibbles[16];
  int error = 1 << 30;
};

Group search(const float (&w)[16], int exponent) {
  float most = 0, least = 0;
  for (float v : w) {
    most = v > most ? v : most;
    least = v < least ? v : least;
  }
  const bool negative = -least >= most;
  const int floor = static_cast<int>(std::bit_cast<std::uint32_t>(std::fabs(negative ? least : most)) >> 19) - 16 * (exponent + 121);
  const int base = floor < 1 ? 1 : floor > 121 ? 121 : floor, octave = (floor < 0 ? 0 : floor) >> 4;
  int t[16];
  for (int i = 0; i < 16; ++i) t[i] = static_cast<int>(std::nearbyintf(w[i] * power_of_two(16 - exponent - octave)));
  Group best;
  const auto attempt = [&](int d, bool flip) {
    Group now;
    now.step = static_cast<std::uint8_t>((base + d) | (flip ? 128 : 0));
    const int place = base + d - 16 * octave, multiplier = lut4_multiplier(place) * (flip ? -1 : 1);
    int sum = 0;
    for (int i = 0; i < 16; ++i) {
      const int y = (t[i] * multiplier + (1 << 14)) >> 15;
      now.nibbles[i] = nearest_value(y);
      const int error = y - kLut4Values[now.nibbles[i]];
      sum += error * error;
    }
    now.error = static_cast<int>((static_cast<std::int64_t>(16 * (sum < 2047 ? sum : 2047)) * lut4_weight(place)) >> 16);
    if (now.error < best.error) best = now;
  };
  for (const int d : kLut4LongTries) attempt(d, !negative);
  for (const int d : kLut4ShortTries) attempt(d, negative);
  return best;
}

std::int64_t quantize(const SourceRows& source, int lane, const float* absmax, std::uint8_t* codes, std::uint8_t* steps, std::uint8_t* row_exponents) {
  for (int row = 0; row < source.rows; ++row)
    for (std::int64_t k = 0; k < source.inputs; ++k)
      if (!__builtin_isfinite(element(source, row, k))) return row * source.inputs + k;
  const std::int64_t groups = (source.inputs + 15) / 16;
  for (int row = 0; row < source.rows; ++row) {
    float most = 0;
    for (std::int64_t k = 0; k < source.inputs; ++k) most = std::fabs(element(source, row, k)) > most ? std::fabs(element(source, row, k)) : most;
    if (absmax) most = absmax[row];
    int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(most) >> 23) - 127;
    exponent = exponent < -100 ? -100 : exponent > 126 ? 126 : exponent;
    row_exponents[lane + row] = most == 0 ? 0 : static_cast<std::uint8_t>(exponent + 111);
    for (std::int64_t g = 0; g < groups; ++g) {
      float w[16];
      for (int i = 0; i < 16; ++i) w[i] = g * 16 + i < source.inputs ? element(source, row, g * 16 + i) : 0;
      const Group best = search(w, exponent);
      steps[g * 16 + lane + row] = best.step;
      for (int i = 0; i < 16; ++i) {
        std::uint8_t& byte = codes[((g * 2 + i / 8) * 16 + lane + row) * 4 + i % 4];
        if (i % 8 < 4) byte = static_cast<std::uint8_t>(best.nibbles[i]);
        else byte = static_cast<std::uint8_t>(byte | best.nibbles[i] << 4);
      }
    }
  }
  return -1;
}

std::int64_t groups_of(std::int64_t inputs) { return (inputs + 15) / 16; }

int value_at(const Lut4Weight& w, std::int64_t panel, std::int64_t k, int lane) {
  const std::uint8_t byte = w.codes[((panel * groups_of(w.inputs) * 2 + k / 8) * 16 + lane) * 4 + k % 4];
  return kLut4Values[k % 8 < 4 ? byte & 15 : byte >> 4];
}

float step_at(const Lut4Weight& w, std::int64_t panel, std::int64_t g, int lane) { return step_of(w.steps[(panel * groups_of(w.inputs) + g) * 16 + lane]); }

void gemm(const Lut4Weight& w, const float* x, std::int64_t ldx, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float acc = 0;
        for (std::int64_t g = 0; g < groups_of(w.inputs); ++g) {
          float sum = 0;
          for (std::int64_t k = g * 16; k < g * 16 + 16 && k < w.inputs; ++k) sum = __builtin_fmaf(static_cast<float>(value_at(w, panel, k, lane)), x[t * ldx + k], sum);
          acc = __builtin_fmaf(sum, step_at(w, panel, g, lane), acc);
        }
        y[t * ldy + panel * 16 + lane] = acc * scale_of(w.row_exponents[panel * 16 + lane]);
      }
}

// Activations here: per token a float scale, 60 bytes unused, high [K] int8, low [K] int8, up to a multiple of 64 bytes.
constexpr std::int64_t kHeader = 64;
std::int64_t token_bytes(std::int64_t inputs) { return (kHeader + 2 * inputs + 63) / 64 * 64; }

std::size_t int8_bytes(std::int64_t tokens, std::int64_t inputs) { return static_cast<std::size_t>(tokens * token_bytes(inputs)); }

void quantize_int8(const float* x, std::int64_t ldx, std::int64_t, std::int64_t inputs, std::int64_t begin, std::int64_t end, void* out) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* row = x + t * ldx;
    char* token = static_cast<char*>(out) + t * token_bytes(inputs);
    float most = 0;
    for (std::int64_t k = 0; k < inputs; ++k) most = std::fabs(row[k]) > most ? std::fabs(row[k]) : most;
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
      const int q = static_cast<int>(rounded), top = (q + 64) >> 7;
      high[k] = static_cast<std::int8_t>(top);
      low[k] = static_cast<std::int8_t>(q - 128 * top);
    }
  }
}

void gemm_int8(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    const char* token = static_cast<const char*>(activations) + t * token_bytes(w.inputs);
    float scale_x;
    std::memcpy(&scale_x, token, sizeof scale_x);
    const auto* high = reinterpret_cast<const std::int8_t*>(token + kHeader);
    const auto* low = high + w.inputs;
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        float acc = 0;
        for (std::int64_t g = 0; g < groups_of(w.inputs); ++g) {
          int h = 0, l = 0;
          for (std::int64_t k = g * 16; k < g * 16 + 16 && k < w.inputs; ++k) {
            h += value_at(w, panel, k, lane) * high[k];
            l += value_at(w, panel, k, lane) * low[k];
          }
          acc = __builtin_fmaf(__builtin_fmaf(128.0f, static_cast<float>(h), static_cast<float>(l)), step_at(w, panel, g, lane), acc);
        }
        y[t * ldy + panel * 16 + lane] = acc * (scale_of(w.row_exponents[panel * 16 + lane]) * scale_x);
      }
  }
}

// Prompt activations as scalar/linear.cc keeps them: per token the scale, then q int16 [K], up to a multiple of 64 bytes.
void gemm_prompt(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    const char* token = static_cast<const char*>(activations) + t * ((4 + 2 * w.inputs + 63) / 64 * 64);
    float scale_x;
    std::memcpy(&scale_x, token, sizeof scale_x);
    const auto* codes = reinterpret_cast<const std::int16_t*>(token + 4);
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
      for (int lane = 0; lane < 16; ++lane) {
        const float row_scale = scale_of(w.row_exponents[panel * 16 + lane]);
        float acc = 0;
        for (std::int64_t g = 0; g < groups_of(w.inputs); ++g) {
          int sum = 0;
          for (std::int64_t k = g * 16; k < g * 16 + 16 && k < w.inputs; ++k) sum += value_at(w, panel, k, lane) * codes[k];
          acc = __builtin_fmaf(static_cast<float>(sum), step_at(w, panel, g, lane) * row_scale, acc);
        }
        y[t * ldy + panel * 16 + lane] = acc * scale_x;
      }
  }
}

}  // namespace

extern const Lut4Kernels lut4_scalar;
const Lut4Kernels lut4_scalar{.quantize = quantize, .gemm = gemm, .int8_bytes = int8_bytes, .quantize_int8 = quantize_int8, .gemm_int8 = gemm_int8, .gemm_prompt = gemm_prompt};

}  // namespace inflight::kernels
