// What calibration learned of activations: for every point of the forward pass (params/points.h) the largest |x|, how |x| is distributed, and the largest |x| of
// each channel. From it follow static FP8 scales: clip / bound, where clip is the maximum, a percentile, or what loses least.
//
//     const Calibration calibration = TRY(read_calibration("scales.safetensors"));
//     const PointStats* q = calibration.find("model.layers.3.self_attn.q_matmul");   // nullptr: not measured
//     const float scale = q->scale(q->absmax(), kE4m3Max);
//
// Forms of files (docs/formats/calibration.md): our own (.safetensors, everything), a text of `<point>.activation_scale<TAB>maximum` lines as FastDeploy writes it,
// and a JSON object {point: maximum}.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace inflight::engine {

// Bins of |x|, the same for every point and run, so that runs merge by addition. An octave [2^e, 2^(e+1)) has 16 bins of equal width; bin 0 is all below 2^-24,
// zero included, the last all from 2^16 on.
struct Bins {
  static constexpr int kPerOctave = 16, kFirstExponent = -24, kEndExponent = 16;
  static constexpr int kCount = (kEndExponent - kFirstExponent) * kPerOctave + 2;

  // Of a finite value.
  static constexpr int of(float value) {
    constexpr std::int32_t kFirst = (127 + kFirstExponent) * kPerOctave;
    const auto at = static_cast<std::int32_t>((std::bit_cast<std::uint32_t>(value) & 0x7fffffffu) >> 19) - kFirst + 1;
    return at < 0 ? 0 : at < kCount ? at : kCount - 1;
  }
  // Where a bin begins; begin(kCount - 1) is where the last does.
  static constexpr float begin(int bin) {
    if (bin == 0) return 0;
    return std::bit_cast<float>(static_cast<std::uint32_t>(bin - 1 + (127 + kFirstExponent) * kPerOctave) << 19);
  }
};

// Where a point's numbers come from; the lower wins when runs are merged.
enum class Origin {
  kSeen,    // tokens that came by
  kForced,  // of an expert that no token was routed to: all tokens were pushed through it
  kOthers,  // of such an expert: what the layer's other experts had
};

struct PointStats {
  float amax = 0;                        // FP32, of what was measured; 0 where all was zero
  std::vector<std::int64_t> histogram;   // values in each bin [Bins::kCount]; empty: unknown
  std::vector<float> channels;           // the largest |x| of each input of a matrix; empty: unknown
  Origin origin = Origin::kSeen;

  std::int64_t values() const;           // in the histogram

  // Clips, in the order in which they are considered. Without a histogram each is the maximum.
  float absmax() const { return amax; }
  // The least value that p percent of all values do not exceed (0 < p <= 100), interpolated within its bin, never above the maximum.
  float percentile(double p) const;
  // What loses least (mean squared error over the histogram) of maximum * 2^(-i / 8), i = 0 to 48, when values are rounded to E4M3 with scale clip / bound.
  float mse_clip(float bound) const;

  // 10 log10(signal / error) of E4M3 with that clip, over values up to `most`; infinity when nothing is lost, NaN without a histogram or signal. A few large values
  // are nearly all of the signal of all: what they do to the others shows with `most` at a percentile.
  double sqnr(float clip, float bound, float most = std::numeric_limits<float>::infinity()) const;
  // clip / bound, and never so small that its reciprocal is not finite: where only zeros were seen any scale is right, and 1 / bound is taken.
  static float scale(float clip, float bound) { return clip > 0 ? std::max(clip / bound, std::numeric_limits<float>::min()) : 1 / bound; }

  // One run more. A better origin replaces a worse one; equals add up. A part that one side lacks is dropped from the sum. kCorrupt: channels differ in number.
  Result<void> merge(const PointStats& other);
};

struct Calibration {
  std::map<std::string, PointStats> points;      // "model.layers.3.self_attn.q_matmul"
  std::map<std::string, std::string> metadata;   // of our own form: "model", "data", "tokens", "prefill_tokens", "decode_tokens", "compute"...
  std::vector<std::vector<std::int32_t>> windows;  // of our own form: the tokens that were measured, runs that saw nothing of each other; conversion runs over them again

  const PointStats* find(std::string_view point) const;
  // Points of `other` are merged or added, its windows follow; token counts add up, names of models and data that differ are listed. kInvalidArgument names the point that does not fit.
  Result<void> merge(const Calibration& other);
  // Experts whose maximum is 0 take maximum and histogram of their layer's other experts together (Origin::kOthers). Returns how many did.
  std::int64_t fill_unseen_experts();
};

// "model.layers.3.mlp" and 7 for "model.layers.3.mlp.experts.7.down_proj"; -1: the point is of no single expert.
struct ExpertPoint {
  std::string_view layer;
  std::int64_t expert = -1;
};
ExpertPoint expert_point(std::string_view point);

// Any of the three forms, told apart by content. Experts that were never seen have numbers afterwards (fill_unseen_experts). kCorrupt: maxima that are negative,
// infinite or no numbers, points that repeat, histograms that contradict their maximum. "s_matmul" is not among the points: attention weights are at most 1.
Result<Calibration> read_calibration(const std::string& path);
// The same of a text or JSON that is in memory; `where` begins every error.
Result<Calibration> parse_calibration_text(std::string_view text, std::string_view where);
Result<Calibration> parse_calibration_json(std::string_view text, std::string_view where);

// "<path>.part", then renamed: a reader sees the old file or the new one.
Result<void> write_calibration(const Calibration& calibration, const std::string& path);
// FastDeploy's text, of maxima. Attention blocks get their "s_matmul" of 1.
Result<void> write_calibration_text(const Calibration& calibration, const std::string& path);

}  // namespace inflight::engine
