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
  std::vector<float> errors;        // [groups]: of the codes kept, in the unit of row scale squared
};

inline const std::vector<int>& lut4_values() {
  static const std::vector<int> values = {-64, -52, -40, -31, -23, -16, -10, -5, 0, 6, 12, 18, 25, 32, 41, 55};
  return values;
}

inline int lut4_signed_step(int s, int sign) { return sign * (16 + s % 16) * (1 << s / 16); }

inline Lut4Row lut4_by_the_rule(const float* w, std::int64_t inputs) {
  Lut4Row row;
  double most = 0;
  for (std::int64_t k = 0; k < inputs; ++k) most = std::fmax(most, std::fabs(static_cast<double>(w[k])));
  const int exponent = most == 0 ? -100 : std::min(std::max(static_cast<int>(std::floor(std::log2(most))), -100), 126);
  row.scale = most == 0 ? 0 : std::ldexp(1.0f, exponent - 16);
  for (std::int64_t first = 0; first < inputs; first += 16) {
    std::vector<float> z(16, 0.0f);
    double largest = 0;
    bool negative = true;  // is the largest element
    for (std::int64_t k = first; k < inputs && k < first + 16; ++k) {
      const float v = z[static_cast<std::size_t>(k - first)] = std::ldexp(w[k], 16 - exponent);
      const double size = std::fabs(static_cast<double>(v));
      if (size > largest) negative = v < 0;
      else if (size == largest) negative = negative || v < 0;
      largest = std::fmax(largest, size);
    }
    // The largest s with step(s) <= largest / 64, but room for all tries.
    int base = 1;
    while (base < 122 && lut4_signed_step(base + 1, 1) <= largest / 64) ++base;
    float best = std::numeric_limits<float>::infinity();
    std::vector<int> kept;
    int kept_step = 0;
    if (largest == 0) {
      kept.assign(16, 8);
      kept_step = 16;
      best = 0;
    }
    for (const bool far : {true, false})
      for (int d = far ? -1 : 2; d <= (far ? 2 : 5); ++d) {
        const int s = base + d, sign = far == negative ? 1 : -1;
        const float inverse = 1.0f / static_cast<float>(lut4_signed_step(s, sign));
        std::vector<int> nibbles;
        std::int64_t sum = 0;
        for (const float v : z) {
          const float exact = std::rint(v * inverse);
          const int y = static_cast<int>(std::fmin(std::fmax(exact, -128.0f), 127.0f));
          int nearest = 0;
          for (int j = 1; j < 16; ++j)
            if (std::abs(y - lut4_values()[static_cast<std::size_t>(j)]) < std::abs(y - lut4_values()[static_cast<std::size_t>(nearest)])) nearest = j;  // a tie: the lower
          nibbles.push_back(nearest);
          const int off = y - lut4_values()[static_cast<std::size_t>(nearest)];
          sum += off * off;
        }
        const float step = static_cast<float>(lut4_signed_step(s, 1));
        const float error = static_cast<float>(sum) * (step * step);
        if (error < best) {
          best = error;
          kept = nibbles;
          kept_step = lut4_signed_step(s, sign);
        }
      }
    row.steps.push_back(kept_step);
    row.errors.push_back(best);
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
