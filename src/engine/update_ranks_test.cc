// Weights from a trainer for a model on several ranks: on each the very bytes of a fresh load on as many ranks, on all or on none. Ranks are threads here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "engine/update_for_test.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

struct Ranks {
  int groups = 1, tensor = 2;
  bool experts = false;
  int all() const { return groups * tensor; }
};

EngineOptions options_of(const Ranks& ranks, const std::string& quantization) {
  EngineOptions options;
  options.quantization = quantization;
  options.compute = "fp32";
  options.fp8_activations = "none";
  options.threads = 2;
  options.kv_cache_bytes = 16 << 20;
  options.max_model_len = 64;
  options.tensor_parallel_size = ranks.tensor;
  options.data_parallel_size = ranks.groups;
  options.enable_expert_parallel = ranks.experts;
  return options;
}

// An engine on ranks, of each of which this thread sees what it holds, from the first forward() on and between steps.
struct Served {
  Served(const std::string& folder, const Ranks& ranks, EngineOptions options)
      : opened(static_cast<std::size_t>(ranks.all())), model(ranks.all(), folder, options, [this](OpenedModel& own, int rank) { opened[static_cast<std::size_t>(rank)] = &own; }) {
    if (!model.opened) {
      ADD_FAILURE() << model.opened.error().message;
      return;
    }
    opened[0] = model.opened->get();
    auto made = Engine::create(*std::move(model.opened), options);
    if (made) engine = *std::move(made);
    else ADD_FAILURE() << made.error().message;
  }
  Served(const std::string& folder, const Ranks& ranks, const std::string& quantization) : Served(folder, ranks, options_of(ranks, quantization)) {}
  std::vector<float> logits() { return forward_once(*opened[0], {3, 1, 4, 1, 5, 9, 2, 6}).logits; }
  Result<std::int64_t> update(const Engine::TensorStream& stream) {
    engine->pause();
    auto version = engine->update_weights(stream);
    engine->resume();
    return version;
  }
  void expect_fine() {
    engine.reset();
    for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
  }

  std::vector<OpenedModel*> opened;
  RankedModel model;
  std::unique_ptr<Engine> engine;
};

bool same_bytes(const void* a, const void* b, std::int64_t bytes) { return bytes == 0 || std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0; }

// Everything that the ranks hold. Both have made a step since it changed.
void expect_same(const Served& got, const Served& want) {
  for (std::size_t rank = 0; rank < want.opened.size(); ++rank)
    for (std::size_t i = 0; i < want.opened[rank]->table.rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << want.opened[rank]->table.rows[i].full_name() << " on rank " << rank);
      const quant::ParamStore &a = got.opened[rank]->store, &b = want.opened[rank]->store;
      const quant::Slot& slot = want.opened[rank]->plan.slots[i];
      if (!slot.format) {
        EXPECT_TRUE(same_bytes(a.vector(i), b.vector(i), slot.bytes.codes));
        continue;
      }
      const quant::Matrix &x = a.matrix(i), &y = b.matrix(i);
      EXPECT_TRUE(same_bytes(x.codes, y.codes, slot.bytes.codes));
      ASSERT_EQ(x.scales_fp16, y.scales_fp16);
      ASSERT_EQ(x.wide_scales.bytes(), y.wide_scales.bytes());
      EXPECT_TRUE(same_bytes(x.wide_scales.data(), y.wide_scales.data(), static_cast<std::int64_t>(y.wide_scales.bytes())));
      if (y.wide_scales.bytes() == 0) {
        EXPECT_TRUE(same_bytes(x.scales, y.scales, slot.bytes.scales));
      }
    }
}

void expect_update(const std::string& folder, const TestFolder& next, const Ranks& ranks, const std::string& quantization) {
  const ScratchFolder scratch;
  next.write(scratch.at("next"));
  Served served(folder, ranks, quantization), fresh(scratch.at("next"), ranks, quantization);
  ASSERT_TRUE(served.engine && fresh.engine);
  const std::vector<float> before = served.logits(), expected = fresh.logits();
  const auto version = served.update(stream_of(next));
  ASSERT_TRUE(version) << version.error().message;
  EXPECT_EQ(*version, 1);
  const std::vector<float> updated = served.logits();
  EXPECT_NE(updated, before);
  EXPECT_EQ(updated, expected);
  expect_same(served, fresh);
  served.expect_fine();
  fresh.expect_fine();
}

struct Case {
  std::string model, quantization;
  Ranks ranks;
};

class UpdateOnRanks : public testing::TestWithParam<Case> {};

TEST_P(UpdateOnRanks, gives_the_bytes_of_a_fresh_load) {
  const auto& [model, quantization, ranks] = GetParam();
  expect_update(tiny(model), changed(tiny(model)), ranks, quantization);
}

std::string name_of(const Case& c) {
  std::string name = fmt::format("{}_{}_{}x{}{}", c.model, c.quantization.empty() ? "bf16" : c.quantization, c.ranks.groups, c.ranks.tensor, c.ranks.experts ? "_experts" : "");
  std::ranges::replace_if(name, [](char at) { return !std::isalnum(static_cast<unsigned char>(at)); }, '_');
  return name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string quantization : {"", "wint8", "wint4", "wint4-g32", "wint4-g128", "wlut4", "tensor_wise_fp8", "block_wise_fp8"}) {
    all.push_back({"tiny-qwen3", quantization, {.tensor = 2}});
    all.push_back({"tiny-llama-odd", quantization, {.tensor = 4}});
    all.push_back({"tiny-qwen3-moe", quantization, {.tensor = 2, .experts = true}});
  }
  for (const std::string quantization : {"wint8", "wint4-g32", "tensor_wise_fp8", "block_wise_fp8"}) {
    all.push_back({"tiny-qwen3-moe", quantization, {.tensor = 4}});                         // experts cut
    all.push_back({"tiny-ernie4_5-moe-paddle", quantization, {.tensor = 2}});               // transposed tensors
    all.push_back({"tiny-ernie4_5-moe-paddle", quantization, {.tensor = 2, .experts = true}});
    all.push_back({"tiny-deepseek-v3", quantization, {.tensor = 2, .experts = true}});      // matrices that follow from others
    all.push_back({"tiny-deepseek-v3", quantization, {.groups = 2, .tensor = 2}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, UpdateOnRanks, testing::ValuesIn(cases()), [](const auto& test) { return name_of(test.param); });

// One tensor for all experts of a layer, its last two axes exchanged or not.
TEST(UpdateOnRanks, of_stacked_experts_too) {
  for (const bool transposed : {false, true}) {
    SCOPED_TRACE(transposed ? "transposed" : "as they are");
    const std::string quantized = transposed ? "tensor_wise_fp8" : "wint8";
    TestFolder folder = TestFolder::read(tiny("tiny-qwen3-moe"));
    const std::int64_t experts = 8;
    for (int layer = 0; layer < 4; ++layer) {
      const std::string scope = fmt::format("model.layers.{}.mlp.experts.", layer);
      if (!folder.tensors.contains(scope + "0.up_proj.weight")) continue;
      TestFolder::Tensor up, down;
      const auto add = [&](TestFolder::Tensor& to, std::vector<std::string> names) {
        std::vector<std::uint16_t> rows;
        std::int64_t outputs = 0, inputs = 0;
        for (const std::string& name : names) {
          const TestFolder::Tensor& from = folder.tensors.at(name);
          const auto* numbers = reinterpret_cast<const std::uint16_t*>(from.data.data());
          rows.insert(rows.end(), numbers, numbers + from.data.size() / 2);
          outputs += from.shape[0];
          inputs = from.shape[1];
          folder.tensors.erase(name);
        }
        std::vector<std::uint16_t> turned(rows.size());
        for (std::int64_t n = 0; n < outputs; ++n)
          for (std::int64_t k = 0; k < inputs; ++k) turned[static_cast<std::size_t>(k * outputs + n)] = rows[static_cast<std::size_t>(n * inputs + k)];
        const auto& written = transposed ? turned : rows;
        to.dtype = DType::kBF16;
        to.shape = transposed ? std::vector{experts, inputs, outputs} : std::vector{experts, outputs, inputs};
        to.data.append(reinterpret_cast<const char*>(written.data()), written.size() * 2);
      };
      for (std::int64_t e = 0; e < experts; ++e) {
        const std::string one = fmt::format("{}{}.", scope, e);
        add(up, {one + "gate_proj.weight", one + "up_proj.weight"});
        add(down, {one + "down_proj.weight"});
      }
      folder.tensors[scope + "gate_up_proj"] = up;
      folder.tensors[scope + "down_proj"] = down;
    }
    const ScratchFolder scratch;
    folder.write(scratch.at("stacked"));
    for (const bool whole : {false, true}) expect_update(scratch.at("stacked"), changed(scratch.at("stacked")), {.tensor = 2, .experts = whole}, quantized);
  }
}

// Group scales that FP16 holds on one rank and not on the other: both keep FP32, as after a load.
TEST(UpdateOnRanks, keeps_wide_scales_on_all_ranks_where_one_needs_them) {
  TestFolder next = changed(tiny("tiny-qwen3"));
  TestFolder::Tensor& down = next.tensors.at("model.layers.0.mlp.down_proj.weight");
  const std::int64_t inputs = down.shape[1];
  for (std::int64_t k = inputs / 2; k < inputs; ++k) std::memcpy(down.data.data() + (5 * inputs + k) * 2, "\x80\x30", 2);  // 2^-30
  const ScratchFolder scratch;
  next.write(scratch.at("next"));
  Served fresh(scratch.at("next"), {.tensor = 2}, "wint4-g32");
  ASSERT_TRUE(fresh.engine);
  fresh.logits();
  std::size_t wide = 0;
  for (const OpenedModel* own : fresh.opened)
    for (std::size_t i = 0; i < own->table.rows.size(); ++i) wide += !own->store.vector(i) && own->store.matrix(i).wide_scales.bytes() != 0;
  EXPECT_EQ(wide, 2u) << "a matrix on both ranks";
  fresh.expect_fine();
  expect_update(tiny("tiny-qwen3"), next, {.tensor = 2}, "wint4-g32");
}

class UpdateOnRanksRules : public testing::Test {
 protected:
  ScratchFolder scratch_;
  TestFolder next_ = changed(tiny("tiny-qwen3"));
  Served served_{tiny("tiny-qwen3"), {.tensor = 2}, "wint8"};
  std::vector<float> before_ = served_.logits();

  void refused(const Engine::TensorStream& stream, const testing::Matcher<const std::string&>& message) {
    const auto version = served_.update(stream);
    ASSERT_FALSE(version);
    EXPECT_THAT(version.error().message, message);
    EXPECT_EQ(served_.engine->weights_version(), 0);
    EXPECT_EQ(served_.logits(), before_);
  }
  // The next one is taken all the same.
  void TearDown() override {
    if (!served_.engine) return;
    next_.write(scratch_.at("next"));
    const auto version = served_.update(stream_of(next_));
    ASSERT_TRUE(version) << version.error().message;
    Served fresh(scratch_.at("next"), {.tensor = 2}, "wint8");
    EXPECT_EQ(served_.logits(), fresh.logits());
    served_.expect_fine();
    fresh.expect_fine();
  }
};

TEST_F(UpdateOnRanksRules, what_rank_0_refuses_changes_nothing) {
  TestFolder wrong = next_;
  wrong.tensors["model.layers.9.mlp.up_proj.weight"] = wrong.tensors.at("model.layers.0.mlp.up_proj.weight");
  refused(stream_of(wrong), HasSubstr("model.layers.9.mlp.up_proj.weight"));
  refused(stream_of(next_, [](const std::string& name) { return name.ends_with("0.self_attn.q_proj.weight"); }), AllOf(HasSubstr("model.layers.0.self_attn.k_proj.weight"), HasSubstr("unchanged")));
  refused([stream = stream_of(next_), left = 5]() mutable -> Result<std::optional<loader::NamedTensor>> {
    if (left-- == 0) return fail(Code::kCancelled, "the trainer went away");
    return stream();
  }, HasSubstr("the trainer went away"));
  refused([]() -> Result<std::optional<loader::NamedTensor>> { return std::nullopt; }, HasSubstr("no tensor"));
}

TEST_F(UpdateOnRanksRules, what_another_rank_finds_changes_nothing_anywhere) {
  TestFolder wrong = next_;
  std::string& up = wrong.tensors.at("model.layers.1.mlp.up_proj.weight").data;  // its last rows are rank 1's
  up.replace(up.size() - 2, 2, "\xc0\x7f");
  refused(stream_of(wrong), AllOf(HasSubstr("rank 1 could not take the new weights, and all ranks keep those they had"), HasSubstr("model.layers.1.mlp.up_proj.weight"), HasSubstr("at [191, 63]"), HasSubstr("finite")));
  wrong = next_;
  std::string& down = wrong.tensors.at("model.layers.1.mlp.down_proj.weight").data;  // rank 0's columns
  down.replace(0, 2, "\xc0\x7f");
  refused(stream_of(wrong), AllOf(HasSubstr("model.layers.1.mlp.down_proj.weight"), HasSubstr("at [0, 0]"), HasSubstr("finite")));
}

TEST_F(UpdateOnRanksRules, a_layer_alone_is_updated_and_the_others_stay) {
  TestFolder mixed = TestFolder::read(tiny("tiny-qwen3"));
  const auto wanted = [](const std::string& name) { return name.starts_with("model.layers.1."); };
  for (auto& [name, tensor] : mixed.tensors)
    if (wanted(name)) tensor = next_.tensors.at(name);
  mixed.write(scratch_.at("mixed"));
  ASSERT_TRUE(served_.update(stream_of(next_, wanted)));
  Served fresh(scratch_.at("mixed"), {.tensor = 2}, "wint8");
  EXPECT_EQ(served_.logits(), fresh.logits());
  expect_same(served_, fresh);
  fresh.expect_fine();
}

TEST_F(UpdateOnRanksRules, requests_in_progress_go_on_with_the_new_weights) {
  const auto finish = [](Engine& engine, RequestId id, std::vector<std::int32_t> tokens) {
    while (engine.has_work())
      for (const Event& event : engine.step())
        if (event.request == id && event.token) tokens.push_back(*event.token);
    return tokens;
  };
  Request request;
  request.prompt = {3, 1, 4, 1, 5};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  const RequestId id = served_.engine->submit(request).value();
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 3; ++i)
    for (const Event& event : served_.engine->step()) tokens.push_back(event.token.value());
  ASSERT_TRUE(served_.update(stream_of(next_)));
  const auto all = finish(*served_.engine, id, tokens);
  ASSERT_EQ(all.size(), 8u);

  next_.write(scratch_.at("next"));
  Served fresh(scratch_.at("next"), {.tensor = 2}, "wint8");
  Request rest = request;
  rest.prompt.insert(rest.prompt.end(), tokens.begin(), tokens.end());
  rest.sampling.max_tokens = 5;
  const auto end = finish(*fresh.engine, fresh.engine->submit(rest).value(), {});
  EXPECT_TRUE(std::ranges::equal(end, std::vector(all.begin() + 3, all.end())));
  fresh.expect_fine();
}

TEST(UpdateOnRanksFailure, a_rank_that_goes_away_ends_the_update_with_its_message) {
  const TestFolder next = changed(tiny("tiny-qwen3"));
  Served served(tiny("tiny-qwen3"), {.tensor = 2}, "wint8");
  ASSERT_TRUE(served.engine);
  served.logits();
  comm::Comm& other = *served.opened[1]->ranks;
  const auto version = served.update([stream = stream_of(next), left = 5, &other]() mutable -> Result<std::optional<loader::NamedTensor>> {
    if (left-- == 0) other.fail({Code::kExhausted, "no more"});
    return stream();
  });
  ASSERT_FALSE(version);
  EXPECT_THAT(version.error().message, AllOf(HasSubstr("rank 1"), HasSubstr("no more")));
  EXPECT_EQ(served.engine->weights_version(), 0);
  served.engine.reset();
  EXPECT_FALSE(served.model.end()[1]);
}

TEST(UpdateOnRanksFailure, experts_that_may_move_are_refused) {
  const TestFolder next = changed(tiny("tiny-qwen3-moe"));
  const Ranks ranks{.tensor = 2, .experts = true};
  EngineOptions options = options_of(ranks, "");
  options.enable_eplb = true;
  Served served(tiny("tiny-qwen3-moe"), ranks, options);
  ASSERT_TRUE(served.engine);
  const std::vector<float> before = served.logits();
  const auto version = served.update(stream_of(next));
  ASSERT_FALSE(version);
  EXPECT_THAT(version.error().message, HasSubstr("--enable-eplb"));
  EXPECT_EQ(served.logits(), before);
  served.expect_fine();
}

}  // namespace
}  // namespace inflight::engine
