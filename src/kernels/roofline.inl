// Dot products whose operands stay in registers: enough independent chains to hide the latency of two units.

constexpr int kChains = 12;

// Returns the steps done.
template <class Register, class Step>
LANES_INLINE double chains(std::int64_t iterations, Register by, Step step) {
  Register sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = by;
  for (std::int64_t i = 0; i < iterations; ++i)
    for (int c = 0; c < kChains; ++c) sums[c] = step(sums[c], by);
  for (int c = 0; c < kChains; ++c) asm volatile("" : : "v"(sums[c]));  // keeps them computed
  return static_cast<double>(kChains) * static_cast<double>(iterations);
}
