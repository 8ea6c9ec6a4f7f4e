// The exponential of all vector kernels, against the vocabulary of isa/<isa>/vec.h. Included in a nameless namespace.

// e^x with a relative error under 1.2e-7 from -87 to 88, subnormal results included below; 0 under -103.98, infinity over 88.73; NaN stays NaN.
// x = n ln 2 + r with ln 2 in two parts (the first has 16 bits, so n * kLn2High is exact); e^r = 1 + r + r^2 p(r), where p interpolates at the
// Chebyshev nodes of |r| <= ln(2) / 2 and leaves 1.0e-8.
inline V exp(V x) {
  constexpr float kLog2E = 0x1.715476p+0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  const V bounded = min(set1(89), max(set1(-104), x));
  const V n = round(mul(bounded, set1(kLog2E)));
  const V r = fnma(n, set1(kLn2Low), fnma(n, set1(kLn2High), bounded));
  V p = set1(0x1.6d10fcp-10f);
  p = fma(p, r, set1(0x1.120b62p-7f));
  p = fma(p, r, set1(0x1.55551ap-5f));
  p = fma(p, r, set1(0x1.5554dep-3f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, mul(r, r), r);
  return times_power_of_two(add(p, set1(1)), n);
}
