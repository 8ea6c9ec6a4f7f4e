// Running FP8: static activations, KV cache and attention against the reference (tools/make_fp8_goldens.py), dynamic activations, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/read_tensor.h"
#include "engine/compare_for_test.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

std::vector<float> golden_f32(const std::string& file, const std::string& name) { return checkpoint::read_named_f32(file, name).value(); }

EngineOptions static_fp8(const std::string& model, const std::string& target) {
  EngineOptions options;
  options.quantization = "tensor_wise_fp8";
  options.fp8_target = target;
  options.fp8_amax = tiny(model) + "/fp8_amax.json";
  options.kv_cache_dtype = "float8_e4m3";
  options.fp8_sdpa = true;
  options.lm_head = "bf16";
  options.compute = "fp32";
  options.threads = 2;
  return options;
}

class StaticFp8 : public testing::TestWithParam<std::string> {};

TEST_P(StaticFp8, logits_are_those_of_the_reference_but_for_single_codes) {
  const std::string& model = GetParam();
  const std::string golden = tiny(model) + "/golden.safetensors", golden_fp8 = tiny(model) + "/golden_fp8.safetensors";
  std::vector<double> all;
  for (const std::string target : {"ocp", "gaudi"}) {
    auto opened = open_model(tiny(model), static_fp8(model, target));
    ASSERT_TRUE(opened) << opened.error().message;
    const std::int64_t vocabulary = (*opened)->model->info().vocabulary, stride = (*opened)->model->logits_stride();
    for (int i = 0; i < 3; ++i) {
      const auto prompt = checkpoint::read_named_i64(golden, fmt::format("prompt.{}", i)).value();
      const auto plain = golden_f32(golden, fmt::format("logits.{}", i)), want = golden_f32(golden_fp8, fmt::format("logits_fp8full-{}.{}", target, i));
      const auto tokens = static_cast<std::int64_t>(prompt.size());
      for (const bool decode : {false, true}) {
        const auto got = forward_once(**opened, {prompt.begin(), prompt.end()}, {.decode = decode, .kv_dtype = DType::kF8E4M3}).logits;
        const double kl = mean_kl(want.data(), vocabulary, got.data(), stride, tokens, vocabulary);
        EXPECT_LE(kl, 0.25 * mean_kl(plain.data(), vocabulary, want.data(), vocabulary, tokens, vocabulary)) << target << ", prompt " << i << (decode ? ", generated" : "");
        if (!decode) all.push_back(kl);
      }
    }
  }
  std::ranges::sort(all);
  EXPECT_LE((all[2] + all[3]) / 2, 2e-3);
}

INSTANTIATE_TEST_SUITE_P(Tiny, StaticFp8, testing::Values("tiny-qwen2", "tiny-qwen3", "tiny-ernie4_5-moe"), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

// A token's scale is its own: alone it has the bits that it has beside others, and the arithmetic stays near that of unrounded activations.
TEST(DynamicFp8, a_token_alone_has_the_bits_it_has_beside_others) {
  EngineOptions options = static_fp8("tiny-qwen3", "ocp");
  options.fp8_amax.clear();
  options.fp8_activations = "dynamic";
  options.kv_cache_dtype = "fp32";
  options.fp8_sdpa = false;
  auto opened = open_model(tiny("tiny-qwen3"), options);
  ASSERT_TRUE(opened) << opened.error().message;
  const std::vector<std::int32_t> ids = {5, 17, 3, 99, 250, 7, 7, 31};
  const auto all = forward_once(**opened, ids).logits;
  const std::int64_t stride = (*opened)->model->logits_stride();
  for (std::size_t n = 1; n <= ids.size(); ++n) {
    const auto last = forward_once(**opened, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n)}, {.last_only = true}).logits;
    EXPECT_TRUE(std::equal(last.begin(), last.begin() + stride, all.begin() + static_cast<std::ptrdiff_t>(n - 1) * stride)) << n;
  }
  options.fp8_activations = "none";
  auto plain = open_model(tiny("tiny-qwen3"), options);
  const auto unrounded = forward_once(**plain, ids).logits;
  EXPECT_NE(all, unrounded);
  EXPECT_LT(mean_kl(unrounded.data(), stride, all.data(), stride, static_cast<std::int64_t>(ids.size()), (*opened)->model->info().vocabulary), 0.2);  // random weights exaggerate
}

std::string refused(const EngineOptions& options, const std::string& model = "tiny-qwen3") {
  auto opened = open_model(tiny(model), options);
  EXPECT_FALSE(opened);
  return opened ? "" : opened.error().message;
}

TEST(Fp8Refused, static_without_scales_names_what_is_missing) {
  EngineOptions options = static_fp8("tiny-qwen3", "ocp");
  options.fp8_amax.clear();
  options.fp8_activations = "static";
  EXPECT_THAT(refused(options), AllOf(HasSubstr("model.layers.0.self_attn.qkv_proj"), HasSubstr("--fp8-amax")));
}

TEST(Fp8Refused, scales_of_half_the_layers) {
  const ScratchFolder scratch;
  Json amax = read_json_file(tiny("tiny-qwen3") + "/fp8_amax.json").value();
  for (const char* point : {"q_matmul", "cachek_matmul", "cachev_matmul"}) amax.erase(std::string("model.layers.1.self_attn.") + point);
  std::ofstream(scratch.at("amax.json")) << amax.dump();
  EngineOptions options = static_fp8("tiny-qwen3", "ocp");
  options.fp8_amax = scratch.at("amax.json");
  EXPECT_THAT(refused(options), HasSubstr("model.layers.1.self_attn"));
}

TEST(Fp8Refused, attention_without_its_cache_and_latents) {
  EngineOptions options = static_fp8("tiny-qwen3", "ocp");
  options.kv_cache_dtype = "fp32";
  EXPECT_THAT(refused(options), HasSubstr("--kv-cache-dtype float8_e4m3"));
  options = static_fp8("tiny-qwen3", "ocp");
  options.fp8_amax.clear();
  options.fp8_sdpa = false;
  EXPECT_THAT(refused(options, "tiny-deepseek-v3"), HasSubstr("latents"));
}

}  // namespace
}  // namespace inflight::engine
