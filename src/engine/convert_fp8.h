// From a checkpoint and a calibration to a folder of FP8 weights that FastDeploy, vLLM and this program load.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/options.h"
#include "loader/export.h"
#include "loader/export_fp8.h"

namespace inflight::engine {

inline constexpr double kPlainShare = 0.2;
inline constexpr std::int64_t kFp8ShardBytes = 5'000'000'000;

struct Fp8Conversion {
  std::string scales;                 // a calibration file (calibration.h); "": activations have no static scales
  std::string naming;                 // "hf" or "ernie"
  std::string expert_scales = "auto"; // "tensor", "channel"; "auto": channel with ernie's names, else tensor
  double percentile = 0;              // where activations are cut: at this percentile; 0: at their maximum
  bool mse = false;                   // where that loses least
  std::string rounding = "auto";      // of weights: "compensated" (with the second moments of their inputs, over the calibration's tokens), "nearest"; "auto": compensated where
                                      // the calibration holds tokens and scales are not of blocks
  std::string queries = "auto";       // "fp8", "plain"; "auto": as measured where plain_share is measured, else fp8
  double plain_share = -1;            // of the weights, that stays as stored where it hurts most (precision_choice.h); below 0: kPlainShare where weights are compensated and Hugging Face's names
                                      // written, else none
};

struct Fp8Report {
  loader::ExportReport written;
  std::int64_t moment_tokens = 0;     // that weights were rounded with; 0: each to the nearest
  bool plain_queries = false;         // attention is to leave queries as they are, because that was measured
  std::vector<std::string> plain;     // matrices that stay as stored because they were measured
};

// What options.quantization (with its overrides and --lm-head) makes of the model's matrices. Errors are those of plan_model().
Result<loader::Fp8Policy> fp8_policy(const std::string& folder, const EngineOptions& options);

// Whether these make the model look at the calibration's tokens, which one rank does: with compensated rounding. Errors are those of convert_fp8().
Result<bool> runs_model(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion);

// ranks: that all convert the same folder with the same arguments and write one folder together; then runs_model() must be false. An error of one is that of all.
// options: quantization, overrides, fp8_target, compute and threads. Memory: about one matrix in FP32, or 256 MB of smaller ones; where weights are compensated also the model as stored with
// moments of 1 GB, and before that, where the share is above 0, the model as FP8 beside it.
// Errors: see loader::export_fp8(); kInvalidArgument also where the policy is not FP8 alone.
Result<Fp8Report> convert_fp8(const std::string& folder, const EngineOptions& options, const Fp8Conversion& conversion, const std::string& output_folder,
                                         const LoadProgress& progress = {}, std::int64_t max_shard_bytes = kFp8ShardBytes, comm::Comm* ranks = nullptr);

}  // namespace inflight::engine
