// For tests: logits and hidden states beside a reference.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace inflight::engine {

inline float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float v : values) most = std::max(most, std::fabs(v));
  return most;
}

// Fails with the first position that is off, naming row and column. share: of the largest magnitude.
inline void expect_close(const float* got, std::int64_t got_stride, const std::vector<float>& want, std::int64_t columns, const std::string& what, float share = 2e-4f) {
  const float tolerance = share * largest(want);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / columns, column = static_cast<std::int64_t>(i) % columns;
    const float value = got[row * got_stride + column];
    ASSERT_LE(std::fabs(value - want[i]), tolerance) << what << " at token " << row << ", column " << column << ": got " << value << ", reference " << want[i];
  }
}

// Of as many numbers, in one row.
inline void expect_close(const std::vector<float>& got, const std::vector<float>& want, float share = 2e-4f) {
  ASSERT_EQ(got.size(), want.size());
  const auto columns = static_cast<std::int64_t>(want.size());
  expect_close(got.data(), columns, want, columns, "numbers", share);
}

// Mean over positions of KL(softmax(a) || softmax(b)), rows of `vocabulary` logits.
inline double mean_kl(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, std::int64_t rows, std::int64_t vocabulary) {
  const auto log_sum = [&](const float* x) {
    double most = x[0], sum = 0;
    for (std::int64_t i = 1; i < vocabulary; ++i) most = std::max(most, static_cast<double>(x[i]));
    for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(x[i]) - most);
    return most + std::log(sum);
  };
  double total = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float *x = a + r * a_stride, *y = b + r * b_stride;
    const double lx = log_sum(x), ly = log_sum(y);
    for (std::int64_t i = 0; i < vocabulary; ++i) total += std::exp(static_cast<double>(x[i]) - lx) * (static_cast<double>(x[i]) - lx - (static_cast<double>(y[i]) - ly));
  }
  return total / static_cast<double>(rows);
}

}  // namespace inflight::engine
