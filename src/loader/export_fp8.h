// Writing a checkpoint with FP8 weights under other programs' names, from the checkpoint itself: parameters are read, quantized and written one after the other,
// so that memory holds one of them and not the model. Names, shapes and conventions: docs/formats/tensor_wise_fp8.md.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "loader/export.h"
#include "loader/load.h"
#include "params/param_spec.h"
#include "quant/compensated_rounding.h"
#include "quant/policy.h"

namespace inflight::loader {

// What the weights of matrices that take a point (params/points.h) are rounded with; nullptr: each to the nearest. go_on may be asked now and then; false: kCancelled.
// Asked for in the order of the table; good until the next call.
using RoundingFactors = std::function<Result<const quant::RoundingFactor*>(const std::string& point, const std::function<bool()>& go_on)>;

struct Fp8Export {
  enum class Naming {
    kHuggingFace,   // compressed-tensors, or with blocks DeepSeek's names: matrices [outputs, inputs], scales FP32
    kPaddle,        // FastDeploy's: matrices [inputs, outputs], q, k, v and gate, up fused; scales BF16
  };
  Naming naming = Naming::kHuggingFace;
  bool blocks = false;            // a scale for 128 x 128 weights; kHuggingFace, without activations
  bool expert_channels = false;   // routed experts have a scale an output, not a matrix
  float bound = 448;              // the largest code: 448 or 240
  bool activations = false;       // static scales of activations are written
  std::map<std::string, float, std::less<>> absmax;  // the largest |x| (or where it is cut) by point; FP8 scales are absmax / bound; 0: only zeros were seen, as if 1
  std::int64_t max_shard_bytes = std::int64_t{5'000'000'000};
  comm::Comm* ranks = nullptr;    // that write one folder together, each with the same arguments; nullptr: this process alone
  RoundingFactors factors = {};   // none: every weight to the nearest
  bool plain_queries = false;     // config.json asks for attention that rounds neither queries nor probabilities; kHuggingFace
};

// Whether the policy makes the table's matrices FP8 and nothing else: kNone where none is, kMixed where other formats (or FP8 of two kinds, or an FP8 head) are beside.
enum class Fp8Policy { kNone, kTensors, kBlocks, kMixed };
Fp8Policy fp8_policy(const quant::FormatPolicy& policy, const params::ParamTable& table);

// Matrices that `policy` makes FP8 are converted; all else keeps its numbers and type. plan: of the whole table, as stored (or FP32).
// The output folder appears complete or not at all. kInvalidArgument: points without absmax (named), a naming that cannot say what is asked for.
// kUnsupported: a checkpoint of quantized numbers that would have to stay, a model whose fused matrices FastDeploy has no names for.
Result<ExportReport> export_fp8(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const LoadPlan& plan, const quant::FormatPolicy& policy,
                                const Fp8Export& options, const quant::Kernels& kernels, ThreadPool& pool, const std::string& output_folder, const Progress& progress = {});

}  // namespace inflight::loader
