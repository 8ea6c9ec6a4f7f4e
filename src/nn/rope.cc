#include "nn/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/nearest.h"

namespace inflight::nn {
namespace {

std::vector<float> base_frequencies(double theta, std::int64_t dim) {
  std::vector<float> inverse(static_cast<std::size_t>(dim / 2));
  for (std::size_t i = 0; i < inverse.size(); ++i)
    inverse[i] = 1.0f / std::pow(static_cast<float>(theta), static_cast<float>(2 * i) / static_cast<float>(dim));
  return inverse;
}

// 0.1 * mscale * ln(factor) + 1: YaRN's attention temperature.
double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// Each frequency by a number of its own (a GGUF file's rope_freqs).
Result<void> divide_by_factors(const JsonView& scaling, std::vector<float>& inverse) {
  const auto list = scaling.object->find("factors");
  if (list == scaling.object->end() || !list->is_array() || list->size() != inverse.size())
    return fail(Code::kCorrupt, "{}: \"factors\" must be a list of {} numbers, one for each pair that is rotated", scaling.where, inverse.size());
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const Json& factor = (*list)[i];
    if (!factor.is_number() || !(factor.get<float>() > 0)) return fail(Code::kCorrupt, "{}: factors[{}] is {}; a number above 0 is needed", scaling.where, i, factor.dump());
    inverse[i] /= factor.get<float>();
  }
  return {};
}

// The keys that each type reads; anything else is refused rather than ignored.
std::vector<std::string_view> keys_of(std::string_view type) {
  std::vector<std::string_view> keys = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  const auto add = [&](std::initializer_list<std::string_view> more) { keys.insert(keys.end(), more); };
  if (type == "linear") add({"factor"});
  if (type == "dynamic") add({"factor", "original_max_position_embeddings"});
  if (type == "llama3") add({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  if (type == "factors") add({"factors"});
  if (type == "yarn") add({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"});
  return keys;
}

}  // namespace

Result<Rope> Rope::parse(const JsonView& config, std::int64_t head_dim, const RopeDefaults& defaults, std::int64_t max_positions) {
  Rope rope;
  rope.max_positions_ = max_positions;

  const Json empty = Json::object();
  const char* const style = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json* nested = config.has(style) ? &(*config.object)[style] : &empty;
  if (!nested->is_object()) return fail(Code::kCorrupt, "{}: \"{}\" must be an object", config.where, style);
  const JsonView scaling{nested, config.where + ": " + style};

  rope.theta_ = TRY(scaling.number_or("rope_theta", TRY(config.number_or("rope_theta", defaults.theta))));
  if (!(rope.theta_ > 0)) return fail(Code::kCorrupt, "{}: rope_theta {} must be above 0", config.where, rope.theta_);
  rope.type_ = TRY(scaling.string_or("rope_type", TRY(scaling.string_or("type", "default"))));

  constexpr std::array<std::string_view, 6> kTypes = {"default", "linear", "dynamic", "yarn", "llama3", "factors"};
  if (std::ranges::find(kTypes, rope.type_) == kTypes.end())
    return fail(Code::kUnsupported, "{}: rope_type \"{}\" is not supported; {}", scaling.where, rope.type_, known_names_hint(rope.type_, kTypes));
  const auto known = keys_of(rope.type_);
  for (const auto& [key, value] : nested->items())
    if (std::ranges::find(known, key) == known.end() && !value.is_null())
      return fail(Code::kUnsupported, "{}: key \"{}\" is not read for rope_type \"{}\"; {}", scaling.where, key, rope.type_, known_names_hint(key, known));

  const double partial = TRY(scaling.number_or("partial_rotary_factor", TRY(config.number_or("partial_rotary_factor", defaults.partial))));
  rope.rotary_dim_ = static_cast<std::int64_t>(static_cast<double>(head_dim) * partial);
  if (!(partial > 0 && partial <= 1) || rope.rotary_dim_ < 2 || rope.rotary_dim_ % 2 != 0)
    return fail(Code::kUnsupported, "{}: head_dim {} x partial_rotary_factor {} gives {} rotary dimensions; an even number of at least 2 is needed", config.where, head_dim, partial, rope.rotary_dim_);

  const std::int64_t dim = rope.rotary_dim_;
  rope.inverse_ = base_frequencies(rope.theta_, dim);
  if (rope.type_ == "default") return rope;
  if (rope.type_ == "factors") {
    TRY(divide_by_factors(scaling, rope.inverse_));
    return rope;
  }

  // At top level it wins; without it the maximum itself is the length the model was trained at.
  const std::int64_t original = TRY(config.integer_or("original_max_position_embeddings", TRY(scaling.integer_or("original_max_position_embeddings", max_positions))));
  if (original <= 0) return fail(Code::kCorrupt, "{}: original_max_position_embeddings {} must be above 0", config.where, original);
  rope.factor_ = rope.type_ == "yarn" && !scaling.has("factor") ? static_cast<double>(max_positions) / static_cast<double>(original) : TRY(scaling.number("factor"));
  if (!(rope.factor_ >= 1)) return fail(Code::kCorrupt, "{}: factor {} must be at least 1", scaling.where, rope.factor_);
  const auto factor = static_cast<float>(rope.factor_);

  if (rope.type_ == "linear") {
    for (float& f : rope.inverse_) f /= factor;
    rope.max_positions_ = static_cast<std::int64_t>(static_cast<double>(max_positions) * rope.factor_);
  } else if (rope.type_ == "dynamic") {
    rope.dynamic_from_ = original;
    // Where the original length is given apart, the maximum is already the scaled one.
    rope.max_positions_ = std::max(max_positions, static_cast<std::int64_t>(static_cast<double>(original) * rope.factor_));
  } else if (rope.type_ == "llama3") {
    const double low = TRY(scaling.number("low_freq_factor")), high = TRY(scaling.number("high_freq_factor"));
    if (!(high > low)) return fail(Code::kCorrupt, "{}: high_freq_factor {} must be above low_freq_factor {}", scaling.where, high, low);
    const double low_wavelength = static_cast<double>(original) / low, high_wavelength = static_cast<double>(original) / high;
    for (float& f : rope.inverse_) {
      const double wavelength = 2 * std::numbers::pi / f;
      if (wavelength < high_wavelength) continue;
      if (wavelength > low_wavelength) {
        f /= factor;
        continue;
      }
      const auto smooth = static_cast<float>((static_cast<double>(original) / wavelength - low) / (high - low));
      f = (1 - smooth) * f / factor + smooth * f;
    }
  } else {  // yarn
    const double beta_fast = TRY(scaling.number_or("beta_fast", 32)), beta_slow = TRY(scaling.number_or("beta_slow", 1));
    const bool truncate = TRY(scaling.boolean_or("truncate", true));
    if (scaling.has("attention_factor")) {
      rope.attention_factor_ = static_cast<float>(TRY(scaling.number("attention_factor")));
    } else {
      const double mscale = TRY(scaling.number_or("mscale", 0)), all_dim = TRY(scaling.number_or("mscale_all_dim", 0));
      rope.attention_factor_ = static_cast<float>(mscale != 0 && all_dim != 0 ? yarn_mscale(rope.factor_, mscale) / yarn_mscale(rope.factor_, all_dim) : yarn_mscale(rope.factor_, 1));
    }
    if (const double all_dim = TRY(scaling.number_or("mscale_all_dim", 0)); all_dim != 0) rope.score_factor_ = std::pow(yarn_mscale(rope.factor_, all_dim), 2);
    // The dimension whose wave turns `rotations` times over the original length.
    const auto correction = [&](double rotations) {
      return static_cast<double>(dim) * std::log(static_cast<double>(original) / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta_));
    };
    double low = correction(beta_fast), high = correction(beta_slow);
    if (truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim - 1));
    if (low == high) high += 0.001;
    for (std::size_t i = 0; i < rope.inverse_.size(); ++i) {
      const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
      const float keep = 1 - ramp;  // share of the original frequency
      rope.inverse_[i] = rope.inverse_[i] / factor * (1 - keep) + rope.inverse_[i] * keep;
    }
    rope.max_positions_ = std::max(max_positions, static_cast<std::int64_t>(static_cast<double>(original) * rope.factor_));
  }
  return rope;
}

std::vector<float> Rope::inverse_frequencies(std::int64_t length) const {
  if (type_ != "dynamic" || length <= dynamic_from_) return inverse_;
  const double stretch = factor_ * static_cast<double>(length) / static_cast<double>(dynamic_from_) - (factor_ - 1);
  return base_frequencies(theta_ * std::pow(stretch, static_cast<double>(rotary_dim_) / static_cast<double>(rotary_dim_ - 2)), rotary_dim_);
}

void Rope::angles(std::int64_t position, std::int64_t length, float* cos, float* sin) const {
  const auto fill = [&](const std::vector<float>& inverse) {
    for (std::size_t i = 0; i < inverse.size(); ++i) {
      const float angle = static_cast<float>(position) * inverse[i];
      cos[i] = std::cos(angle) * attention_factor_;
      sin[i] = std::sin(angle) * attention_factor_;
    }
  };
  if (type_ == "dynamic" && length > dynamic_from_) fill(inverse_frequencies(length));
  else fill(inverse_);
}

}  // namespace inflight::nn
