// Products of prompt activations with the look-up format, for every ISA; after lut4.inl. A block of K of two panels becomes bytes (values + 64) and FP32 steps
// once for each kPromptTokens tokens, and the tiles of prompt_tile.inl take these.
#include "kernels/prompt_tile.inl"

struct Lut4Panels {
  const Lut4Weight& w;
  std::int64_t groups;
  std::uint8_t* spread;  // [kTilePanels][kPromptBlock / 4][64]
  float* scales;         // [kTilePanels][kPromptBlock / kLut4Group][16]
  Ints table;

  const char* at(std::int64_t panel, std::int64_t k) const { return reinterpret_cast<const char*>(w.codes) + panel * groups * 128 + k / 8 * 64; }
  static std::int64_t bytes(std::int64_t inputs) { return (inputs + 7) / 8 * 64; }

  void prepare(std::int64_t panel, std::int64_t width, std::int64_t k, std::int64_t inputs, PromptTile& tile) const {
    for (std::int64_t p = 0; p < width; ++p) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(at(panel + p, k));
      std::uint8_t* to = spread + p * kPromptBlock * 16;
      for (std::int64_t i = 0; i < bytes(inputs); i += 64) {
        Ints values[2];
        load_values(from + i, table, values);
        store_ints(to + 2 * i, values[0]);
        store_ints(to + 2 * i + 64, values[1]);
      }
      const Lanes row_scales = load_powers(w.row_exponents + (panel + p) * 16);
      const std::uint8_t* steps = w.steps + ((panel + p) * groups + k / kLut4Group) * 16;
      for (std::int64_t g = 0; g * kLut4Group < inputs; ++g) store_lanes(scales + p * kPromptBlock + g * 16, multiply(load_steps(steps + g * 16), row_scales));
    }
    tile.codes = spread;
    tile.panel_bytes = kPromptBlock * 16;
    tile.scales = reinterpret_cast<const char*>(scales);
    tile.panel_scale_bytes = kPromptBlock * 4;
    tile.scales_fp16 = false;
  }
};

void gemm_lut4_prompt(const Lut4Weight& w, const void* activations, std::int64_t tokens, std::int64_t panel_begin, std::int64_t panel_end, float* y, std::int64_t ldy) {
  alignas(64) std::uint8_t spread[kTilePanels * kPromptBlock * 16];
  alignas(64) float scales[kTilePanels * kPromptBlock];
  const Lut4Panels panels{w, lut4_groups(w.inputs), spread, scales, table16(kLut4Tables.raised)};
  prompt_product<4, 64, true>(PromptLayout(w.inputs, kLut4Group), w.inputs, panels, activations, tokens, panel_begin, panel_end, y, ldy);
}
