// For tests: greedy answers of an engine beside those of the reference.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/read_tensor.h"
#include "engine/engine.h"
#include "engine/fake_model_for_test.h"

namespace inflight::engine {

// All golden prompts in one batch, continued as the reference did, up to the first narrow margin. Returns how many tokens were compared.
inline std::size_t expect_greedy(std::unique_ptr<OpenedModel> opened, EngineOptions options, const std::string& golden) {
  options.kv_cache_bytes = 1 << 24;
  options.max_num_batched_tokens = 64;
  auto engine = Engine::create(std::move(opened), options);
  EXPECT_TRUE(engine) << engine.error().message;
  if (!engine) return 0;
  std::vector<RequestId> ids;
  for (int i = 0; i < 8; ++i) {
    const auto prompt = checkpoint::read_named_i64(golden, fmt::format("prompt.{}", i));
    if (!prompt) break;
    Request request{.prompt = {prompt->begin(), prompt->end()}, .sampling = {.temperature = 0}, .stop_ids = {}};
    request.sampling.max_tokens = 16;
    ids.push_back((*engine)->submit(request).value());
  }
  const auto answers = drain(**engine);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Where rotation depends on how long a sequence is, cached keys stay as they were.
    const std::string kind = checkpoint::read_named_i64(golden, fmt::format("greedy_cached.{}", i)) ? "greedy_cached" : "greedy";
    const auto greedy = checkpoint::read_named_i64(golden, fmt::format("{}.{}", kind, i)).value();
    const auto margin = checkpoint::read_named_f32(golden, fmt::format("{}_margin.{}", kind, i)).value();
    const auto& tokens = answers.at(ids[i]).tokens;
    for (std::size_t step = 0; step < tokens.size() && margin[step] >= 0.01f; ++step, ++compared) {
      EXPECT_EQ(tokens[step], greedy[step]) << "prompt " << i << ", step " << step;
      if (tokens[step] != greedy[step]) return 0;
    }
  }
  return compared;
}

}  // namespace inflight::engine
