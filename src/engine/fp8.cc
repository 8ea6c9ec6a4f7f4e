#include "engine/fp8.h"

#include <algorithm>

#include "base/e4m3.h"
#include "engine/calibration.h"
#include "loader/activation_scales.h"
#include "loader/plan.h"
#include "params/points.h"
#include "quant/fp8_formats.h"
#include "quant/matrix_names.h"

namespace inflight::engine {
bool kv_cache_is_fp8(const EngineOptions& options) { return options.kv_cache_dtype == "float8_e4m3" || options.kv_cache_dtype == "fp8"; }

Result<Fp8Scales> find_scales(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const EngineOptions& options) {
  const JsonView config{&checkpoint.config(), checkpoint.config_path()};
  const loader::StoredActivations stored = TRY(loader::stored_activations(config));
  const bool gaudi = options.fp8_target == "gaudi";
  Fp8Scales result{.scales = {}, .declared = stored.scheme, .bound = gaudi ? kGaudiE4m3Max : stored.bound != 0 ? stored.bound : kE4m3Max};
  result.plain_queries = stored.plain_queries && options.fp8_amax.empty();
  if (!options.fp8_amax.empty()) {
    for (const auto& [point, stats] : TRY(read_calibration(options.fp8_amax)).points) result.scales.scale[point] = PointStats::scale(stats.absmax(), result.bound);
  } else {
    result.scales = TRY(loader::read_activation_scales(checkpoint, table, config));
    if (gaudi && stored.bound == kE4m3Max)  // the same largest |x| under a smaller largest code
      for (auto& [point, scale] : result.scales.scale) scale *= kE4m3Max / kGaudiE4m3Max;
  }
  return result;
}

void limit_codes(const EngineOptions& options, quant::ParamStore& store, std::size_t params, std::vector<std::string>& notes) {
  if (options.fp8_target != "gaudi") return;
  std::int64_t changed = 0, matrices = 0;
  for (std::size_t i = 0; i < params; ++i) {
    if (store.vector(i) || !store.matrix(i).format || store.matrix(i).format->codes != quant::Codes::kE4M3) continue;
    const std::int64_t codes = quant::limit_fp8_codes(store.matrix(i), kGaudiE4m3Max);
    changed += codes;
    matrices += codes != 0;
  }
  if (changed != 0) notes.push_back(fmt::format("{} weights of {} matrices were stored with codes above 240 or beside such, and have other codes now (--fp8-target gaudi)", changed, matrices));
}

Result<void> assign_inputs(const params::ParamTable& table, const EngineOptions& options, const Fp8Scales& scales, quant::ParamStore& store) {
  using Scale = quant::Fp8Input::Scale;
  std::string_view kind = options.fp8_activations;
  if (kind == "auto") kind = options.fp8_amax.empty() ? scales.declared : "static";
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    if (store.vector(i)) continue;
    quant::Matrix& w = store.matrix(i);
    if (!w.format || w.format->codes != quant::Codes::kE4M3 || kind == "none") continue;
    w.fp8_input = {.kind = kind == "static" ? Scale::kStatic : Scale::kToken, .bound = scales.bound};
    if (kind != "static") continue;
    const std::string point = params::input_point(table.rows[i]);
    w.fp8_input.scale = scales.scales.of(point);
    if (w.fp8_input.scale == 0) missing.push_back(point);
  }
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  if (!missing.empty())
    return fail(Code::kInvalidArgument, "static FP8 activations need a scale for every FP8 weight, and {} are missing:{}\n  hint: calibrate the model and give --fp8-amax FILE, or use --fp8-activations dynamic or none",
                missing.size(), loader::name_list(missing));
  return {};
}

Result<std::vector<nn::AttentionScales>> attention_scales(const params::ParamTable& table, const EngineOptions& options, std::int64_t layers, const quant::ActivationScales& scales,
                                                          std::vector<std::string>& notes) {
  const bool cache = kv_cache_is_fp8(options);
  if (options.fp8_sdpa && !cache) return fail(Code::kInvalidArgument, "--fp8-sdpa works on an FP8 KV cache; add --kv-cache-dtype float8_e4m3");
  std::vector<nn::AttentionScales> result;
  if (!cache) return result;
  std::vector<std::string> scaled, unscaled;
  for (const params::ParamSpec& row : table.rows) {
    if (row.name != quant::kQkvProj || row.role == params::Role::kVector) continue;
    const auto of = [&](std::string_view point) { return scales.of(fmt::format("{}.{}", row.scope, point)); };
    const float q = of(params::kQueryPoint), k = of(params::kKeyPoint), v = of(params::kValuePoint);
    (k != 0 && v != 0 && (q != 0 || !options.fp8_sdpa) ? scaled : unscaled).push_back(row.scope);
    result.push_back({q == 0 ? 1 : q, k == 0 ? 1 : k, v == 0 ? 1 : v});
  }
  if (static_cast<std::int64_t>(result.size()) != layers)
    return fail(Code::kUnsupported, "--kv-cache-dtype float8_e4m3 is for keys and values of heads; this model caches latents (use auto, bf16 or fp32)");
  if (!scaled.empty() && !unscaled.empty())
    return fail(Code::kInvalidArgument, "{} of {} layers have scales for their KV cache{}, and these do not:{}", scaled.size(), layers, options.fp8_sdpa ? " and queries" : "", loader::name_list(unscaled));
  if (scaled.empty()) notes.push_back("the FP8 KV cache has no scales: keys and values above the largest FP8 number are cut off (calibrate the model and give --fp8-amax FILE)");
  return result;
}

}  // namespace inflight::engine
