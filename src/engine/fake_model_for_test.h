// A model for tests whose logits are a hash of everything that it reads back through the block tables: ids, positions, arithmetic, rotary lengths.
// A wrong block, a stale one, a missing token or a token in the wrong arithmetic changes every later token.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/dispatch.h"

namespace inflight::engine {

inline std::uint64_t mixed(std::uint64_t x) {  // the finalizer of SplitMix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class FakeModel : public models::Model {
 public:
  static constexpr std::int64_t kVocabulary = 97;
  static constexpr std::int32_t kPoison = 96;  // a prompt that holds it has logits that are not finite
  static constexpr std::int64_t kPositions = 224;
  // head_dim 4 in BF16: each key and each value of a head is one 64-bit word.
  static constexpr std::int64_t kBlockBytes16 = 2 * 2 * 2 * 16 * 8;  // keys and values, layers, heads, tokens, bytes: a block of 16 tokens

  FakeModel() {
    info_.architecture = "FakeForCausalLM";
    info_.layers = 2;
    info_.hidden = 8;
    info_.vocabulary = kVocabulary;
    info_.heads = 4;
    info_.kv_heads = 2;
    info_.head_dim = 4;
    info_.max_positions = kPositions;
  }

  void forward(const nn::Step& step, nn::Runtime&) const override {
    check(step);
    ++steps;
    largest_step = std::max(largest_step, static_cast<std::int64_t>(step.ids.size()));
    for (const nn::Span& span : step.spans)
      for (std::int64_t t = span.first; t < span.first + span.count; ++t) {
        const auto i = static_cast<std::size_t>(t);
        const std::uint64_t arithmetic = t < step.decode_tokens ? 1 : 0;
        const std::uint64_t word = mixed(mixed(static_cast<std::uint64_t>(step.ids[i])) ^ static_cast<std::uint64_t>(step.positions[i])) ^
                                   mixed(arithmetic << 32 | static_cast<std::uint64_t>(span.rope_length));
        each_word(*step.cache, span, step.positions[i], [&](std::byte* at, std::uint64_t part) {
          const std::uint64_t value = (word & ~std::uint64_t{1} << 8) ^ part << 9 ^ static_cast<std::uint64_t>(step.ids[i] == kPoison && arithmetic == 0 ? 256 : 0);
          std::memcpy(at, &value, 8);
        });
      }
    std::size_t span_index = 0;
    for (std::size_t row = 0; row < step.logit_rows.size(); ++row) {
      const std::int64_t t = step.logit_rows[row];
      while (t >= step.spans[span_index].first + step.spans[span_index].count) ++span_index;
      std::uint64_t hash = 0;
      bool poisoned = false;
      for (std::int32_t position = 0; position <= step.positions[static_cast<std::size_t>(t)]; ++position)
        each_word(*step.cache, step.spans[span_index], position, [&](std::byte* at, std::uint64_t) {
          std::uint64_t value;
          std::memcpy(&value, at, 8);
          hash = mixed(hash ^ value);
          poisoned = poisoned || (value & 256) != 0;
        });
      float* logits = step.logits + static_cast<std::int64_t>(row) * logits_stride();
      for (std::int64_t i = 0; i < logits_stride(); ++i)  // padding is noise too large to be chosen by right
        logits[i] = i < kVocabulary ? static_cast<float>(mixed(hash + static_cast<std::uint64_t>(i)) >> 40) * 0x1p-21f - 4.0f : 1e9f;
      if (poisoned) logits[3] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  mutable std::int64_t steps = 0;
  mutable std::int64_t largest_step = 0;

 private:
  template <class Body>
  void each_word(const nn::KvCache& cache, const nn::Span& span, std::int32_t position, Body&& body) const {
    const std::int64_t block_size = cache.shape().block_size, block = span.block_table[position / block_size];
    ASSERT_GE(block, 0);
    ASSERT_LT(block, cache.blocks());
    const std::int64_t at = block * cache.block_stride() + position % block_size * 8;
    std::uint64_t part = 0;
    for (std::int64_t layer = 0; layer < info_.layers; ++layer)
      for (std::int64_t head = 0; head < info_.kv_heads; ++head) {
        body(cache.keys(layer, head) + at, part++);
        body(cache.values(layer, head) + at, part++);
      }
  }

  // What nn/step.h promises.
  void check(const nn::Step& step) const {
    const auto tokens = static_cast<std::int64_t>(step.ids.size());
    ASSERT_GT(tokens, 0);
    ASSERT_EQ(step.positions.size(), step.ids.size());
    ASSERT_LE(step.decode_tokens, tokens);
    std::int64_t next = 0;
    for (const nn::Span& span : step.spans) {
      ASSERT_EQ(span.first, next);
      ASSERT_GT(span.count, 0);
      next += span.count;
      const bool decode = span.first < step.decode_tokens;
      ASSERT_LE(decode ? next : 0, step.decode_tokens) << "a span in both arithmetics";
      ASSERT_EQ(span.rope_length == 0, decode);
      for (std::int64_t t = span.first + 1; t < next; ++t)
        ASSERT_EQ(step.positions[static_cast<std::size_t>(t)], step.positions[static_cast<std::size_t>(t - 1)] + 1);
    }
    ASSERT_EQ(next, tokens);
    for (const std::int32_t id : step.ids) ASSERT_TRUE(id >= 0 && id < kVocabulary);
    for (std::size_t i = 0; i < step.logit_rows.size(); ++i) {
      ASSERT_LT(i == 0 ? -1 : step.logit_rows[i - 1], step.logit_rows[i]);
      ASSERT_LT(step.logit_rows[i], tokens);
    }
  }
};

inline std::unique_ptr<OpenedModel> open_fake(int threads = 1) {
  auto opened = std::make_unique<OpenedModel>();
  opened->model = std::make_unique<FakeModel>();
  opened->pool = std::make_unique<ThreadPool>(threads);
  opened->runtime = std::make_unique<nn::Runtime>();
  opened->runtime->kernels = kernels::find("scalar").value();
  opened->runtime->pool = opened->pool.get();
  return opened;
}

inline EngineOptions fake_options(std::int64_t blocks = 1024) {
  EngineOptions options;
  options.block_size = 16;
  options.kv_cache_bytes = blocks * FakeModel::kBlockBytes16;
  return options;
}

struct Answer {
  std::vector<std::int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  bool operator==(const Answer&) const = default;
};

inline void collect(const std::vector<Event>& events, std::map<RequestId, Answer>& answers) {
  for (const Event& event : events) {
    Answer& answer = answers[event.request];
    EXPECT_EQ(answer.finish, FinishReason::kNone) << "an event after the end of request " << event.request;
    if (event.token) answer.tokens.push_back(*event.token);
    answer.finish = event.finish;
    answer.error = event.error;
  }
}

// Steps until nothing is left to do.
inline std::map<RequestId, Answer> drain(Engine& engine) {
  std::map<RequestId, Answer> answers;
  for (int step = 0; engine.has_work(); ++step) {
    if (step > 200000) {
      ADD_FAILURE() << "no end in sight";
      break;
    }
    collect(engine.step(), answers);
  }
  return answers;
}

}  // namespace inflight::engine
