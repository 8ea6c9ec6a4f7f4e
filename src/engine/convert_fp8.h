// From a checkpoint and a calibration to a folder of FP8 weights that FastDeploy, vLLM and this program load.
#pragma once
#include <string>

#include "base/result.h"
#include "engine/options.h"
#include "loader/export.h"
#include "loader/export_fp8.h"

namespace inflight::engine {

struct Fp8Conversion {
  std::string scales;                 // a calibration file (calibration.h); "": activations have no static scales
  std::string naming;                 // "hf" or "ernie"
  std::string expert_scales = "auto"; // "tensor", "channel"; "auto": channel with ernie's names, else tensor
  double percentile = 0;              // where activations are cut: at this percentile; 0: at their maximum
  bool mse = false;                   // where that loses least
};

// What options.quantization (with its overrides and --lm-head) makes of the model's matrices. Errors are those of plan_model().
Result<loader::Fp8Policy> fp8_policy(const std::string& folder, const EngineOptions& options);

// options: quantization, overrides, fp8_target and threads. Memory: about one matrix in FP32, or 256 MB of smaller ones.
// Errors: see loader::export_fp8(); kInvalidArgument also where the policy is not FP8 alone.
Result<loader::ExportReport> convert_fp8(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion, const std::string& output_folder,
                                         const LoadProgress& progress = {}, std::int64_t max_shard_bytes = std::int64_t{5'000'000'000});

}  // namespace inflight::engine
