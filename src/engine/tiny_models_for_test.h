// For tests: the checkpoints under tests/tiny, and what several ranks can do with each.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

namespace inflight::engine {

inline std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

struct TinyModel {
  std::string name;
  std::vector<int> ranks = {1, 2, 4};  // counts of tensor-parallel ranks that its sizes allow, of 1 to 16, whether experts are whole or cut
  std::string refused = "o_proj.weight: 64 inputs in units of 16";  // what stands in the way of others: a part of the message
  std::string golden = {};             // folder of its reference; "": its own
  std::string reference() const { return tiny(golden.empty() ? name : golden) + "/golden.safetensors"; }
  bool cut() const { return ranks.size() > 1; }
};

// Every folder of tests/tiny; ranks_test.cc holds the list to that. Heads decide: 4 of them, or 5.
inline const std::vector<TinyModel>& tiny_models() {
  static const std::vector<TinyModel> models = {
      {.name = "tiny-deepseek-v2", .ranks = {1}, .refused = "o_proj.weight: 100 inputs in units of 20"},  // 5 heads, and 48 channels of an expert
      {.name = "tiny-deepseek-v2-lite"},
      {.name = "tiny-deepseek-v3", .refused = "o_proj.weight: 96 inputs in units of 24"},
      {.name = "tiny-ernie4_5"},
      {.name = "tiny-ernie4_5-moe"},
      {.name = "tiny-ernie4_5-moe-paddle", .golden = "tiny-ernie4_5-moe"},
      {.name = "tiny-glm4-moe", .refused = "o_proj.weight: 128 inputs in units of 32"},
      {.name = "tiny-llama"},
      {.name = "tiny-llama-dynamic"},
      {.name = "tiny-llama-linear"},
      {.name = "tiny-llama-odd", .refused = "o_proj.weight: 96 inputs in units of 24"},
      {.name = "tiny-llama-yarn", .refused = "o_proj.weight: 128 inputs in units of 32"},
      {.name = "tiny-qwen2"},
      {.name = "tiny-qwen2-moe"},
      {.name = "tiny-qwen2-sliding"},
      {.name = "tiny-qwen3", .refused = "o_proj.weight: 128 inputs in units of 32"},
      {.name = "tiny-qwen3-moe", .refused = "o_proj.weight: 128 inputs in units of 32"},
  };
  return models;
}

inline const TinyModel& tiny_model(const std::string& name) { return *std::ranges::find(tiny_models(), name, &TinyModel::name); }

// Names of those that several tensor-parallel ranks can share, or of all.
inline std::vector<std::string> tiny_names(bool cut = true) {
  std::vector<std::string> names;
  for (const TinyModel& model : tiny_models())
    if (model.cut() || !cut) names.push_back(model.name);
  return names;
}

inline bool has(const std::vector<int>& counts, int n) { return std::ranges::find(counts, n) != counts.end(); }

// A name that gtest takes.
inline std::string test_label(std::string text) {
  std::ranges::replace(text, '-', '_');
  return text;
}

}  // namespace inflight::engine
