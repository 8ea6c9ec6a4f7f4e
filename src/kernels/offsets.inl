// Offsets of weights, for every ISA with a vector vocabulary (dot.h).

void group_sums(const float* x, std::int64_t inputs, std::int64_t group, float* sums) {
  const std::int64_t width = group == 0 ? inputs : group;
  const Lanes one = splat(1.0f);
  for (std::int64_t at = 0; at < inputs; at += width) {
    const std::int64_t stop = at + width < inputs ? at + width : inputs;
    Lanes partial = zeros();
    for (std::int64_t k = at; k < stop; k += 16) partial = fused(stop - k >= 16 ? load_lanes(x + k) : load_some(x + k, stop - k), one, partial);
    float lanes[16], sum = 0;
    store_lanes(lanes, partial);
    for (const float lane : lanes) sum += lane;
    *sums++ = sum;
  }
}

template <int kTokens, int kPanels>
LANES_INLINE void add_offsets_tile(const float* offsets, std::int64_t groups, const float* sums, float* y, std::int64_t ldy) {
  Lanes acc[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t)
    for (int p = 0; p < kPanels; ++p) acc[t][p] = load_lanes(y + t * ldy + p * 16);
  for (std::int64_t g = 0; g < groups; ++g) {
    Lanes offset[kPanels];
    for (int p = 0; p < kPanels; ++p) offset[p] = load_lanes(offsets + (p * groups + g) * 16);
    for (int t = 0; t < kTokens; ++t) {
      const Lanes sum = splat(sums[t * groups + g]);
      for (int p = 0; p < kPanels; ++p) acc[t][p] = fused(offset[p], sum, acc[t][p]);
    }
  }
  for (int t = 0; t < kTokens; ++t)
    for (int p = 0; p < kPanels; ++p) store_lanes(y + t * ldy + p * 16, acc[t][p]);
}

// One token: several panels hide the latency of a chain. More hide each other's, and a panel's offsets stay in the first-level cache for all of them.
void add_offsets(const float* offsets, std::int64_t groups, const float* sums, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  constexpr std::int64_t kTokens = 4, kAlone = 4;
  std::int64_t panel = panel_begin;
  if (tokens == 1)
    for (; panel + kAlone <= panel_end; panel += kAlone) add_offsets_tile<1, kAlone>(offsets + panel * groups * 16, groups, sums, y + panel * 16, ldy);
  for (; panel < panel_end; ++panel) {
    const float* from = offsets + panel * groups * 16;
    std::int64_t t = 0;
    for (; t + kTokens <= tokens; t += kTokens) add_offsets_tile<kTokens, 1>(from, groups, sums + t * groups, y + t * ldy + panel * 16, ldy);
    for (; t < tokens; ++t) add_offsets_tile<1, 1>(from, groups, sums + t * groups, y + t * ldy + panel * 16, ldy);
  }
}
