// What calibration sees, against maxima that transformers' own modules had (tests/tiny/*/fp8_amax.json), and what it must not see.
#include "engine/collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/read_tensor.h"
#include "engine/open_model.h"
#include "engine/test_forward.h"
#include "params/points.h"

namespace inflight::engine {
namespace {

using Place = nn::Observer::Place;

const std::string kData = INFLIGHT_TEST_DATA;

std::unique_ptr<OpenedModel> open(const std::string& folder, const std::string& compute = "fp32", const std::string& quantization = "", int threads = 2) {
  EngineOptions options;
  options.compute = compute;
  options.quantization = quantization;
  options.threads = threads;
  auto opened = open_model(kData + "/" + folder, options);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

std::vector<std::int32_t> prompt(const std::string& model, int i) {
  const auto ids = checkpoint::read_named_i64(kData + "/tiny/" + model + "/golden.safetensors", "prompt." + std::to_string(i)).value();
  return {ids.begin(), ids.end()};
}

Calibration calibrate(OpenedModel& opened, const std::vector<std::vector<std::int32_t>>& prompts, const ForwardOptions& options = {}) {
  Collector collector(opened.table, *opened.pool);
  opened.runtime->observer = &collector;
  for (const auto& ids : prompts) forward_once(opened, ids, options);
  opened.runtime->observer = nullptr;
  EXPECT_EQ(collector.not_finite(), "");
  return collector.snapshot();
}

class Goldens : public testing::TestWithParam<std::string> {};

TEST_P(Goldens, maxima_are_those_of_the_reference) {
  const auto opened = open("tiny/" + GetParam());
  ASSERT_TRUE(opened);
  const Calibration want = read_calibration(kData + "/tiny/" + GetParam() + "/fp8_amax.json").value();
  Calibration got = calibrate(*opened, {prompt(GetParam(), 0), prompt(GetParam(), 1), prompt(GetParam(), 2)});
  for (const auto& [point, stats] : want.points) {
    const PointStats* ours = got.find(point);
    ASSERT_NE(ours, nullptr) << point;
    EXPECT_NEAR(ours->amax, stats.amax, 1e-3 * static_cast<double>(stats.amax)) << point;
    if (ours->origin == Origin::kSeen) {
      EXPECT_EQ(*std::ranges::max_element(ours->channels), ours->amax) << point;
    }
  }
  // The head is the one point that is not quantized there.
  float final_state = 0;
  for (int i = 0; i < 3; ++i) {
    const auto hidden = checkpoint::read_named_f32(kData + "/tiny/" + GetParam() + "/golden.safetensors", "hidden." + std::to_string(i)).value();
    const std::size_t last = hidden.size() / static_cast<std::size_t>(opened->model->info().layers + 1);
    for (std::size_t k = hidden.size() - last; k < hidden.size(); ++k) final_state = std::max(final_state, std::abs(hidden[k]));
  }
  EXPECT_NEAR(got.find("lm_head")->amax, final_state, 1e-3 * static_cast<double>(final_state));
  EXPECT_EQ(got.points.size(), want.points.size() + 1);
  const models::ModelInfo& info = opened->model->info();
  const auto tokens = static_cast<std::int64_t>(prompt(GetParam(), 0).size() + prompt(GetParam(), 1).size() + prompt(GetParam(), 2).size());
  EXPECT_EQ(got.find("model.layers.0.self_attn.qkv_proj")->values(), tokens * info.hidden);
  EXPECT_EQ(got.find("model.layers.0.self_attn.cachek_matmul")->values(), tokens * info.kv_heads * info.head_dim);
  EXPECT_EQ(got.find("lm_head")->values(), tokens * info.hidden);
}

INSTANTIATE_TEST_SUITE_P(Models, Goldens, testing::Values("tiny-qwen2", "tiny-qwen3", "tiny-ernie4_5-moe"));

TEST(Collector, nothing_depends_on_threads_and_nothing_on_being_watched) {
  const auto one = open("tiny/tiny-ernie4_5-moe", "fp32", "", 1), three = open("tiny/tiny-ernie4_5-moe", "fp32", "", 3);
  ASSERT_TRUE(one && three);
  const auto ids = prompt("tiny-ernie4_5-moe", 2);
  const Calibration a = calibrate(*one, {ids}), b = calibrate(*three, {ids});
  ASSERT_EQ(a.points.size(), b.points.size());
  for (const auto& [point, stats] : a.points) {
    EXPECT_EQ(stats.amax, b.find(point)->amax) << point;
    EXPECT_EQ(stats.histogram, b.find(point)->histogram) << point;
    EXPECT_EQ(stats.channels, b.find(point)->channels) << point;
  }
  const auto plain = forward_once(*three, ids).logits;
  Collector collector(three->table, *three->pool);
  three->runtime->observer = &collector;
  EXPECT_EQ(forward_once(*three, ids).logits, plain);
  collector.begin_forced_pass();
  EXPECT_EQ(forward_once(*three, ids).logits, plain);
}

// A generated token alone takes other roads through attention and experts than a prompt; what is seen is the same.
TEST(Collector, generated_tokens_show_what_prompt_tokens_do) {
  for (const std::string model : {"tiny-qwen3", "tiny-ernie4_5-moe", "tiny-deepseek-v3"}) {
    const auto exact = open("tiny/" + model), rounded = open("tiny/" + model, "auto", "wint8");
    ASSERT_TRUE(exact && rounded);
    const Calibration want = calibrate(*exact, {{17}}), decoded = calibrate(*exact, {{17}}, {.decode = true}), integers = calibrate(*rounded, {{17}}, {.decode = true, .kv_dtype = DType::kBF16});
    for (const auto& [point, stats] : want.points) {
      ASSERT_NE(decoded.find(point), nullptr) << point;
      EXPECT_NEAR(decoded.find(point)->amax, stats.amax, 1e-4 * static_cast<double>(stats.amax)) << model << " " << point;
      EXPECT_EQ(decoded.find(point)->values(), stats.values()) << model << " " << point;
      ASSERT_NE(integers.find(point), nullptr) << point;
      if (expert_point(point).expert < 0) {
        EXPECT_NEAR(integers.find(point)->amax, stats.amax, 0.1 * static_cast<double>(stats.amax)) << model << " " << point;
      }
    }
  }
}

TEST(Collector, latent_attention_shows_the_input_of_every_matrix) {
  const auto opened = open("tiny/tiny-deepseek-v3");
  ASSERT_TRUE(opened);
  const Calibration got = calibrate(*opened, {prompt("tiny-deepseek-v3", 0)});
  for (const std::string name : {"qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj"}) EXPECT_NE(got.find("model.layers.0.self_attn." + name), nullptr) << name;
  EXPECT_EQ(got.find("model.layers.0.self_attn.q_matmul"), nullptr);
}

// Keeps what goes into a layer's experts.
struct Recorder : nn::Observer {
  std::size_t wanted = 0;
  std::vector<float> x;
  void see(std::size_t row, Place, const float* from, std::int64_t ldx, std::int64_t tokens, std::int64_t columns) override {
    if (row != wanted) return;
    for (std::int64_t t = 0; t < tokens; ++t) x.insert(x.end(), from + t * ldx, from + t * ldx + columns);
  }
};

TEST(Collector, unseen_experts_see_all_tokens_in_a_second_pass) {
  const auto opened = open("small-ernie4_5-moe");
  ASSERT_TRUE(opened);
  const std::vector<std::int32_t> ids = {5, 17, 300, 4, 99, 12};
  Collector collector(opened->table, *opened->pool);
  opened->runtime->observer = &collector;
  forward_once(*opened, ids);
  const Calibration first = collector.snapshot();
  const auto coverage = collector.coverage();
  ASSERT_EQ(coverage.size(), 5u);
  std::int64_t unseen = 0;
  for (std::size_t i = 0; i < coverage.size(); ++i) {
    EXPECT_EQ(coverage[i].number, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(coverage[i].experts, 16);
    EXPECT_GE(coverage[i].seen, 2);
    EXPECT_LE(coverage[i].seen, 12);  // six tokens, two experts each
    unseen += coverage[i].experts - coverage[i].seen;
  }
  ASSERT_TRUE(collector.begin_forced_pass());
  forward_once(*opened, ids);
  const Calibration second = collector.snapshot();
  EXPECT_EQ(collector.coverage()[2].seen, coverage[2].seen);

  // Layer 1 by hand.
  Recorder recorder;
  std::map<std::int64_t, std::size_t> up_gate;  // expert: row
  for (std::size_t row = 0; row < opened->table.rows.size(); ++row) {
    const params::ParamSpec& spec = opened->table.rows[row];
    if (spec.scope.starts_with("model.layers.1.mlp.experts.") && spec.name == "up_gate_proj") up_gate[spec.expert] = row;
  }
  recorder.wanted = up_gate.at(0);
  opened->runtime->observer = &recorder;
  forward_once(*opened, ids);
  opened->runtime->observer = nullptr;
  const auto hidden = static_cast<std::size_t>(opened->model->info().hidden);
  ASSERT_EQ(recorder.x.size(), ids.size() * hidden);

  std::int64_t forced = 0, checked = 0;
  for (const auto& [point, stats] : second.points) {
    EXPECT_GT(stats.amax, 0) << point;
    if (stats.origin != Origin::kForced) {
      EXPECT_EQ(stats.origin, Origin::kSeen) << point;
      EXPECT_EQ(stats.histogram, first.find(point)->histogram) << point;  // the second pass adds nothing
      continue;
    }
    ++forced;
    EXPECT_EQ(first.find(point)->origin, Origin::kOthers);
    EXPECT_GT(first.find(point)->amax, 0);
    if (!point.starts_with("model.layers.1.")) continue;
    const quant::Matrix& w = opened->store.matrix(up_gate.at(expert_point(point).expert));
    const std::int64_t intermediate = w.outputs / 2;
    EXPECT_EQ(stats.values(), static_cast<std::int64_t>(ids.size()) * intermediate);
    std::vector<float> gate(hidden + 64), up(hidden + 64);
    double largest = 0;
    for (std::int64_t n = 0; n < intermediate; ++n) {
      w.format->dequantize(w, n, gate.data());
      w.format->dequantize(w, intermediate + n, up.data());
      for (std::size_t t = 0; t < ids.size(); ++t) {
        double g = 0, u = 0;
        for (std::size_t k = 0; k < hidden; ++k) {
          g += static_cast<double>(recorder.x[t * hidden + k]) * static_cast<double>(gate[k]);
          u += static_cast<double>(recorder.x[t * hidden + k]) * static_cast<double>(up[k]);
        }
        largest = std::max(largest, std::abs(g / (1 + std::exp(-g)) * u));
      }
    }
    EXPECT_NEAR(stats.amax, largest, 1e-4 * largest) << point;
    ++checked;
  }
  EXPECT_EQ(forced, unseen);
  EXPECT_GE(checked, 4);
}

TEST(Collector, padding_is_not_seen_and_what_is_not_finite_is_named) {
  const params::ParamTable table{.rows = {{.scope = "model.layers.0.self_attn", .name = "qkv_proj", .pieces = {{"q_proj", 3}}, .inputs = 3}}, .ignored = {}};
  ThreadPool pool(2);
  Collector collector(table, pool);
  const float x[] = {1, -2, 0, NAN, 0.5f, 0, 3, INFINITY, 7, 7, 7, 7};  // two tokens of three numbers, and what lies beyond
  collector.see(0, Place::kKey, x, 4, 2, 3);
  const Calibration got = collector.snapshot();
  ASSERT_EQ(got.points.size(), 1u);
  const PointStats& stats = *got.find("model.layers.0.self_attn.cachek_matmul");
  EXPECT_EQ(stats.amax, 3);
  EXPECT_EQ(stats.values(), 6);
  EXPECT_EQ(stats.histogram[0], 2);
  EXPECT_EQ(stats.histogram[static_cast<std::size_t>(Bins::of(2.0f))], 1);
  EXPECT_EQ(stats.channels, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(collector.not_finite(), "");
  for (const float bad : {NAN, -INFINITY}) {
    Collector other(table, pool);
    other.see(0, Place::kInput, x, 4, 2, 3);
    const float y[] = {1, bad, 1e30f};
    other.see(0, Place::kInput, y, 3, 1, 3);
    EXPECT_EQ(other.not_finite(), "model.layers.0.self_attn.qkv_proj");
    EXPECT_EQ(other.snapshot().find("model.layers.0.self_attn.qkv_proj")->amax, 3);
  }
}

}  // namespace
}  // namespace inflight::engine
