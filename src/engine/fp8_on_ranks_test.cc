// Static FP8 over ranks: scales are those of one rank whatever is cut, so ranks keep to the reference, and dealing out experts changes the order of sums alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "checkpoint/read_tensor.h"
#include "engine/compare_for_test.h"
#include "engine/convert_fp8.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "engine/tiny_models_for_test.h"

namespace inflight::engine {
namespace {

using checkpoint::read_named_f32;
using checkpoint::read_named_i64;

// groups > 1: data-parallel attention, whose experts are dealt to all ranks.
struct Layout {
  int groups = 1, tensor_ranks = 1;
  bool expert_parallel = false;
  int ranks() const { return groups * tensor_ranks; }
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.groups << " groups of " << layout.tensor_ranks << (layout.expert_parallel ? ", whole experts" : ""); }

EngineOptions static_fp8(const std::string& name, const std::string& target, const Layout& layout) {
  EngineOptions options = ranked_options(layout.tensor_ranks, "tensor_wise_fp8", layout.expert_parallel);
  options.data_parallel_size = layout.groups;
  options.fp8_target = target;
  options.fp8_activations = "static";
  options.fp8_amax = tiny(name) + "/fp8_amax.json";
  options.kv_cache_dtype = "float8_e4m3";
  options.fp8_sdpa = true;
  return options;
}

class StaticFp8OnRanks : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

// Weights, activations, cache and attention in FP8, as fp8_test.cc holds one rank to it: single codes differ where sums do.
TEST_P(StaticFp8OnRanks, keeps_to_the_reference) {
  const auto& [name, target] = GetParam();
  const std::string golden = tiny(name) + "/golden.safetensors", golden_fp8 = tiny(name) + "/golden_fp8.safetensors";
  const bool experts = plan_model(tiny(name), {}).value().info.experts != 0;
  for (const Layout& layout : {Layout{1, 2}, Layout{1, 4}, Layout{1, 2, true}, Layout{1, 4, true}, Layout{2, 1}, Layout{2, 2}, Layout{4, 1}}) {
    if ((layout.expert_parallel || layout.groups > 1) && !experts) continue;
    SCOPED_TRACE(testing::PrintToString(layout));
    RankedModel model(layout.ranks(), tiny(name), static_fp8(name, target, layout));
    ASSERT_TRUE(model.opened) << model.opened.error().message;
    for (int i = 0; i < 3; ++i) {
      const auto prompt = read_named_i64(golden, fmt::format("prompt.{}", i)).value();
      const auto plain = read_named_f32(golden, fmt::format("logits.{}", i)).value(), want = read_named_f32(golden_fp8, fmt::format("logits_fp8full-{}.{}", target, i)).value();
      const auto tokens = static_cast<std::int64_t>(prompt.size()), vocabulary = static_cast<std::int64_t>(want.size()) / tokens;
      const auto kl = [&](const std::vector<float>& a, const std::vector<float>& b) { return mean_kl(a.data(), vocabulary, b.data(), vocabulary, tokens, vocabulary); };
      const auto got = logits_of(**model.opened, prompt, /*decode=*/i == 1, DType::kF8E4M3);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_LE(kl(want, got), 0.25 * kl(plain, want)) << "prompt " << i;
    }
    expect_fine(model);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, StaticFp8OnRanks, testing::Combine(testing::Values("tiny-qwen2", "tiny-qwen3", "tiny-ernie4_5-moe"), testing::Values("ocp", "gaudi")),
                         [](const auto& test) { return test_label(std::get<0>(test.param) + "_" + std::get<1>(test.param)); });

// The residual stream before each layer: [layers + 1][tokens x hidden].
std::vector<std::vector<float>> stream_of(OpenedModel& opened, const std::vector<std::int64_t>& prompt, bool decode) {
  const models::ModelInfo& info = opened.model->info();
  const auto hidden = forward_once(opened, {prompt.begin(), prompt.end()}, {.hidden = true, .decode = decode, .kv_dtype = DType::kF8E4M3}).hidden;
  const auto size = static_cast<std::ptrdiff_t>(prompt.size()) * info.hidden;
  std::vector<std::vector<float>> layers;
  for (std::ptrdiff_t layer = 0; layer <= info.layers; ++layer) layers.emplace_back(hidden.begin() + layer * size, hidden.begin() + (layer + 1) * size);
  return layers;
}

// Attention is cut alike in all layouts of a row, so what comes to the first layer with experts has the same bits. There every expert sees the codes that it sees
// undealt, since their scale is one number of the model; what experts give is added in another order. (Later layers round what differs in the last bits to codes again,
// of which single ones differ: the test above bounds that.)
TEST(StaticFp8Experts, dealt_out_change_the_order_of_sums_alone) {
  const std::string name = "tiny-ernie4_5-moe";
  constexpr std::size_t kFirstWithExperts = 1;
  const auto prompt = read_named_i64(tiny(name) + "/golden.safetensors", "prompt.1").value();
  for (const std::string target : {"ocp", "gaudi"})
    for (const auto& same : {std::vector<Layout>{{1, 1}, {2, 1}, {4, 1}, {8, 1}}, {{1, 2}, {1, 2, true}, {2, 2}, {4, 2}}, {{1, 4}, {1, 4, true}, {2, 4}}})
      for (const bool decode : {false, true})
        for (const auto travel : {nn::Runtime::Travel::kToExperts, nn::Runtime::Travel::kToAll}) {
          std::vector<std::vector<float>> want;
          for (const Layout& layout : same) {
            if (layout.groups == 1 && travel == nn::Runtime::Travel::kToAll && !want.empty()) continue;
            SCOPED_TRACE(fmt::format("{} {} {} {}", testing::PrintToString(layout), target, decode ? "generated" : "prompt", travel == nn::Runtime::Travel::kToAll ? "to all" : "to experts"));
            const EngineOptions options = static_fp8(name, target, layout);
            std::vector<std::vector<float>> got;
            if (layout.ranks() == 1) {
              const auto one = open_model(tiny(name), options);
              ASSERT_TRUE(one) << one.error().message;
              got = stream_of(**one, prompt, decode);
            } else {
              RankedModel model(layout.ranks(), tiny(name), options, [=](OpenedModel& opened, int) { opened.runtime->travel = travel; });
              ASSERT_TRUE(model.opened) << model.opened.error().message;
              (*model.opened)->runtime->travel = travel;
              got = stream_of(**model.opened, prompt, decode);
              expect_fine(model);
            }
            if (want.empty()) {
              want = got;
              continue;
            }
            for (std::size_t layer = 0; layer <= kFirstWithExperts; ++layer) EXPECT_EQ(got[layer], want[layer]) << "before layer " << layer;
            // A sum of 4 numbers of at most `largest` in another order: a few last bits. One code of 448 in one of 64 inputs is a thousand times that.
            const float largest_sum = largest(want[kFirstWithExperts + 1]);
            for (std::size_t i = 0; i < want[kFirstWithExperts + 1].size(); ++i)
              ASSERT_LE(std::fabs(got[kFirstWithExperts + 1][i] - want[kFirstWithExperts + 1][i]), 1e-6f * largest_sum) << "after the first layer with experts, number " << i;
          }
        }
}

// ---- scales that a folder brings

using Inputs = std::map<std::string, quant::Fp8Input>;
Inputs inputs_of(const OpenedModel& opened) {
  Inputs inputs;
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) {
    if (opened.store.vector(i)) continue;
    const quant::Matrix& matrix = opened.store.matrix(i);
    if (matrix.format && matrix.format->codes == quant::Codes::kE4M3) inputs[opened.table.rows[i].full_name()] = matrix.fp8_input;
  }
  return inputs;
}

TestFolder::Tensor f32(float value) {
  TestFolder::Tensor tensor{DType::kF32, {1}, std::string(4, '\0')};
  std::memcpy(tensor.data.data(), &value, 4);
  return tensor;
}

// An expert without a scale takes the largest of all others, and inputs that experts share have the largest scale of any: on ranks too, which hold some experts alone.
TEST(StaticFp8Experts, share_scales_with_experts_of_other_ranks) {
  const ScratchFolder scratch;
  const std::string name = "tiny-ernie4_5-moe", experts = "model.layers.2.mlp.experts.";
  for (const std::string target : {"ocp", "gaudi"}) {
    EngineOptions convert;
    convert.quantization = "tensor_wise_fp8";
    convert.fp8_target = target;
    const auto written = convert_fp8(tiny(name), convert, {.scales = tiny(name) + "/fp8_amax.json", .naming = "hf"}, scratch.at(target));
    ASSERT_TRUE(written) << written.error().message;
    TestFolder folder = TestFolder::read(scratch.at(target));
    for (int e = 0; e < 8; ++e) {
      for (const char* piece : {".gate_proj", ".up_proj"}) ASSERT_TRUE(folder.tensors.contains(experts + std::to_string(e) + piece + ".input_scale"));
      folder.tensors[experts + std::to_string(e) + ".gate_proj.input_scale"] = folder.tensors[experts + std::to_string(e) + ".up_proj.input_scale"] = f32(e == 6 ? 0.75f : 0.25f);
      folder.tensors[experts + std::to_string(e) + ".down_proj.input_scale"] = f32(e == 1 ? 0 : e == 7 ? 0.5f : 0.125f);
    }
    folder.write(scratch.at(target + "-uneven"));
    const auto options = [&](const Layout& layout) {
      EngineOptions result = ranked_options(layout.tensor_ranks, "", layout.expert_parallel);
      result.data_parallel_size = layout.groups;
      result.fp8_activations = "auto";
      result.lm_head = "auto";
      return result;
    };
    const auto one = open_model(scratch.at(target + "-uneven"), options({}));
    ASSERT_TRUE(one) << one.error().message;
    const Inputs want = inputs_of(**one);
    const float bound = target == "gaudi" ? 240 : 448;
    for (int e = 0; e < 8; ++e) {
      EXPECT_TRUE(want.at(experts + std::to_string(e) + ".up_gate_proj.weight") == (quant::Fp8Input{quant::Fp8Input::Scale::kStatic, 0.75f, bound}));
      EXPECT_TRUE(want.at(experts + std::to_string(e) + ".down_proj.weight") == (quant::Fp8Input{quant::Fp8Input::Scale::kStatic, e == 1 || e == 7 ? 0.5f : 0.125f, bound}));
    }
    for (const Layout& layout : {Layout{1, 2}, Layout{1, 2, true}, Layout{1, 4, true}, Layout{2, 1}, Layout{4, 2}}) {
      SCOPED_TRACE(fmt::format("{} {}", target, testing::PrintToString(layout)));
      std::mutex mutex;
      Inputs got;
      const auto compare = [&](const OpenedModel& opened) {
        const std::scoped_lock lock(mutex);
        for (const auto& [matrix, input] : inputs_of(opened)) {
          EXPECT_TRUE(input == want.at(matrix)) << matrix << ": " << input.scale << ", one rank has " << want.at(matrix).scale;
          got[matrix] = input;
        }
      };
      RankedModel model(layout.ranks(), scratch.at(target + "-uneven"), options(layout), [&](OpenedModel& opened, int) { compare(opened); });
      ASSERT_TRUE(model.opened) << model.opened.error().message;
      compare(**model.opened);
      expect_fine(model);
      EXPECT_EQ(got.size(), want.size());
    }
  }
}

}  // namespace
}  // namespace inflight::engine
