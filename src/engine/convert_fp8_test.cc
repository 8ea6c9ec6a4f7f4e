// Folders of FP8 weights under other programs' names: every byte against numpy (tools/make_fp8_folder_goldens.py), loaded again, refused, interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/e4m3.h"
#include "engine/calibration.h"
#include "engine/convert_fp8.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "loader/activation_scales.h"
#include "params/points.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::int32_t> kIds = {5, 17, 300, 4, 4, 99, 12, 7};

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }
std::string scales_of(const std::string& model) { return tiny(model) + "/fp8_amax.json"; }

struct Case {
  std::string source;   // the checkpoint
  std::string golden;   // tests/fp8/<golden>.json
  std::string format, target;
  Fp8Conversion conversion;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.source << " " << c.golden; }
};

EngineOptions options_of(const std::string& format, const std::string& target) {
  EngineOptions options;
  options.quantization = format;
  options.fp8_target = target;
  options.threads = 2;
  return options;
}

Result<std::unique_ptr<OpenedModel>> open(const std::string& folder, const std::string& format = "", const std::string& target = "ocp", const std::string& road = "default_v1") {
  EngineOptions options = options_of(format, target);
  options.compute = "fp32";
  options.fp8_activations = "none";
  options.load_choices = road;
  return open_model(folder, options);
}

std::string hash(const std::string& bytes) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char byte : bytes) h = (h ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3u;
  return fmt::format("{:016x}", h);
}

void expect_golden(const std::string& folder, const std::string& golden) {
  const Json want = read_json_file(std::string(INFLIGHT_TEST_DATA) + "/fp8/" + golden + ".json").value();
  const TestFolder got = TestFolder::read(folder);
  std::int64_t total = 0;
  for (const auto& [name, tensor] : got.tensors) {
    total += static_cast<std::int64_t>(tensor.data.size());
    ASSERT_TRUE(want["tensors"].contains(name)) << name << " should not be there";
    EXPECT_EQ(Json({std::string(dtype_name(tensor.dtype)), tensor.shape, hash(tensor.data)}).dump(), want["tensors"][name].dump()) << name;
  }
  EXPECT_EQ(got.tensors.size(), want["tensors"].size());
  EXPECT_EQ(total, want["total_size"].get<std::int64_t>());
}

float scale_in(const TestFolder::Tensor& tensor, std::size_t i) {
  if (tensor.data.size() == (tensor.dtype == DType::kBF16 ? 2u : 4u)) i = 0;
  std::uint16_t half = 0;
  float value = 0;
  if (tensor.dtype == DType::kBF16) std::memcpy(&half, &tensor.data[2 * i], 2), value = bf16_to_float(half);
  else std::memcpy(&value, &tensor.data[4 * i], 4);
  return value;
}

// Every loaded weight is the folder's code times the folder's scale, and no further from the source's weight than rounding to E4M3 with that scale allows.
void expect_stored_numbers(const OpenedModel& model, const std::string& folder, const std::string& source, bool ernie) {
  const TestFolder stored = TestFolder::read(folder);
  const auto original = open(tiny(source)).value();
  std::int64_t checked = 0;
  for (std::size_t i = 0; i < model.table.rows.size(); ++i) {
    const params::ParamSpec& row = model.table.rows[i];
    if (model.store.vector(i) || model.store.matrix(i).format->codes != quant::Codes::kE4M3) continue;
    std::vector<float> got(static_cast<std::size_t>(row.inputs)), plain(got);
    std::int64_t first = 0;
    for (std::size_t p = 0; p < row.pieces.size(); ++p)
      for (std::int64_t r = 0; r < row.pieces[p].rows; ++r, ++first) {
        const std::string base = ernie ? row.scope + "." + row.name : row.piece_base(p);
        const auto &codes = stored.tensors.at(base + (ernie ? ".quant_weight" : ".weight")), &scales = stored.tensors.at(base + ".weight_scale");
        const float scale = scale_in(scales, static_cast<std::size_t>(ernie ? first : r));
        model.store.matrix(i).format->dequantize(model.store.matrix(i), first, got.data());
        original->store.matrix(i).format->dequantize(original->store.matrix(i), first, plain.data());
        for (std::int64_t k = 0; k < row.inputs; ++k) {
          const auto code = static_cast<std::uint8_t>(codes.data[static_cast<std::size_t>(ernie ? k * codes.shape[1] + first : r * row.inputs + k)]);
          const auto at = static_cast<std::size_t>(k);
          ASSERT_EQ(got[at], e4m3_to_float(code) * scale) << row.full_name() << " " << first << " " << k;
          ASSERT_LE(std::abs(got[at] - plain[at]), std::max(std::abs(plain[at]) * 0x1.01p-4f, scale * 0x1.01p-10f)) << row.full_name();
          ++checked;
        }
      }
  }
  EXPECT_GT(checked, 10000);
}

class ConvertFp8 : public testing::TestWithParam<Case> {};

TEST_P(ConvertFp8, writes_what_the_rules_say_and_loads_again) {
  const Case& c = GetParam();
  const ScratchFolder scratch;
  const std::string out = scratch.at("out");
  const auto report = convert_fp8(tiny(c.source), options_of(c.format, c.target), c.conversion, out);
  ASSERT_TRUE(report) << report.error().message;
  expect_golden(out, c.golden);
  EXPECT_EQ(report->moment_tokens, 0);  // a JSON of maxima holds no tokens
  EXPECT_TRUE(is_regular_file(out + "/tokenizer.json"));

  const auto in_flight = open(tiny(c.source), c.format, c.target);
  ASSERT_TRUE(in_flight) << in_flight.error().message;
  const auto want = forward_once(**in_flight, kIds).logits;
  const bool exact = c.conversion.naming == "hf" && c.conversion.expert_scales != "channel";
  for (const std::string road : {"default_v1", "default"}) {
    const auto again = open(out, "", "ocp", road);
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_EQ((*again)->table.rows.size(), (*in_flight)->table.rows.size());
    for (std::size_t i = 0; exact && i < (*again)->table.rows.size(); ++i) {
      if ((*again)->store.vector(i)) continue;
      const quant::Matrix &x = (*again)->store.matrix(i), &y = (*in_flight)->store.matrix(i);
      const quant::PackedBytes bytes = y.format->bytes(y.outputs, y.inputs, y.group);
      ASSERT_EQ(x.format->codes, y.format->codes) << (*again)->table.rows[i].full_name();
      EXPECT_EQ(std::memcmp(x.codes, y.codes, static_cast<std::size_t>(bytes.codes)), 0) << (*again)->table.rows[i].full_name();
      EXPECT_EQ(std::memcmp(x.scales, y.scales, static_cast<std::size_t>(bytes.scales)), 0) << (*again)->table.rows[i].full_name();
    }
    if (exact) {
      EXPECT_EQ(forward_once(**again, kIds).logits, want);
    } else {
      expect_stored_numbers(**again, out, c.source, c.conversion.naming == "ernie");
    }
  }
}

TEST_P(ConvertFp8, scales_of_activations_are_the_calibrations) {
  const Case& c = GetParam();
  const ScratchFolder scratch;
  ASSERT_TRUE(convert_fp8(tiny(c.source), options_of(c.format, c.target), c.conversion, scratch.at("out")));
  const auto checkpoint = checkpoint::Checkpoint::open(scratch.at("out")).value();
  const JsonView config{&checkpoint.config(), "config.json"};
  const auto plan = plan_model(scratch.at("out"), {});
  ASSERT_TRUE(plan) << plan.error().message;
  const auto stored = loader::stored_activations(config).value();
  const auto scales = loader::read_activation_scales(checkpoint, plan->table, config);
  ASSERT_TRUE(scales) << scales.error().message;
  const float bound = c.target == "gaudi" ? 240 : 448;
  EXPECT_EQ(stored.bound, bound);
  if (c.conversion.scales.empty()) {
    EXPECT_TRUE(scales->scale.empty());
    EXPECT_NE(stored.scheme, "static");
    return;
  }
  EXPECT_EQ(stored.scheme, "static");
  const bool ernie = c.conversion.naming == "ernie", renamed = ernie && c.source.starts_with("tiny-ernie");
  std::size_t compared = 0;
  for (const auto& [point, stats] : read_calibration(c.conversion.scales).value().points) {
    const float got = scales->of(renamed ? "ernie" + point.substr(5) : point), want = stats.absmax() / bound;
    EXPECT_NEAR(static_cast<double>(got) / want, 1, ernie ? 0x1p-8 : 0) << point;
    ++compared;
  }
  EXPECT_EQ(scales->scale.size(), compared + (ernie ? static_cast<std::size_t>(checkpoint.config()["num_hidden_layers"]) : 0));  // s_matmul
}

// What the folder says is done with activations too: as in flight with the same calibration.
TEST_P(ConvertFp8, runs_with_the_scales_that_it_holds) {
  const Case& c = GetParam();
  if (c.conversion.scales.empty()) GTEST_SKIP() << "has none";
  const ScratchFolder scratch;
  ASSERT_TRUE(convert_fp8(tiny(c.source), options_of(c.format, c.target), c.conversion, scratch.at("out")));
  EngineOptions options = options_of("", "ocp");
  options.compute = "fp32";
  const auto again = open_model(scratch.at("out"), options);
  ASSERT_TRUE(again) << again.error().message;
  const Calibration calibration = read_calibration(c.conversion.scales).value();
  int matrices = 0;
  for (std::size_t i = 0; i < (*again)->table.rows.size(); ++i) {
    if ((*again)->store.vector(i) || (*again)->store.matrix(i).format->codes != quant::Codes::kE4M3) continue;
    const quant::Fp8Input& input = (*again)->store.matrix(i).fp8_input;
    EXPECT_EQ(input.kind, quant::Fp8Input::Scale::kStatic);
    EXPECT_EQ(input.bound, c.target == "gaudi" ? 240 : 448);
    std::string point = params::input_point((*again)->table.rows[i]);
    if (point.starts_with("ernie.")) point = "model." + point.substr(6);
    EXPECT_NEAR(input.scale * input.bound / calibration.find(point)->absmax(), 1, 0x1p-8) << point;
    ++matrices;
  }
  EXPECT_GE(matrices, 12);
  if (c.conversion.naming != "hf" || c.conversion.expert_scales == "channel" || c.source.ends_with("paddle")) return;
  EngineOptions in_flight = options_of(c.format, c.target);
  in_flight.compute = "fp32";
  in_flight.fp8_amax = c.conversion.scales;
  const auto usual = open_model(tiny(c.source), in_flight);
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_EQ(forward_once(**again, kIds).logits, forward_once(**usual, kIds).logits);
}

const std::string kQwen = scales_of("tiny-qwen3"), kErnie = scales_of("tiny-ernie4_5-moe");
const Case kCases[] = {
    {"tiny-qwen3", "tiny-qwen3-hf-ocp", "tensor_wise_fp8", "ocp", {.scales = kQwen, .naming = "hf"}},
    {"tiny-qwen3", "tiny-qwen3-hf-gaudi", "tensor_wise_fp8", "gaudi", {.scales = kQwen, .naming = "hf"}},
    {"tiny-qwen3", "tiny-qwen3-ernie-ocp", "tensor_wise_fp8", "ocp", {.scales = kQwen, .naming = "ernie"}},
    {"tiny-qwen3", "tiny-qwen3-ernie-gaudi", "tensor_wise_fp8", "gaudi", {.scales = kQwen, .naming = "ernie"}},
    {"tiny-qwen3", "tiny-qwen3-block-ocp", "block_wise_fp8", "ocp", {.naming = "hf"}},
    {"tiny-qwen3", "tiny-qwen3-hf-gaudi-weights", "tensor_wise_fp8", "gaudi", {.naming = "hf"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-hf-ocp", "tensor_wise_fp8", "ocp", {.scales = kErnie, .naming = "hf"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-hf-gaudi", "tensor_wise_fp8", "gaudi", {.scales = kErnie, .naming = "hf"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-hf-ocp-channel", "tensor_wise_fp8", "ocp", {.scales = kErnie, .naming = "hf", .expert_scales = "channel"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-ernie-ocp", "tensor_wise_fp8", "ocp", {.scales = kErnie, .naming = "ernie"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-ernie-gaudi", "tensor_wise_fp8", "gaudi", {.scales = kErnie, .naming = "ernie"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-ernie-gaudi-tensor", "tensor_wise_fp8", "gaudi", {.scales = kErnie, .naming = "ernie", .expert_scales = "tensor"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-block-ocp", "block_wise_fp8", "ocp", {.naming = "hf"}},
    {"tiny-ernie4_5-moe", "tiny-ernie4_5-moe-hf-gaudi-weights", "tensor_wise_fp8", "gaudi", {.naming = "hf"}},
    // PaddlePaddle's form of the same weights gives the same bytes under either naming.
    {"tiny-ernie4_5-moe-paddle", "tiny-ernie4_5-moe-hf-ocp", "tensor_wise_fp8", "ocp", {.scales = kErnie, .naming = "hf"}},
    {"tiny-ernie4_5-moe-paddle", "tiny-ernie4_5-moe-ernie-gaudi", "tensor_wise_fp8", "gaudi", {.scales = kErnie, .naming = "ernie"}},
    {"tiny-ernie4_5-moe-paddle", "tiny-ernie4_5-moe-block-ocp", "block_wise_fp8", "ocp", {.naming = "hf"}},
};
INSTANTIATE_TEST_SUITE_P(Tiny, ConvertFp8, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.golden + (test.param.source.ends_with("paddle") ? "_from_paddle" : "");
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(ConvertFp8Config, says_what_others_read) {
  const ScratchFolder scratch;
  ASSERT_TRUE(convert_fp8(tiny("tiny-ernie4_5-moe"), options_of("tensor_wise_fp8", "gaudi"), {.scales = kErnie, .naming = "ernie"}, scratch.at("ernie")));
  const Json ernie = read_json_file(scratch.at("ernie") + "/config.json").value();
  EXPECT_EQ(ernie["quantization_config"], Json::parse(R"({"dense_quant_type": "tensor_wise_fp8", "moe_quant_type": "tensor_wise_fp8", "quantization": "mix_quant",
                                                          "kv_cache_quant_type": "float8_e4m3", "is_quantized": true})"));
  EXPECT_EQ(ernie["dtype"], "bfloat16");
  EXPECT_FALSE(ernie.contains("torch_dtype") || ernie.contains("transformers_version"));
  const Json index = read_json_file(scratch.at("ernie") + "/model.safetensors.index.json").value();
  EXPECT_EQ(index["metadata"]["total_size"], 530806);
  EXPECT_EQ(index["weight_map"]["ernie.layers.2.mlp.experts.up_gate_proj.activation_scale"], "model-00001-of-00001.safetensors");

  ASSERT_TRUE(convert_fp8(tiny("tiny-ernie4_5-moe-paddle"), options_of("tensor_wise_fp8", "ocp"), {.scales = kErnie, .naming = "hf", .expert_scales = "channel"}, scratch.at("hf")));
  const Json hf = read_json_file(scratch.at("hf") + "/config.json").value(), quantization = hf["quantization_config"];
  EXPECT_EQ(hf["torch_dtype"], "bfloat16");
  EXPECT_EQ(quantization["quant_method"], "compressed-tensors");
  EXPECT_EQ(quantization["format"], "float-quantized");
  EXPECT_EQ(quantization["config_groups"]["group_0"]["weights"]["strategy"], "tensor");
  EXPECT_EQ(quantization["config_groups"]["group_0"]["input_activations"]["dynamic"], false);
  EXPECT_EQ(quantization["config_groups"]["group_1"]["weights"]["strategy"], "channel");
  EXPECT_EQ(quantization["kv_cache_scheme"]["type"], "float");
  EXPECT_EQ(quantization["ignore"], Json({"model.layers.1.mlp.gate", "model.layers.2.mlp.gate", "model.layers.3.mlp.gate", "lm_head"}));
}

TEST(ConvertFp8Shards, cut_anywhere_they_hold_the_same) {
  const ScratchFolder scratch;
  for (const std::string naming : {"hf", "ernie"}) {
    const auto report = convert_fp8(tiny("tiny-ernie4_5-moe"), options_of("tensor_wise_fp8", "gaudi"), {.scales = kErnie, .naming = naming}, scratch.at(naming), {}, 60000);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_GT(report->written.files, 5);
    expect_golden(scratch.at(naming), "tiny-ernie4_5-moe-" + naming + "-gaudi");
    const Json index = read_json_file(scratch.at(naming) + "/model.safetensors.index.json").value();
    EXPECT_EQ(index["metadata"]["total_size"].get<std::int64_t>(), report->written.bytes);
    EXPECT_TRUE(open(scratch.at(naming)));
  }
}

// A head of its own is [inputs, outputs] in PaddlePaddle's layout; biases are fused with their matrices.
TEST(ConvertFp8Layout, heads_and_biases_come_back_under_either_naming) {
  for (const std::string model : {"tiny-llama", "tiny-qwen2", "tiny-llama-odd", "tiny-qwen3-moe"}) {
    const auto in_flight = open(tiny(model), "tensor_wise_fp8");
    ASSERT_TRUE(in_flight) << in_flight.error().message;
    const ScratchFolder scratch;
    Json amax = Json::object();
    for (const params::ParamSpec& row : (*in_flight)->table.rows) {
      if (row.role == params::Role::kVector) continue;
      amax[params::input_point(row)] = 5.5;
      for (const std::string_view point : {params::kQueryPoint, params::kKeyPoint, params::kValuePoint}) amax[fmt::format("{}.{}", row.scope, point)] = 3;
    }
    std::ofstream(scratch.at("amax.json")) << amax.dump();
    const auto want = forward_once(**in_flight, kIds).logits;
    for (const std::string naming : {"hf", "ernie"}) {
      const auto report = convert_fp8(tiny(model), options_of("tensor_wise_fp8", "ocp"), {.scales = scratch.at("amax.json"), .naming = naming}, scratch.at(naming));
      ASSERT_TRUE(report) << report.error().message;
      const auto again = open(scratch.at(naming));
      ASSERT_TRUE(again) << again.error().message;
      if (naming == "hf") {
        EXPECT_EQ(forward_once(**again, kIds).logits, want) << model;
      }
      expect_stored_numbers(**again, scratch.at(naming), model, naming == "ernie");
      for (std::size_t i = 0; i < (*again)->table.rows.size(); ++i) {
        const params::ParamSpec& row = (*again)->table.rows[i];
        if (const float* vector = (*again)->store.vector(i)) {
          EXPECT_EQ(std::memcmp(vector, (*in_flight)->store.vector(i), static_cast<std::size_t>(row.outputs()) * 4), 0) << row.full_name();
          continue;
        }
        const quant::Matrix &x = (*again)->store.matrix(i), &y = (*in_flight)->store.matrix(i);
        if (x.format->quantized()) continue;
        ASSERT_EQ(x.format, y.format) << row.full_name();
        EXPECT_EQ(std::memcmp(x.codes, y.codes, static_cast<std::size_t>(x.format->bytes(x.outputs, x.inputs, 0).codes)), 0) << row.full_name();
      }
    }
  }
}

// Latent attention, shared experts, stacked and grouped routing, odd sizes: the same as in flight, bit for bit.
TEST(ConvertFp8Families, weights_of_every_family_come_back) {
  for (const std::string model : {"tiny-deepseek-v2", "tiny-deepseek-v3", "tiny-ernie4_5", "tiny-glm4-moe", "tiny-llama-odd", "tiny-qwen2-moe", "tiny-qwen3-moe"})
    for (const std::string format : {"tensor_wise_fp8", "block_wise_fp8"}) {
      const ScratchFolder scratch;
      const auto report = convert_fp8(tiny(model), options_of(format, "ocp"), {.naming = "hf"}, scratch.at("out"));
      ASSERT_TRUE(report) << report.error().message;
      const auto again = open(scratch.at("out")), in_flight = open(tiny(model), format);
      ASSERT_TRUE(again) << again.error().message;
      ASSERT_TRUE(in_flight) << in_flight.error().message;
      EXPECT_EQ(forward_once(**again, kIds).logits, forward_once(**in_flight, kIds).logits) << model << " " << format;
    }
}

TEST(ConvertFp8Overrides, matrices_that_stay_are_ignored_by_name) {
  EngineOptions options = options_of("tensor_wise_fp8", "ocp");
  options.quantization_overrides = {"model.layers.0.*=bf16"};
  const ScratchFolder scratch;
  ASSERT_TRUE(convert_fp8(tiny("tiny-qwen3"), options, {.scales = kQwen, .naming = "hf"}, scratch.at("out")));
  const Json config = read_json_file(scratch.at("out") + "/config.json").value();
  EXPECT_THAT(config["quantization_config"]["ignore"].get<std::vector<std::string>>(), testing::IsSupersetOf({"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "lm_head"}));
  const TestFolder source = TestFolder::read(tiny("tiny-qwen3")), written = TestFolder::read(scratch.at("out"));
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(written.tensors.at(name).data, source.tensors.at(name).data);
  EXPECT_EQ(written.tensors.at("model.layers.1.mlp.up_proj.weight").dtype, DType::kF8E4M3);
  EXPECT_TRUE(open(scratch.at("out")));
  const auto refused = convert_fp8(tiny("tiny-qwen3"), options, {.scales = kQwen, .naming = "ernie"}, scratch.at("no"));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("--quantization-override"));
}

// Where activations are cut is what the calibration says of its histograms.
TEST(ConvertFp8Cuts, at_a_percentile_or_where_least_is_lost) {
  const ScratchFolder scratch;
  Calibration calibration = read_calibration(kQwen).value();
  for (auto& [point, stats] : calibration.points) {  // most values are small, one is the maximum
    stats.histogram.assign(Bins::kCount, 0);
    stats.histogram[static_cast<std::size_t>(Bins::of(stats.amax / 8))] = 9999;
    stats.histogram[static_cast<std::size_t>(Bins::of(stats.amax))] = 1;
  }
  ASSERT_TRUE(write_calibration(calibration, scratch.at("c.safetensors")));
  const std::string point = "model.layers.1.mlp.down_proj";
  const PointStats& stats = *calibration.find(point);
  const auto cut = [&](const std::string& name, Fp8Conversion conversion) {
    conversion.scales = scratch.at("c.safetensors");
    conversion.naming = "hf";
    const auto report = convert_fp8(tiny("tiny-qwen3"), options_of("tensor_wise_fp8", "ocp"), conversion, scratch.at(name));
    EXPECT_TRUE(report) << (report ? "" : report.error().message);
    return scale_in(TestFolder::read(scratch.at(name)).tensors.at(point + ".input_scale"), 0);
  };
  EXPECT_EQ(cut("most", {}), stats.amax / 448);
  EXPECT_EQ(cut("percentile", {.percentile = 99}), stats.percentile(99) / 448);
  EXPECT_LT(stats.percentile(99), stats.amax / 4);
  EXPECT_EQ(cut("mse", {.mse = true}), stats.mse_clip(448) / 448);
}

class ConvertFp8Wrong : public testing::Test {
 protected:
  // The message of the refusal; nothing may be left of the output.
  std::string refusal(EngineOptions options, Fp8Conversion conversion, const std::string& model = "tiny-ernie4_5-moe") {
    const auto report = convert_fp8(tiny(model), options, conversion, scratch_.at("out"));
    EXPECT_FALSE(report);
    EXPECT_FALSE(std::filesystem::exists(scratch_.at("out")));
    EXPECT_FALSE(std::filesystem::exists(scratch_.at("out.part")));
    return report ? "" : report.error().message;
  }
  const EngineOptions fp8_ = options_of("tensor_wise_fp8", "gaudi");
  ScratchFolder scratch_;
};

TEST_F(ConvertFp8Wrong, points_without_a_scale_are_named) {
  Json amax = read_json_file(kErnie).value();
  amax.erase("model.layers.1.mlp.experts.5.down_proj");
  amax.erase("model.layers.2.self_attn.cachek_matmul");
  std::ofstream(scratch_.at("short.json")) << amax.dump();
  for (const std::string naming : {"hf", "ernie"})
    EXPECT_THAT(refusal(fp8_, {.scales = scratch_.at("short.json"), .naming = naming}),
                AllOf(HasSubstr("2 of the points"), HasSubstr("model.layers.1.mlp.experts.5.down_proj"), HasSubstr("model.layers.2.self_attn.cachek_matmul")));
  EXPECT_THAT(refusal(fp8_, {.scales = kQwen, .naming = "hf"}), HasSubstr("more"));
}

TEST_F(ConvertFp8Wrong, what_does_not_go_together_is_refused) {
  EXPECT_THAT(refusal(options_of("tensor_wise_fp8", "moon"), {.scales = kErnie, .naming = "hf"}), HasSubstr("moon"));
  EXPECT_THAT(refusal(fp8_, {.scales = kErnie, .naming = "pytorch"}), HasSubstr("--naming"));
  EXPECT_THAT(refusal(fp8_, {.scales = kErnie, .naming = "hf", .expert_scales = "row"}), HasSubstr("--expert-scales"));
  EXPECT_THAT(refusal(fp8_, {.naming = "ernie"}), HasSubstr("--scales"));
  EXPECT_THAT(refusal(fp8_, {.scales = scratch_.at("nothing"), .naming = "hf"}), HasSubstr("nothing"));
  EXPECT_THAT(refusal(options_of("block_wise_fp8", "ocp"), {.scales = kErnie, .naming = "hf"}), HasSubstr("--scales"));
  EXPECT_THAT(refusal(options_of("block_wise_fp8", "ocp"), {.scales = kErnie, .naming = "ernie"}), HasSubstr("block_wise_fp8"));
  EXPECT_THAT(refusal(options_of("wint8", "ocp"), {.scales = kErnie, .naming = "hf"}), HasSubstr("tensor_wise_fp8"));
  EngineOptions head = fp8_;
  head.lm_head = "tensor_wise_fp8";
  EXPECT_THAT(refusal(head, {.scales = kErnie, .naming = "hf"}), HasSubstr("output head"));
  EngineOptions mixed = fp8_;
  mixed.quantization_overrides = {"model.layers.1.*=wint8"};
  EXPECT_THAT(refusal(mixed, {.scales = kErnie, .naming = "hf"}), HasSubstr("tensor_wise_fp8"));
  EXPECT_THAT(refusal(options_of("tensor_wise_fp8", "ocp"), {.scales = kErnie, .naming = "ernie"}, "tiny-deepseek-v3"), HasSubstr("--naming hf"));
}

TEST_F(ConvertFp8Wrong, an_interruption_leaves_nothing) {
  int calls = 0;
  const auto report = convert_fp8(tiny("tiny-ernie4_5-moe"), fp8_, {.scales = kErnie, .naming = "ernie"}, scratch_.at("out"), [&](std::int64_t, std::int64_t) { return ++calls < 20; });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kCancelled);
  EXPECT_EQ(calls, 20);
  EXPECT_FALSE(std::filesystem::exists(scratch_.at("out")));
  EXPECT_FALSE(std::filesystem::exists(scratch_.at("out.part")));
}

TEST_F(ConvertFp8Wrong, a_nan_among_the_weights_is_found_and_leaves_nothing) {
  TestFolder folder = TestFolder::read(tiny("tiny-qwen3"));
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(&folder.tensors.at("model.layers.2.mlp.down_proj.weight").data[100], &nan, 2);
  folder.write(scratch_.at("nan"));
  const auto report = convert_fp8(scratch_.at("nan"), fp8_, {.scales = kQwen, .naming = "hf"}, scratch_.at("out"));
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message, HasSubstr("model.layers.2.mlp.down_proj.weight"));
  EXPECT_FALSE(std::filesystem::exists(scratch_.at("out.part")));
}

}  // namespace
}  // namespace inflight::engine
