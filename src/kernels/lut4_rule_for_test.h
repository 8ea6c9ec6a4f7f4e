// The rule of lut4.h written a second time, for tests: plain loops over real numbers, the nearest value by comparing distances.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace inflight::kernels {

struct Lut4Row {
  float scale = 0;
  std::vector<int> nibbles, steps;  // [K], [groups]: the signed step
  std::vector<float> errors;        // [groups]: squared, of the codes kept, in units of the row scale
};

inline const std::vector<int>& lut4_values() {
  static const std::vector<int> values = {-64, -52, -40, -31, -23, -16, -10, -5, 0, 6, 12, 18, 25, 32, 41, 55};
  return values;
}

inline int lut4_signed_step(int s, int sign) { return sign * (16 + s % 16) * (1 << s / 16); }

inline double lut4_step_in_octave(int s, int octave) { return std::ldexp(lut4_signed_step(s, 1), -octave); }

// What the exponent byte of a row means.
inline float lut4_row_scale(int exponent) { return exponent == 0 ? 0.0f : std::ldexp(1.0f, exponent - 127); }

// x / 2^bits to the nearest integer, a half upwards.
inline int lut4_rounded(double x, int bits) { return static_cast<int>(std::floor(std::ldexp(x, -bits) + 0.5)); }

inline Lut4Row lut4_by_the_rule(const float* w, std::int64_t inputs) {
  Lut4Row row;
  double most = 0;
  for (std::int64_t k = 0; k < inputs; ++k) most = std::fmax(most, std::fabs(static_cast<double>(w[k])));
  const int exponent = most == 0 ? -100 : std::min(std::max(static_cast<int>(std::floor(std::log2(most))), -100), 126);
  row.scale = most == 0 ? 0 : std::ldexp(1.0f, exponent - 16);
  for (std::int64_t first = 0; first < inputs; first += 16) {
    std::vector<double> z(16, 0.0);
    double largest = 0;
    bool negative = true;  // is the largest element
    for (std::int64_t k = first; k < inputs && k < first + 16; ++k) {
      const double v = z[static_cast<std::size_t>(k - first)] = std::ldexp(static_cast<double>(w[k]), 16 - exponent);
      if (std::fabs(v) > largest) negative = v < 0;
      else if (std::fabs(v) == largest) negative = negative || v < 0;
      largest = std::fmax(largest, std::fabs(v));
    }
    // The largest s with step(s) <= largest / 64, but room for all tries; the octave of the largest step at all.
    int base = 1, octave = 0;
    while (base < 121 && lut4_signed_step(base + 1, 1) <= largest / 64) ++base;
    while (octave < 7 && lut4_signed_step(16 * (octave + 1), 1) <= largest / 64) ++octave;
    int best = 1 << 30;
    double best_error = 0;
    std::vector<int> kept;
    int kept_step = 0;
    for (const bool far : {true, false})
      for (const int d : far ? std::vector<int>{-1, 0, 1, 2, 3, 4, 5, 6} : std::vector<int>{2, 3, 4, 5}) {
        const int s = base + d, sign = far == negative ? 1 : -1;
        const double step = lut4_step_in_octave(s, octave);
        const int multiplier = sign * static_cast<int>(std::floor(std::ldexp(1.0, 15) / step + 0.5));
        std::vector<int> nibbles;
        int sum = 0;
        double error = 0;
        for (const double v : z) {
          const int y = lut4_rounded(std::nearbyint(std::ldexp(v, -octave)) * multiplier, 15);
          int nearest = 0;
          for (int j = 1; j < 16; ++j)
            if (std::abs(y - lut4_values()[static_cast<std::size_t>(j)]) < std::abs(y - lut4_values()[static_cast<std::size_t>(nearest)])) nearest = j;  // a tie: the lower
          nibbles.push_back(nearest);
          const int value = lut4_values()[static_cast<std::size_t>(nearest)];
          sum += (y - value) * (y - value);
          error += std::pow(v - static_cast<double>(value * lut4_signed_step(s, sign)), 2);
        }
        const int score = static_cast<int>(std::floor(16.0 * std::min(sum, 2047) * 36 * step * step / 65536));
        if (score < best) {
          best = score;
          best_error = error;
          kept = nibbles;
          kept_step = lut4_signed_step(s, sign);
        }
      }
    row.steps.push_back(kept_step);
    row.errors.push_back(static_cast<float>(best_error));
    for (std::int64_t k = first; k < inputs && k < first + 16; ++k) row.nibbles.push_back(kept[static_cast<std::size_t>(k - first)]);
  }
  return row;
}

// What the codes of a row mean.
inline std::vector<float> lut4_dequantized(const Lut4Row& row) {
  std::vector<float> out;
  for (std::size_t k = 0; k < row.nibbles.size(); ++k)
    out.push_back(static_cast<float>(lut4_values()[static_cast<std::size_t>(row.nibbles[k])] * row.steps[k / 16]) * row.scale);
  return out;
}

}  // namespace inflight::kernels
