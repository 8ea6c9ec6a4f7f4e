// What conversion makes of a calibration that holds its tokens: weights whose errors make up for one another, matrices that stay as they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "engine/calibration.h"
#include "engine/convert_fp8.h"
#include "engine/input_moments.h"
#include "engine/open_model.h"
#include "engine/precision_choice.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "params/points.h"

namespace inflight::engine {
namespace {

using testing::HasSubstr;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

EngineOptions options_of(const std::string& format = "tensor_wise_fp8", int threads = 2) {
  EngineOptions options;
  options.quantization = format;
  options.compute = "fp32";
  options.threads = threads;
  return options;
}

std::vector<std::int32_t> ids_of(std::size_t count, std::uint32_t seed) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 8) % 500);
  return ids;
}

Windows windows_of(std::size_t count, std::size_t tokens) {
  Windows windows;
  for (std::size_t i = 0; i < count; ++i) windows.push_back(ids_of(tokens, static_cast<std::uint32_t>(i + 1)));
  return windows;
}

class ConvertFp8Accuracy : public testing::Test {
 protected:
  // The model's maxima, and these windows.
  std::string scales(const std::string& model, const Windows& windows) {
    Calibration calibration = read_calibration(tiny(model) + "/fp8_amax.json").value();
    calibration.windows = windows;
    const std::string path = scratch_.at("scales.safetensors");
    write_calibration(calibration, path).value();
    return path;
  }
  TestFolder converted(const std::string& model, const Fp8Conversion& conversion, const std::string& name, int threads = 2) {
    const auto report = convert_fp8(tiny(model), options_of("tensor_wise_fp8", threads), conversion, scratch_.at(name));
    EXPECT_TRUE(report) << report.error().message;
    report_ = *report;
    return TestFolder::read(scratch_.at(name));
  }
  std::string refusal(const std::string& model, const Fp8Conversion& conversion, const std::string& format = "tensor_wise_fp8", const LoadProgress& progress = {}) {
    const auto report = convert_fp8(tiny(model), options_of(format), conversion, scratch_.at("refused"), progress);
    EXPECT_FALSE(report);
    EXPECT_FALSE(std::filesystem::exists(scratch_.at("refused")));
    EXPECT_FALSE(std::filesystem::exists(scratch_.at("refused.part")));
    return report ? "" : report.error().message;
  }
  std::unique_ptr<OpenedModel> open(const std::string& folder) {
    EngineOptions options = options_of("");
    options.fp8_activations = "none";
    return open_model(folder, options).value();
  }
  ScratchFolder scratch_;
  Fp8Report report_;
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - static_cast<double>(b[i])) * (static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum;
}

TEST_F(ConvertFp8Accuracy, weights_rounded_with_the_calibrations_tokens_keep_answers_better) {
  const Windows windows = windows_of(40, 32);
  const std::string path = scales("tiny-qwen3", windows);
  const TestFolder plain = converted("tiny-qwen3", {.scales = path, .naming = "hf", .rounding = "nearest", .plain_share = 0}, "nearest");
  EXPECT_EQ(report_.moment_tokens, 0);
  const TestFolder better = converted("tiny-qwen3", {.scales = path, .naming = "hf", .plain_share = 0}, "better");
  EXPECT_EQ(report_.moment_tokens, 40 * 32);
  EXPECT_TRUE(report_.plain.empty());
  for (const auto& [name, tensor] : plain.tensors) {  // the same scales, other codes
    ASSERT_TRUE(better.tensors.contains(name)) << name;
    EXPECT_EQ(better.tensors.at(name).data == tensor.data, tensor.dtype != DType::kF8E4M3) << name;
  }
  EXPECT_EQ(read_json_file(scratch_.at("better") + "/config.json").value()["quantization_config"]["fp8_rounding"], "compensated");
  EXPECT_FALSE(read_json_file(scratch_.at("nearest") + "/config.json").value()["quantization_config"].contains("fp8_rounding"));
  const auto original = open(tiny("tiny-qwen3")), nearest = open(scratch_.at("nearest")), compensated = open(scratch_.at("better"));
  double before = 0, after = 0;
  for (std::size_t w = 0; w < 8; ++w) {
    const std::vector<float> want = forward_once(*original, windows[w]).logits;
    before += distance(forward_once(*nearest, windows[w]).logits, want);
    after += distance(forward_once(*compensated, windows[w]).logits, want);
  }
  EXPECT_LT(after, before * 0.8);
}

TEST_F(ConvertFp8Accuracy, nothing_depends_on_threads) {
  const std::string path = scales("tiny-qwen3", windows_of(8, 24));
  const TestFolder one = converted("tiny-qwen3", {.scales = path, .naming = "hf", .plain_share = 0.3}, "one", 1), two = converted("tiny-qwen3", {.scales = path, .naming = "hf", .plain_share = 0.3}, "two", 2);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (const auto& [name, tensor] : one.tensors) EXPECT_EQ(tensor.data, two.tensors.at(name).data) << name;
}

TEST_F(ConvertFp8Accuracy, a_run_for_each_point_gives_what_one_run_gives) {
  const Windows windows = windows_of(6, 30);
  const auto model = open(tiny("tiny-ernie4_5-moe"));
  std::vector<InputMoments::Point> points;
  for (const params::ParamSpec& row : model->table.rows)
    if (row.role == params::Role::kLinear || row.role == params::Role::kExpert) points.push_back({params::input_point(row), row.inputs});
  const auto codes = [&](std::int64_t budget) {
    const auto moments = InputMoments::create(*model, options_of(""), points, windows, budget).value();
    std::vector<std::vector<std::uint8_t>> all;
    for (const InputMoments::Point& point : points) {
      const quant::RoundingFactor* factor = moments->factor(point.name, {}).value();
      std::vector<float> w(static_cast<std::size_t>(point.inputs));
      for (std::size_t k = 0; k < w.size(); ++k) w[k] = std::sin(static_cast<float>(k));
      all.emplace_back(w.size());
      const float scale = 1.0f / 300;
      if (factor) factor->round(w.data(), 1, &scale, 448, *model->runtime->kernels, all.back().data());
    }
    return all;
  };
  EXPECT_EQ(codes(InputMoments::kDefaultBudget), codes(1));
}

TEST_F(ConvertFp8Accuracy, experts_without_a_token_are_rounded_to_the_nearest_and_the_others_are_not) {
  const std::string path = scales("tiny-ernie4_5-moe", {{5, 17, 300}});
  for (const std::string naming : {"hf", "ernie"}) {
    const TestFolder plain = converted("tiny-ernie4_5-moe", {.scales = path, .naming = naming, .rounding = "nearest"}, naming + "-nearest");
    const TestFolder better = converted("tiny-ernie4_5-moe", {.scales = path, .naming = naming, .plain_share = 0}, naming);
    std::int64_t same = 0, other = 0;
    for (const auto& [name, tensor] : plain.tensors)
      if (name.contains(".experts.") && name.contains("down_proj.") && (name.ends_with(".quant_weight") || tensor.dtype == DType::kF8E4M3)) ++(better.tensors.at(name).data == tensor.data ? same : other);
    EXPECT_GT(same, 0) << naming;
    EXPECT_GT(other, 0) << naming;
  }
}

TEST_F(ConvertFp8Accuracy, what_costs_most_stays_as_stored_within_its_share) {
  const std::string path = scales("tiny-qwen3", windows_of(6, 32));
  const TestFolder folder = converted("tiny-qwen3", {.scales = path, .naming = "hf", .plain_share = 0.3}, "out");
  ASSERT_FALSE(report_.plain.empty());
  const auto model = open(scratch_.at("out"));
  std::int64_t all = 0, plain = 0;
  for (std::size_t i = 0; i < model->table.rows.size(); ++i) {
    const params::ParamSpec& row = model->table.rows[i];
    if (row.role != params::Role::kLinear) continue;
    const bool stays = std::ranges::find(report_.plain, row.scope + "." + row.name) != report_.plain.end();
    EXPECT_EQ(model->store.matrix(i).format->codes != quant::Codes::kE4M3, stays) << row.full_name();
    all += row.outputs() * row.inputs;
    if (stays) plain += row.outputs() * row.inputs;
  }
  EXPECT_LE(static_cast<double>(plain), 0.3 * static_cast<double>(all));
  // By default as well, but not under names that have one format for all.
  converted("tiny-qwen3", {.scales = path, .naming = "ernie"}, "ernie");
  EXPECT_TRUE(report_.plain.empty());
  EXPECT_GT(report_.moment_tokens, 0);
  EXPECT_EQ(read_json_file(scratch_.at("ernie") + "/config.json").value()["quantization_config"]["fp8_rounding"], "compensated");
}

TEST(PrecisionChoice, takes_the_dearest_for_a_weight_that_fit) {
  const std::vector<PrecisionCandidate> candidates = {{{"a"}, 100, 1.0}, {{"b"}, 10, 0.5}, {{"c", "d"}, 50, 0.9}, {{"e"}, 20, 0.1}, {{"f"}, 820, 0.2}, {{"g"}, 1, -0.1}};
  EXPECT_EQ(choose_plain(candidates, 0), std::vector<std::string>());
  EXPECT_EQ(choose_plain(candidates, 0.011), std::vector<std::string>{"b"});
  EXPECT_EQ(choose_plain(candidates, 0.081), (std::vector<std::string>{"b", "c", "d", "e"}));  // a does not fit, e does
  EXPECT_EQ(choose_plain(candidates, 0.181), (std::vector<std::string>{"b", "c", "d", "a", "e"}));
  EXPECT_EQ(choose_plain(candidates, 1), (std::vector<std::string>{"b", "c", "d", "a", "e", "f"}));
}

TEST(PrecisionChoice, measures_the_matrix_that_was_made_worse) {
  const auto plain = open_model(tiny("tiny-qwen3"), options_of("")).value();
  EngineOptions options = options_of();
  options.fp8_activations = "none";
  const auto fp8 = open_model(tiny("tiny-qwen3"), options).value();
  const auto spoiled = std::ranges::find_if(plain->table.rows, [](const auto& row) { return row.scope + "." + row.name == "model.layers.1.mlp.down_proj"; }) - plain->table.rows.begin();
  quant::Matrix& matrix = fp8->store.matrix(static_cast<std::size_t>(spoiled));
  for (std::int64_t i = 0; i < matrix.panels() * quant::kPanelRows; ++i) reinterpret_cast<float*>(matrix.scales)[i] *= 1.5f;
  const std::vector<float> before = forward_once(*plain, {5, 6, 7}).logits;
  const auto measured = measure_precision(*plain, *fp8, options_of(""), windows_of(2, 20), {}).value();
  EXPECT_EQ(forward_once(*plain, {5, 6, 7}).logits, before);  // all is back where it was
  EXPECT_EQ(choose_plain(measured.matrices, 0.2).front(), "model.layers.1.mlp.down_proj");
  for (const PrecisionCandidate& candidate : measured.matrices) EXPECT_GT(candidate.divergence, 0) << candidate.names[0];
}

TEST(PrecisionChoice, queries_stay_where_rounding_them_is_a_good_part_of_all) {
  PrecisionMeasure measure{.matrices = {{{"a"}, 1, 0.5}, {{"b"}, 1, 0.3}}, .cache = 0.1, .attention = 0.14};
  EXPECT_FALSE(measure.plain_queries());  // 0.04 of 0.94
  measure.attention = 0.16;
  EXPECT_TRUE(measure.plain_queries());   // 0.06 of 0.96
}

TEST_F(ConvertFp8Accuracy, queries_stay_where_the_folder_says_so) {
  const std::string path = scales("tiny-qwen3", windows_of(4, 16));
  for (const std::string queries : {"plain", "fp8"}) {
    const TestFolder folder = converted("tiny-qwen3", {.scales = path, .naming = "hf", .queries = queries, .plain_share = 0}, queries);
    EXPECT_EQ(report_.plain_queries, queries == "plain");
    EXPECT_TRUE(folder.tensors.contains("model.layers.0.self_attn.q_scale"));  // for programs that round them
    EngineOptions options = options_of("");
    options.kv_cache_dtype = "float8_e4m3";
    options.fp8_sdpa = true;
    const auto model = open_model(scratch_.at(queries), options);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ((*model)->runtime->fp8_attention, queries == "fp8");
    EXPECT_EQ(std::ranges::any_of((*model)->notes, [](const std::string& note) { return note.contains("fp8_queries"); }), queries == "plain");
  }
  EXPECT_THAT(refusal("tiny-qwen3", {.scales = path, .naming = "ernie", .queries = "plain"}), HasSubstr("--queries plain goes with --naming hf"));
}

TEST_F(ConvertFp8Accuracy, refusals) {
  EXPECT_THAT(refusal("tiny-qwen3", {.scales = tiny("tiny-qwen3") + "/fp8_amax.json", .naming = "hf", .rounding = "compensated"}), HasSubstr("holds none"));
  EXPECT_THAT(refusal("tiny-qwen3", {.scales = scales("tiny-qwen3", {{1, 2}}), .naming = "hf", .rounding = "best"}), HasSubstr("--rounding"));
  EXPECT_THAT(refusal("tiny-qwen3", {.scales = scales("tiny-qwen3", {{1, 1000000}}), .naming = "hf"}), HasSubstr("the token 1000000"));
  EXPECT_THAT(refusal("tiny-qwen3", {.scales = scales("tiny-qwen3", {std::vector<std::int32_t>(5000, 1)}), .naming = "hf"}), HasSubstr("a window of 5000 tokens"));
}

TEST_F(ConvertFp8Accuracy, an_interruption_while_the_model_runs_leaves_nothing) {
  const std::string path = scales("tiny-qwen3", windows_of(4, 16));
  for (const int most : {1, 8, 40}) {
    int calls = 0;
    EXPECT_THAT(refusal("tiny-qwen3", {.scales = path, .naming = "hf"}, "tensor_wise_fp8", [&](std::int64_t, std::int64_t) { return ++calls < most; }), HasSubstr("stopped while"));
  }
}

}  // namespace
}  // namespace inflight::engine
