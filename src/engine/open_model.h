// Opening a model: folder -> config -> declarations -> plan -> weights in memory.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "comm/comm.h"
#include "engine/options.h"
#include "loader/report.h"
#include "models/model.h"
#include "nn/runtime.h"
#include "params/param_spec.h"
#include "quant/policy.h"
#include "quant/store.h"

namespace inflight::engine {

class Leader;
class ExpertMove;

// A model whose weights are in memory, ready for forward(). The KV cache is not part of it.
struct OpenedModel {
  std::string folder;
  Json config;                                  // config.json
  std::unique_ptr<Json> generation_config;      // nullptr: the file does not exist
  std::vector<std::int32_t> config_stop_ids;    // eos_token_id of config.json and generation_config.json, integers or lists
  std::string quantization;                     // name of the format in effect, "bf16" when as stored
  params::ParamTable table;                     // every declared parameter
  quant::ParamPlan plan;                        // of each: format, bytes
  quant::ParamStore store;                      // their memory
  std::unique_ptr<models::Model> model;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<nn::Runtime> runtime;         // kernels, pool, arithmetic, workspace: what forward() needs
  std::shared_ptr<comm::Comm> ranks;            // nullptr: one rank
  params::Topology topology;                    // of this rank
  EngineOptions options;
  quant::FormatPolicy policy;                   // what the weights were quantized by
  std::vector<std::vector<std::int64_t>> expert_tokens;  // with enable_eplb: what Runtime::expert_tokens counts
  std::shared_ptr<ExpertMove> expert_move;      // under way to another placement; nullptr: none
  std::shared_ptr<comm::Comm> tensor_ranks;     // the part of `ranks` that shares each matrix; nullptr: all of them
  std::int32_t number = 0;                      // which of rank 0's models this is, the same on all ranks
  std::shared_ptr<Leader> leader;               // on rank 0 of several: what forward() and KV caches tell the others through
  std::vector<int> owners;                      // opened by open_share(): the rank that has each parameter
  loader::LoadReport report;
  std::vector<std::string> notes;               // beside those of the model
};

// What one rank would hold and read.
struct RankPlan {
  std::int64_t weight_bytes = 0;
  std::int64_t source_bytes = 0;
  std::int64_t staging_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;
};

// What `inspect` prints, known before any weight is read.
struct ModelPlan {
  std::string folder;
  Json config;
  models::ModelInfo info;
  params::ParamTable table;
  quant::ParamPlan plan;                        // per parameter: format, bytes; all of it, as one rank holds it
  std::vector<RankPlan> ranks;                  // tensor_parallel_size * data_parallel_size of them
  std::vector<std::string> ignored;             // checkpoint tensors that a listed rule ignores, with the rule
  std::vector<std::string> notes;
};

// BF16 or F32: what --kv-cache-dtype means under the chosen --compute.
Result<DType> kv_cache_dtype(const EngineOptions& options);

// `folder` must be a folder (see checkpoint/model_folder.h). All checks are made before any data is read, memory for the plan included.
Result<ModelPlan> plan_model(const std::string& folder, const EngineOptions& options);
// ranks: the group of data_parallel_size * tensor_parallel_size ranks that open the same folder with the same options; nullptr: one rank. On rank 0 the result drives the others (ranks.h).
Result<std::unique_ptr<OpenedModel>> open_model(const std::string& folder, const EngineOptions& options, const LoadProgress& progress = {}, std::shared_ptr<comm::Comm> ranks = nullptr);

// For work that is dealt out over ranks by parameters rather than by slices of them (conversion): every rank has the parameters that `owners` gives it, whole, and of the others formats and
// whether their scales stayed FP32. The result runs nothing. A collective; an error of any rank is every rank's.
Result<std::unique_ptr<OpenedModel>> open_share(const std::string& folder, const EngineOptions& options, const LoadProgress& progress, std::shared_ptr<comm::Comm> ranks);

}  // namespace inflight::engine
