#include "engine/convert_fp8.h"

#include <utility>

#include "base/e4m3.h"
#include "base/nearest.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_model.h"
#include "engine/calibration.h"
#include "engine/open_model.h"
#include "kernels/dispatch.h"
#include "loader/plan.h"
#include "quant/policy.h"

namespace inflight::engine {
namespace {

Result<quant::FormatPolicy> policy_of(const EngineOptions& options, const params::ParamTable& table) {
  quant::FormatPolicy policy = TRY(quant::make_policy(options.quantization, options.lm_head, options.quantization_overrides));
  TRY(policy.set_fp8_target(options.fp8_target));
  policy.settle(table);
  return policy;
}

Result<bool> one_of(std::string_view flag, std::string_view value, std::string_view no, std::string_view yes) {
  if (value == no) return false;
  if (value == yes) return true;
  const std::string_view known[] = {no, yes};
  return fail(Code::kInvalidArgument, "unknown {} \"{}\"; {}", flag, value, known_names_hint(value, known));
}

}  // namespace

Result<loader::Fp8Policy> fp8_policy(const std::string& folder, const EngineOptions& options) {
  const ModelPlan model = TRY(plan_model(folder, options));
  return loader::fp8_policy(TRY(policy_of(options, model.table)), model.table);
}

Result<loader::ExportReport> convert_fp8(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion, const std::string& output_folder,
                                         const LoadProgress& progress, std::int64_t max_shard_bytes) {
  loader::Fp8Export wanted;
  const bool ernie = TRY(one_of("--naming", conversion.naming, "hf", "ernie"));
  wanted.naming = ernie ? loader::Fp8Export::Naming::kPaddle : loader::Fp8Export::Naming::kHuggingFace;
  wanted.expert_channels = conversion.expert_scales == "auto" ? ernie : TRY(one_of("--expert-scales", conversion.expert_scales, "tensor", "channel"));
  wanted.bound = TRY(one_of("--fp8-target", options.fp8_target, "ocp", "gaudi")) ? kGaudiE4m3Max : kE4m3Max;
  wanted.max_shard_bytes = max_shard_bytes;
  if (checkpoint::is_gguf_path(folder)) return fail(Code::kUnsupported, "\"{}\" is a GGUF file, of which no FP8 folder can be made yet; run it as it is, or with --quantization", folder);
  EngineOptions plain = options;
  plain.tensor_parallel_size = 1;
  plain.enable_expert_parallel = false;
  const ModelPlan model = TRY(plan_model(folder, plain));
  const quant::FormatPolicy policy = TRY(policy_of(options, model.table));
  const loader::Fp8Policy kind = loader::fp8_policy(policy, model.table);
  if (kind == loader::Fp8Policy::kNone || kind == loader::Fp8Policy::kMixed)
    return fail(Code::kInvalidArgument, "--naming {} is for folders of tensor_wise_fp8 or of block_wise_fp8 weights, beside matrices that stay as they are (bf16) and an output head that does", conversion.naming);
  wanted.blocks = kind == loader::Fp8Policy::kBlocks;
  if (!conversion.scales.empty()) {
    wanted.activations = true;
    for (const auto& [point, stats] : TRY(read_calibration(conversion.scales)).points)
      wanted.absmax[point] = conversion.mse ? stats.mse_clip(wanted.bound) : conversion.percentile > 0 ? stats.percentile(conversion.percentile) : stats.absmax();
  }
  const checkpoint::Checkpoint source = TRY(checkpoint::Checkpoint::open(folder));
  const kernels::Kernels* kernels = TRY(kernels::choose());
  ThreadPool pool(options.threads > 0 ? options.threads : usable_threads());
  const loader::LoadPlan plan = TRY(loader::plan_load(source, model.table, {}, {}, pool.threads()));
  return loader::export_fp8(source, model.table, plan, policy, wanted, *kernels, pool, output_folder, progress);
}

}  // namespace inflight::engine
