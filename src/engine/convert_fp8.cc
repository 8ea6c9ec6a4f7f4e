#include "engine/convert_fp8.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/e4m3.h"
#include "base/nearest.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_model.h"
#include "comm/neighbours.h"
#include "engine/calibration.h"
#include "engine/input_moments.h"
#include "engine/open_model.h"
#include "engine/precision_choice.h"
#include "engine/ranks.h"
#include "kernels/dispatch.h"
#include "loader/output_files.h"
#include "loader/plan.h"
#include "params/points.h"
#include "quant/policy.h"

namespace inflight::engine {
namespace {

Result<quant::FormatPolicy> policy_of(const EngineOptions& options, const params::ParamTable& table) {
  quant::FormatPolicy policy = TRY(quant::make_policy(options.quantization, options.lm_head, options.quantization_overrides));
  TRY(policy.set_fp8_target(options.fp8_target));
  policy.settle(table);
  return policy;
}

// Conversion has no slices, however many ranks share the work.
EngineOptions whole(EngineOptions options) {
  options.tensor_parallel_size = options.data_parallel_size = 1;
  options.enable_expert_parallel = options.enable_eplb = false;
  return options;
}

Result<bool> one_of(std::string_view flag, std::string_view value, std::string_view no, std::string_view yes) {
  if (value == no) return false;
  if (value == yes) return true;
  const std::string_view known[] = {no, yes};
  return fail(Code::kInvalidArgument, "unknown {} \"{}\"; {}", flag, value, known_names_hint(value, known));
}

Result<bool> compensates(const Fp8Conversion& conversion, const Calibration& calibration, bool blocks) {
  if (conversion.rounding == "auto") return !blocks && !calibration.windows.empty();
  if (!TRY(one_of("--rounding", conversion.rounding, "nearest", "compensated"))) return false;
  if (blocks) return fail(Code::kInvalidArgument, "--rounding compensated goes with tensor_wise_fp8");
  if (calibration.windows.empty())
    return fail(Code::kInvalidArgument, "--rounding compensated runs the model over the tokens of the calibration, and \"{}\" holds none; `inflight calibrate` makes one that does", conversion.scales);
  return true;
}

// Of the matrices that become FP8, in the order of the table.
std::vector<InputMoments::Point> points_of(const params::ParamTable& table, const quant::FormatPolicy& policy) {
  std::vector<InputMoments::Point> points;
  std::set<std::string> seen;
  for (const params::ParamSpec& row : table.rows)
    if (row.role != params::Role::kVector && !row.derivation && policy.of(row) != nullptr && seen.insert(params::input_point(row)).second) points.push_back({params::input_point(row), row.inputs});
  return points;
}

Result<Fp8Report> convert(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion, const std::string& output_folder, const LoadProgress& progress,
                          std::int64_t max_shard_bytes, comm::Comm* ranks) {
  loader::Fp8Export wanted;
  wanted.ranks = ranks;
  const bool ernie = TRY(one_of("--naming", conversion.naming, "hf", "ernie"));
  wanted.naming = ernie ? loader::Fp8Export::Naming::kPaddle : loader::Fp8Export::Naming::kHuggingFace;
  wanted.expert_channels = conversion.expert_scales == "auto" ? ernie : TRY(one_of("--expert-scales", conversion.expert_scales, "tensor", "channel"));
  wanted.bound = TRY(one_of("--fp8-target", options.fp8_target, "ocp", "gaudi")) ? kGaudiE4m3Max : kE4m3Max;
  wanted.max_shard_bytes = max_shard_bytes;
  if (checkpoint::is_gguf_path(folder)) return fail(Code::kUnsupported, "\"{}\" is a GGUF file, of which no FP8 folder can be made yet; run it as it is, or with --quantization", folder);
  const EngineOptions plain = whole(options);
  const ModelPlan model = TRY(plan_model(folder, plain));
  quant::FormatPolicy policy = TRY(policy_of(options, model.table));
  const loader::Fp8Policy kind = loader::fp8_policy(policy, model.table);
  if (kind == loader::Fp8Policy::kNone || kind == loader::Fp8Policy::kMixed)
    return fail(Code::kInvalidArgument, "--naming {} is for folders of tensor_wise_fp8 or of block_wise_fp8 weights, beside matrices that stay as they are (bf16) and an output head that does", conversion.naming);
  wanted.blocks = kind == loader::Fp8Policy::kBlocks;
  Fp8Report report;
  Windows windows;
  std::unique_ptr<OpenedModel> opened;
  std::unique_ptr<InputMoments> moments;
  if (!conversion.scales.empty()) {
    wanted.activations = true;
    const Calibration calibration = TRY(read_calibration(conversion.scales));
    if (TRY(compensates(conversion, calibration, wanted.blocks))) {
      windows = calibration.windows;
      const EngineOptions as_stored{.compute = options.compute, .threads = options.threads};
      opened = TRY(open_model(folder, as_stored));
      const double share = conversion.plain_share >= 0 ? conversion.plain_share : ernie ? 0 : kPlainShare;
      if (share > 0) {
        EngineOptions quantized = plain;
        quantized.fp8_amax = conversion.scales;
        quantized.fp8_activations = "static";
        if (model.info.value_dim == 0) quantized.kv_cache_dtype = "float8_e4m3";
        const std::unique_ptr<OpenedModel> fp8 = TRY(open_model(folder, quantized));
        const PrecisionMeasure measure = TRY(measure_precision(*opened, *fp8, as_stored, measured_windows(windows), [&] { return !progress || progress(0, 1); }));
        report.plain = choose_plain(measure.matrices, share);
        report.plain_queries = measure.plain_queries();
        EngineOptions chosen = options;  // what the user says of a matrix wins
        chosen.quantization_overrides.clear();
        for (const std::string& name : report.plain) chosen.quantization_overrides.push_back(name + "=bf16");
        chosen.quantization_overrides.insert(chosen.quantization_overrides.end(), options.quantization_overrides.begin(), options.quantization_overrides.end());
        policy = TRY(policy_of(chosen, model.table));
      }
      moments = TRY(InputMoments::create(*opened, as_stored, points_of(model.table, policy), windows));
      wanted.factors = [&](const std::string& point, const std::function<bool()>& go_on) { return moments->factor(point, go_on); };
      for (const auto& window : calibration.windows) report.moment_tokens += static_cast<std::int64_t>(window.size());
    }
    for (const auto& [point, stats] : calibration.points)
      wanted.absmax[point] = conversion.mse ? stats.mse_clip(wanted.bound) : conversion.percentile > 0 ? stats.percentile(conversion.percentile) : stats.absmax();
  }
  const checkpoint::Checkpoint source = TRY(checkpoint::Checkpoint::open(folder));
  const kernels::Kernels* kernels = TRY(kernels::choose());
  int threads = usable_threads();
  if (ranks) threads = std::max(1, threads / std::max(comm::neighbours(*ranks).same_cpus, 1));
  ThreadPool pool(options.threads > 0 ? options.threads : threads);
  const loader::LoadPlan plan = TRY(loader::plan_load(source, model.table, {}, {}, pool.threads()));
  if (conversion.queries != "auto") report.plain_queries = TRY(one_of("--queries", conversion.queries, "fp8", "plain"));
  wanted.plain_queries = report.plain_queries;
  report.written = TRY(loader::export_fp8(source, model.table, plan, policy, wanted, *kernels, pool, output_folder, progress));
  return report;
}

}  // namespace

Result<loader::Fp8Policy> fp8_policy(const std::string& folder, const EngineOptions& options) {
  const ModelPlan model = TRY(plan_model(folder, whole(options)));
  return loader::fp8_policy(TRY(policy_of(options, model.table)), model.table);
}

Result<bool> runs_model(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion) {
  if (conversion.scales.empty()) return false;
  return compensates(conversion, TRY(read_calibration(conversion.scales)), TRY(fp8_policy(folder, options)) == loader::Fp8Policy::kBlocks);
}

Result<Fp8Report> convert_fp8(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion, const std::string& output_folder, const LoadProgress& progress,
                              std::int64_t max_shard_bytes, comm::Comm* ranks) {
  auto report = convert(folder, options, conversion, output_folder, progress, max_shard_bytes, ranks);
  TRY(loader::together(ranks, report ? Result<void>() : std::unexpected(report.error())));
  return report;
}

}  // namespace inflight::engine
