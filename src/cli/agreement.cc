#include "cli/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/json.h"

namespace inflight::cli {
namespace {

// FNV-1a: the same number on every machine.
std::string hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", value);
}

}  // namespace

Facts facts_of(const engine::EngineOptions& options) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{"--quantization", options.quantization},
          {"--quantization-override", fmt::format("{}", fmt::join(options.quantization_overrides, " "))},
          {"--lm-head", options.lm_head},
          {"--fp8-target", options.fp8_target},
          {"--fp8-activations", options.fp8_activations},
          {"--fp8-amax", options.fp8_amax},
          {"--fp8-sdpa", number(options.fp8_sdpa)},
          {"--load-choices", options.load_choices},
          {"--compute", options.compute},
          {"--kv-cache-dtype", options.kv_cache_dtype},
          {"--tensor-parallel-size", number(options.tensor_parallel_size)},
          {"--data-parallel-size", number(options.data_parallel_size)},
          {"--enable-expert-parallel", number(options.enable_expert_parallel)},
          {"--enable-eplb", number(options.enable_eplb)},
          {"--redundant-experts", number(options.redundant_experts)},
          {"--eplb-interval", number(options.eplb_interval)},
          {"--max-model-len", number(options.max_model_len)},
          {"--max-num-seqs", number(options.max_num_seqs)},
          {"--max-num-batched-tokens", number(options.max_num_batched_tokens)},
          {"--block-size", number(options.block_size)}};
}

Facts facts_of(const checkpoint::Checkpoint& checkpoint) {
  Facts facts = {{"config.json", hash(checkpoint.config().dump(-1, ' ', false, Json::error_handler_t::replace))},
                 {"size of the checkpoint", fmt::format("{} tensors, {} bytes", checkpoint.tensors().size(), checkpoint.data_bytes())}};
  std::vector<std::string> tables(checkpoint.shards().size());
  for (const checkpoint::Tensor& tensor : checkpoint.tensors())
    tables[static_cast<std::size_t>(tensor.shard)] += fmt::format("{} {} {} {} {}\n", tensor.info.name, static_cast<int>(tensor.info.dtype), fmt::join(tensor.info.shape, "x"), tensor.info.begin, tensor.info.end);
  for (std::size_t i = 0; i < tables.size(); ++i)
    facts.emplace_back(fmt::format("tensor table of {}", std::filesystem::path(checkpoint.shards()[i].path()).filename().string()), hash(tables[i]));
  return facts;
}

}  // namespace inflight::cli
