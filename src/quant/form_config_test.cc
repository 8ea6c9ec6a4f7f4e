// What config.json says of the forms of its matrices. Rules of names: those of compressed-tensors, transformers and GPTQModel.
#include "quant/stored_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/name_pattern.h"

namespace inflight::quant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<std::optional<FormConfig>> parse(const std::string& quantization, const char* key = "quantization_config") {
  static std::vector<std::unique_ptr<Json>> kept;
  kept.push_back(std::make_unique<Json>(Json{{key, Json::parse(quantization)}}));
  return FormConfig::parse({kept.back().get(), "config.json"});
}

std::optional<FormChoice> choice(const std::string& quantization, std::string_view module) {
  const auto config = parse(quantization);
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return std::nullopt;
  }
  return (*config)->choice(module).value();
}

bool matches(std::string_view pattern, std::string_view name) { return NamePattern::parse(pattern).value().matches(name); }

TEST(NamePattern, agrees_with_re_match) {  // the verdicts are Python's
  EXPECT_TRUE(matches(".*lm_head", "lm_head"));
  EXPECT_TRUE(matches(".*mlp.gate$", "model.layers.1.mlp.gate"));
  EXPECT_FALSE(matches(".*mlp.gate$", "model.layers.1.mlp.gate_proj"));
  EXPECT_TRUE(matches("model.layers", "model.layers.3"));
  EXPECT_FALSE(matches("layers", "model.layers.3"));
  EXPECT_TRUE(matches(R"(model\.layers\.(0|1[0-9])\.)", "model.layers.15.mlp"));
  EXPECT_FALSE(matches(R"(model\.layers\.(0|1[0-9])\.)", "model.layers.5.mlp"));
  EXPECT_TRUE(matches(R"(.*\.(?:q|k|v)_proj)", "a.k_proj"));
  EXPECT_TRUE(matches(R"(^(?!.*experts).*down_proj$)", "model.mlp.down_proj"));
  EXPECT_FALSE(matches(R"(^(?!.*experts).*down_proj$)", "model.mlp.experts.1.down_proj"));
  EXPECT_TRUE(matches(R"(a\d{2,3}b)", "a123b"));
  EXPECT_FALSE(matches(R"(a\d{2,3}b)", "a1b"));
  EXPECT_FALSE(matches(R"(a\d{2,3}b)", "a1234b"));
  EXPECT_TRUE(matches("(a*)*b", "aaaaab"));
  EXPECT_FALSE(matches("[^.]+$", "a.b"));
  EXPECT_TRUE(matches("(?P<x>a|ab)(c|bcd)$", "abcd"));
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches(R"(x\b)", "x.y"));
  EXPECT_FALSE(matches(R"(x\b)", "xy"));
}

TEST(NamePattern, time_is_bounded_where_backtracking_is_not) {
  EXPECT_FALSE(matches("(a+)+$", std::string(300, 'a') + "!"));
  EXPECT_FALSE(matches("(((a?){500}){500}){500}b", std::string(200, 'a')));
}

TEST(NamePattern, what_cannot_be_read_is_an_error) {
  for (const char* bad : {"(", ")", "a)", "[a", "*a", "a**", "a{3", "a{4,2}", "a{2000}", "\\", "(?<=a)b", "(?i)a", "\\1", "[z-a]", "^*"}) EXPECT_FALSE(NamePattern::parse(bad)) << bad;
  EXPECT_FALSE(NamePattern::parse(std::string(200, '(')));
  EXPECT_FALSE(NamePattern::parse(std::string(5000, 'a')));
}

TEST(FormConfig, is_absent_without_a_block_or_with_our_own) {
  const Json plain = {{"model_type", "qwen3"}};
  EXPECT_FALSE(FormConfig::parse({&plain, "config.json"}).value());
  EXPECT_FALSE(parse(R"({"quant_method": "compressed-tensors", "inflight": {"version": 1}})").value());
  EXPECT_FALSE(parse("[]"));
}

TEST(FormConfig, gptq) {
  const auto found = choice(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": false, "desc_act": true})", "model.layers.0.mlp.down_proj");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->form, &gptq_form());
  EXPECT_EQ(found->settings.kind, CodeKind::kU4);
  EXPECT_EQ(found->settings.group, 128);
  EXPECT_EQ(found->settings.zero_bias, 1);
  EXPECT_TRUE(found->settings.offsets);
  EXPECT_TRUE(found->settings.ordered);
  const auto second = choice(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": true, "checkpoint_format": "gptq_v2", "lm_head": true})", "lm_head");
  ASSERT_TRUE(second);
  EXPECT_EQ(second->settings.kind, CodeKind::kU8);
  EXPECT_EQ(second->settings.group, 0);
  EXPECT_EQ(second->settings.zero_bias, 0);
  EXPECT_FALSE(second->settings.offsets);
  EXPECT_FALSE(choice(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})", "lm_head"));
  EXPECT_FALSE(choice(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})", "model.embed_tokens"));
}

TEST(FormConfig, gptq_settings_for_some_modules) {
  const std::string text = R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:.*\\.k_proj": {}, "+:.*\\.down_proj": {"bits": 8, "group_size": 64}, ".*": {"bits": 8}}})";
  const auto config = parse(R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:.*\\.k_proj": {}, "+:.*\\.down_proj": {"bits": 8, "group_size": 64}}})").value().value();
  EXPECT_FALSE(config.choice("model.layers.0.self_attn.k_proj").value());
  EXPECT_EQ(config.choice("model.layers.0.mlp.down_proj").value()->settings.bits, 8);
  EXPECT_EQ(config.choice("model.layers.0.mlp.down_proj").value()->settings.group, 64);
  EXPECT_EQ(config.choice("model.layers.0.mlp.up_proj").value()->settings.bits, 4);
  const auto both = parse(text).value().value().choice("model.layers.0.mlp.down_proj");
  ASSERT_FALSE(both);
  EXPECT_THAT(both.error().message, HasSubstr("both"));
}

TEST(FormConfig, gptq_converts_only_the_modules_that_are_listed) {
  const std::string text = R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.down_proj"]]})";
  EXPECT_TRUE(choice(text, "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(choice(text, "model.layers.0.self_attn.k_proj"));
}

TEST(FormConfig, awq_and_components_of_names) {
  const std::string text = R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "GEMM", "modules_to_not_convert": ["mlp.gate", "visual", "layers.1", "o_proj"]})";
  const auto found = choice(text, "model.layers.0.mlp.gate_proj");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->form, &awq_form());
  EXPECT_TRUE(found->settings.offsets);
  EXPECT_FALSE(choice(text, "model.layers.0.mlp.gate"));
  EXPECT_FALSE(choice(text, "model.visual.blocks.0.qkv"));
  EXPECT_FALSE(choice(text, "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(choice(text, "model.layers.11.mlp.up_proj"));
  EXPECT_FALSE(choice(text, "model.layers.11.self_attn.o_proj"));
  EXPECT_FALSE(choice(R"({"quant_method": "awq", "bits": 4, "group_size": 128})", "lm_head"));
}

TEST(FormConfig, entries_that_fit_nothing_are_told) {
  const auto config = parse(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["mlp.gate", "vision_tower"]})").value().value();
  const std::vector<std::string> modules = {"model.layers.0.mlp.gate", "model.layers.0.mlp.up_proj"};
  EXPECT_THAT(config.unused(modules), ElementsAre("vision_tower"));
}

constexpr std::string_view kGroups = R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head", "re:.*mlp\\.gate$"], "config_groups": {
  "group_0": {"targets": ["Linear"], "format": "pack-quantized", "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false, "actorder": "group"}},
  "group_1": {"targets": ["re:.*down_proj$"], "format": "int-quantized", "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true}},
  "group_2": {"targets": ["model.layers.1.mlp.down_proj"], "format": "float-quantized", "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]}},
  "group_3": {"targets": ["re:.*v_proj"], "weights": null}}})";

TEST(FormConfig, compressed_tensors_takes_names_before_patterns_before_classes) {
  const std::string text(kGroups);
  const auto linear = choice(text, "model.layers.0.self_attn.q_proj");
  ASSERT_TRUE(linear);
  EXPECT_EQ(linear->form, &compressed_form());
  EXPECT_TRUE(linear->settings.packed);
  EXPECT_TRUE(linear->settings.offsets);
  EXPECT_TRUE(linear->settings.ordered);
  EXPECT_EQ(linear->settings.group, 32);
  const auto pattern = choice(text, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(pattern->settings.kind, CodeKind::kU8);
  EXPECT_FALSE(pattern->settings.packed);
  EXPECT_EQ(pattern->settings.group, 0);
  EXPECT_EQ(pattern->settings.group_rows, 1);
  const auto name = choice(text, "model.layers.1.mlp.down_proj");
  EXPECT_EQ(name->settings.kind, CodeKind::kE4M3);
  EXPECT_EQ(name->settings.group_rows, 128);
  EXPECT_EQ(name->settings.group, 64);
  EXPECT_FALSE(choice(text, "model.layers.0.self_attn.v_proj"));
  EXPECT_FALSE(choice(text, "model.layers.0.mlp.gate"));
  EXPECT_FALSE(choice(text, "lm_head"));
  EXPECT_FALSE(choice(text, "model.embed_tokens"));
}

TEST(FormConfig, fp8_in_blocks_and_whole) {
  const std::string blocks = R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 64], "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})";
  const auto found = choice(blocks, "model.layers.0.mlp.gate_proj");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->form, &fp8_form());
  EXPECT_EQ(found->settings.group_rows, 128);
  EXPECT_EQ(found->settings.group, 64);
  EXPECT_FALSE(choice(blocks, "model.layers.0.mlp.gate"));
  EXPECT_EQ(choice(R"({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]})", "a.b")->settings.group_rows, 0);
  EXPECT_EQ(choice(R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})", "a.b")->settings.group_rows, 1);
}

TEST(FormConfig, paddle_names_a_quantization) {
  const auto found = choice(R"({"quantization": "wint4", "is_quantized": true})", "ernie.layers.0.self_attn.qkv_proj");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->form, &paddle_form());
  EXPECT_EQ(found->settings.kind, CodeKind::kU4);
  EXPECT_TRUE(found->settings.interleaved);
  EXPECT_FALSE(choice(R"({"quantization": "wint4", "is_permuted": false})", "ernie.layers.0.self_attn.qkv_proj")->settings.interleaved);
  const std::string plain = R"({"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4", "is_quantized": true, "is_permuted": false})";
  for (const char* module : {"ernie.layers.0.self_attn.o_proj", "ernie.layers.1.mlp.experts.3.down_proj"}) EXPECT_FALSE(choice(plain, module)->settings.interleaved) << module;
  const std::string mixed = R"({"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4", "is_quantized": true})";
  EXPECT_EQ(choice(mixed, "ernie.layers.1.mlp.experts.3.down_proj")->settings.bits, 4);
  EXPECT_EQ(choice(mixed, "ernie.layers.1.mlp.shared_experts.down_proj")->settings.bits, 8);
  EXPECT_FALSE(parse(R"({"quantization": "wint8", "is_quantized": false})").value());
  EXPECT_FALSE(parse(R"({"quantization": "w4a8"})"));
  EXPECT_FALSE(parse(R"({"quantization": "mix_quant", "dense_quant_type": "block_wise_fp8"})"));
}

TEST(FormConfig, the_older_key_is_read) {
  EXPECT_TRUE(parse(R"({"format": "pack-quantized", "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "channel"}}}})", "compression_config").value());
}

TEST(FormConfig, what_is_not_read_is_refused_by_name_with_what_is) {
  for (const char* method : {"bitsandbytes", "hqq", "eetq", "quanto", "aqlm", "modelopt", "mxfp4", "torchao", "quark", "auto-round", "nonsense"}) {
    const auto parsed = parse(fmt::format(R"({{"quant_method": "{}", "bits": 4}})", method));
    ASSERT_FALSE(parsed) << method;
    EXPECT_EQ(parsed.error().code, Code::kUnsupported);
    EXPECT_THAT(parsed.error().message, testing::AllOf(HasSubstr(method), HasSubstr("gptq, awq"), HasSubstr("--quantization")));
  }
  const auto refused = [](const std::string& text, const char* part) {
    const auto parsed = parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(part));
  };
  const auto compressed = [](std::string_view format, std::string_view weights, std::string_view more = "") {
    return fmt::format(R"({{"quant_method": "compressed-tensors", "format": "{}", {}"config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {}}}}}}})", format, more, weights);
  };
  const std::string_view int4 = R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32})";
  refused(compressed("nvfp4-pack-quantized", int4), "nvfp4-pack-quantized");
  refused(compressed("mxfp4-pack-quantized", int4), "read are pack-quantized, int-quantized");
  refused(compressed("marlin-24", int4), "marlin-24");
  refused(compressed("pack-quantized", int4, R"("sparsity_config": {"format": "sparse-24-bitmask"}, )"), "sparse-24-bitmask");
  refused(compressed("pack-quantized", int4, R"("transform_config": {"config_groups": {"R1": {}}}, )"), "transform_config");
  refused(compressed("pack-quantized", int4, R"("ignore": ["re:(lm_head"], )"), "regular expression");
  refused(compressed("pack-quantized", R"({"num_bits": 3, "type": "int", "strategy": "channel"})"), "num_bits");
  refused(compressed("pack-quantized", R"({"num_bits": 4, "type": "int", "strategy": "group"})"), "group_size");
  refused(compressed("pack-quantized", R"({"num_bits": 4, "type": "int", "strategy": "tensor"})"), "tensor");
  refused(compressed("float-quantized", R"({"num_bits": 4, "type": "float", "strategy": "channel"})"), "4 bits");
  refused(R"({"quant_method": "gptq", "bits": 3, "group_size": 128})", "\"bits\" is 3");
  refused(R"({"quant_method": "gptq", "bits": 4})", "group_size");
  refused(R"({"quant_method": "gptq", "bits": 4, "group_size": 0})", "group_size");
  refused(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"})", "marlin");
  refused(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"})", "gemv");
  refused(R"({"quant_method": "fp8", "fmt": "e5m2"})", "e5m2");
  refused(R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size");
  refused(R"({"bits": 4})", "quant_method");
}

TEST(SetOrder, sorts_inputs_by_group_and_keeps_their_order_within) {
  FormSettings settings{.group = 2, .order = {}};
  ASSERT_TRUE(set_order(settings, std::vector<std::int32_t>{1, 0, 2, 1, 0}));
  ASSERT_TRUE(settings.order);
  EXPECT_THAT(*settings.order, ElementsAre(1, 4, 0, 3, 2));
  ASSERT_TRUE(set_order(settings, std::vector<std::int32_t>{0, 0, 1, 1, 2}));
  EXPECT_FALSE(settings.order);
  ASSERT_TRUE(set_order(settings, std::vector<std::int32_t>{-1, -1, -1}));
  EXPECT_FALSE(settings.order);
  settings.group = 0;
  ASSERT_TRUE(set_order(settings, std::vector<std::int32_t>{0, 0, 0}));
  EXPECT_FALSE(settings.order);
}

TEST(SetOrder, groups_out_of_range_or_of_another_size_are_errors) {
  FormSettings settings{.group = 2, .order = {}};
  EXPECT_THAT(set_order(settings, std::vector<std::int32_t>{0, 0, 2, 1}).error().message, HasSubstr("input 2 is in group 2"));
  EXPECT_FALSE(set_order(settings, std::vector<std::int32_t>{0, -1, 1, 1}));
  EXPECT_THAT(set_order(settings, std::vector<std::int32_t>{0, 0, 0, 1}).error().message, HasSubstr("group 0 has 3 inputs, expected 2"));
}

}  // namespace
}  // namespace inflight::quant
