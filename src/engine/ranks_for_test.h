// For tests: ranks that are threads. Rank 0 is the calling thread.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/threads.h"
#include "engine/open_model.h"
#include "engine/ranks.h"
#include "engine/test_forward.h"

namespace inflight::engine {

// body(comm, rank) on n threads; the results of all.
template <class Body>
auto run_ranks(int n, Body&& body) {
  auto ranks = comm::thread_ranks(n);
  std::vector<decltype(body(std::shared_ptr<comm::Comm>(), 0))> results(static_cast<std::size_t>(n));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] { results[static_cast<std::size_t>(rank)] = body(std::shared_ptr<comm::Comm>(std::move(ranks[static_cast<std::size_t>(rank)])), rank); });
  threads.clear();
  return results;
}

// A model on n ranks, of which this thread has rank 0's end. The others follow until it goes.
class RankedModel {
 public:
  // followed(opened, rank): what a follower does to its model before it follows. hosts: of each rank; {}: all on one.
  RankedModel(int n, const std::string& folder, const EngineOptions& options, const std::function<void(OpenedModel&, int)>& followed = {}, const std::vector<int>& hosts = {})
      : outcomes_(static_cast<std::size_t>(n)) {
    auto ranks = hosts.empty() ? comm::thread_ranks(n) : comm::thread_ranks(hosts);
    for (int rank = 1; rank < n; ++rank)
      followers_.emplace_back([=, this, comm = std::shared_ptr<comm::Comm>(std::move(ranks[static_cast<std::size_t>(rank)]))]() mutable {
        auto own = open_model(folder, options, {}, std::move(comm));
        if (own && followed) followed(**own, rank);
        outcomes_[static_cast<std::size_t>(rank)] = own ? follow(**own) : std::unexpected(own.error());
      });
    opened = open_model(folder, options, {}, std::shared_ptr<comm::Comm>(std::move(ranks[0])));
    if (!opened) outcomes_[0] = std::unexpected(opened.error());
  }
  ~RankedModel() { end(); }

  Result<std::unique_ptr<OpenedModel>> opened;

  // Drops rank 0's model, unless it was moved away and dropped; what became of each rank.
  const std::vector<Result<void>>& end() {
    if (opened) opened->reset();
    followers_.clear();
    return outcomes_;
  }

 private:
  std::vector<Result<void>> outcomes_;
  std::vector<std::jthread> followers_;
};

// A model on so many tensor-parallel ranks in FP32, one thread each.
inline EngineOptions ranked_options(int ranks, const std::string& quantization = "", bool expert_parallel = false) {
  EngineOptions options;
  options.quantization = quantization;
  options.fp8_activations = "none";
  options.enable_expert_parallel = expert_parallel;
  options.lm_head = "bf16";
  options.compute = "fp32";
  options.threads = 1;
  options.tensor_parallel_size = ranks;
  return options;
}

// Logits of one step, without the padding of their rows: [prompt, vocabulary].
inline std::vector<float> logits_of(OpenedModel& opened, const std::vector<std::int64_t>& prompt, bool decode = false, DType cache = DType::kF32) {
  const std::int64_t stride = opened.model->logits_stride(), vocabulary = opened.model->info().vocabulary;
  const auto result = forward_once(opened, {prompt.begin(), prompt.end()}, {.decode = decode, .kv_dtype = cache}).logits;
  std::vector<float> logits;
  for (std::size_t t = 0; t < prompt.size(); ++t) {
    const auto row = result.begin() + static_cast<std::ptrdiff_t>(t) * stride;
    logits.insert(logits.end(), row, row + vocabulary);
  }
  return logits;
}

inline void expect_fine(RankedModel& model) {
  for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
}

}  // namespace inflight::engine
