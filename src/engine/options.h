// What a user can choose when opening a model. Names follow the command line.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace inflight::engine {

struct EngineOptions {
  std::string quantization;                 // "" : as stored; else bf16, wint8, wint4, wint4-g128, ... or a mix_quant JSON object
  std::vector<std::string> quantization_overrides;  // "pattern=format" each, the last that matches a weight's name wins
  std::string lm_head = "auto";             // auto, bf16, wint8, ...
  std::string fp8_target = "ocp";           // ocp: E4M3 codes up to 448; gaudi: up to 240
  std::string fp8_activations = "auto";     // of FP8 weights. auto: as the checkpoint says, or static where fp8_amax has scales; static, dynamic (a scale a token), none
  std::string fp8_amax;                     // a calibration file, whose scales win over the checkpoint's; "": none
  bool fp8_sdpa = false;                    // attention on E4M3 queries, keys, probabilities and values; with an E4M3 KV cache
  std::string load_choices = "default_v1";  // default_v1 (stream and quantize in flight) or default (all of it in memory, then quantize)
  std::string compute = "auto";             // auto, fp32, bf16, int8
  std::string kv_cache_dtype = "auto";      // auto (fp32 under compute fp32, else bf16), bf16, fp32, float8_e4m3
  int tensor_parallel_size = 1;             // ranks that share each matrix
  int data_parallel_size = 1;               // groups of tensor_parallel_size ranks, each with its own sequences; experts are spread over all
  bool enable_expert_parallel = false;      // whole experts are spread over the ranks instead of parts of each
  bool enable_eplb = false;                 // experts' loads are counted and replicas placed to balance them
  int redundant_experts = 0;                // replicas a layer, beside one of each expert
  int eplb_interval = 0;                    // steps from one placement to the next; 0: when Engine::rebalance_experts() is called
  int threads = 0;                          // 0: min(affinity, cgroup quota)
  std::int64_t max_model_len = 0;           // tokens of one sequence; 0: what the model promises and memory holds
  std::int64_t max_num_seqs = 32;           // sequences in one step
  std::int64_t max_num_batched_tokens = 512;  // tokens in one step (prompts are cut into chunks to fit)
  std::int64_t block_size = 64;             // tokens of a KV block, a multiple of 16
  std::int64_t kv_cache_bytes = 0;          // 0: from free memory and the cgroup limit
};

// Called from the loading thread with bytes of the checkpoint done and in all. false ends loading with kCancelled.
using LoadProgress = std::function<bool(std::int64_t done, std::int64_t total)>;

}  // namespace inflight::engine
