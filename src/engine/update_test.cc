// Weights from a trainer: the same bits as a fresh load, all or nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "engine/engine.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "engine/update_for_test.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

std::unique_ptr<Engine> engine_of(const std::string& folder, const std::string& quantization, const std::string& compute = "fp32") {
  EngineOptions options;
  options.quantization = quantization;
  options.compute = compute;
  options.threads = 2;
  options.kv_cache_bytes = 16 << 20;
  options.max_model_len = 64;
  auto opened = open_model(folder, options);
  if (!opened) ADD_FAILURE() << opened.error().message;
  auto engine = Engine::create(std::move(opened).value(), options);
  if (!engine) ADD_FAILURE() << engine.error().message;
  return std::move(engine).value();
}

std::vector<float> logits_of(const Engine& engine) {
  auto& opened = const_cast<OpenedModel&>(engine.model());
  return forward_once(opened, {3, 1, 4, 1, 5, 9, 2, 6}).logits;
}

struct Case {
  std::string model, quantization;
};

class UpdateWeights : public testing::TestWithParam<Case> {
 protected:
  ScratchFolder scratch_;
};

TEST_P(UpdateWeights, all_tensors_give_the_bits_of_a_fresh_load) {
  const auto& [model, quantization] = GetParam();
  TestFolder next = changed(tiny(model));
  next.write(scratch_.at("next"));
  const auto engine = engine_of(tiny(model), quantization);
  const std::vector<float> before = logits_of(*engine);
  engine->pause();
  const auto version = engine->update_weights(stream_of(next));
  ASSERT_TRUE(version) << version.error().message;
  EXPECT_EQ(*version, 1);
  EXPECT_EQ(engine->weights_version(), 1);
  const auto fresh = engine_of(scratch_.at("next"), quantization);
  const std::vector<float> updated = logits_of(*engine), expected = logits_of(*fresh);
  EXPECT_NE(updated, before);
  EXPECT_EQ(updated, expected);
}

INSTANTIATE_TEST_SUITE_P(Models, UpdateWeights,
                         testing::Values(Case{"tiny-llama", ""}, Case{"tiny-qwen2", "wint8"}, Case{"tiny-qwen3", "wint4-g32"}, Case{"tiny-qwen3-moe", "wint8"}, Case{"tiny-ernie4_5-moe", "wint4"},
                                         Case{"tiny-ernie4_5-moe-paddle", "wint8"}, Case{"tiny-deepseek-v3", "wlut4"}),
                         [](const auto& test) {
                           std::string name = test.param.model + "_" + test.param.quantization;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

class UpdateRules : public testing::Test {
 protected:
  ScratchFolder scratch_;
  TestFolder next_ = changed(tiny("tiny-qwen3"));
  std::unique_ptr<Engine> engine_ = engine_of(tiny("tiny-qwen3"), "wint8");
  std::vector<float> before_ = logits_of(*engine_);

  // The update fails with this in its message, and the old weights serve.
  void refused(const Engine::TensorStream& stream, const testing::Matcher<const std::string&>& message) {
    engine_->pause();
    const auto version = engine_->update_weights(stream);
    ASSERT_FALSE(version);
    EXPECT_THAT(version.error().message, message);
    EXPECT_EQ(engine_->weights_version(), 0);
    EXPECT_EQ(logits_of(*engine_), before_);
  }
};

TEST_F(UpdateRules, an_engine_that_is_not_paused_refuses) {
  const auto version = engine_->update_weights(stream_of(next_));
  ASSERT_FALSE(version);
  EXPECT_THAT(version.error().message, HasSubstr("pause()"));
}

TEST_F(UpdateRules, a_layer_alone_is_updated_and_the_others_stay) {
  TestFolder mixed = TestFolder::read(tiny("tiny-qwen3"));
  for (auto& [name, tensor] : mixed.tensors)
    if (name.starts_with("model.layers.1.")) tensor = next_.tensors.at(name);
  mixed.write(scratch_.at("mixed"));
  engine_->pause();
  ASSERT_TRUE(engine_->update_weights(stream_of(next_, [](const std::string& name) { return name.starts_with("model.layers.1."); })));
  EXPECT_EQ(logits_of(*engine_), logits_of(*engine_of(scratch_.at("mixed"), "wint8")));
}

TEST_F(UpdateRules, a_fused_parameter_needs_all_of_its_tensors) {
  refused(stream_of(next_, [](const std::string& name) { return name.ends_with("0.self_attn.q_proj.weight"); }), AllOf(HasSubstr("model.layers.0.self_attn.k_proj.weight"), HasSubstr("unchanged")));
}

TEST_F(UpdateRules, unknown_names_wrong_shapes_and_numbers_that_are_not_finite_change_nothing) {
  TestFolder wrong = next_;
  wrong.tensors["model.layers.9.mlp.up_proj.weight"] = wrong.tensors.at("model.layers.0.mlp.up_proj.weight");
  refused(stream_of(wrong), HasSubstr("model.layers.9.mlp.up_proj.weight"));
  wrong = next_;
  std::swap(wrong.tensors.at("model.layers.1.mlp.up_proj.weight").shape[0], wrong.tensors.at("model.layers.1.mlp.up_proj.weight").shape[1]);
  refused(stream_of(wrong), AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"), HasSubstr("shape")));
  wrong = next_;
  std::string& data = wrong.tensors.at("model.layers.1.mlp.up_proj.weight").data;
  data[data.size() - 1] = '\x7f';
  data[data.size() - 2] = '\xc0';
  refused(stream_of(wrong), AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"), HasSubstr("finite")));
  wrong = next_;
  wrong.tensors.at("model.norm.weight").data.pop_back();
  refused(stream_of(wrong), HasSubstr("bytes"));
}

TEST_F(UpdateRules, a_stream_that_fails_or_repeats_changes_nothing) {
  refused([stream = stream_of(next_), left = 5]() mutable -> Result<std::optional<loader::NamedTensor>> {
    if (left-- == 0) return fail(Code::kCancelled, "the trainer went away");
    return stream();
  }, HasSubstr("the trainer went away"));
  refused([this]() -> Result<std::optional<loader::NamedTensor>> {
    const auto& [name, tensor] = *next_.tensors.begin();
    return loader::NamedTensor{name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.data))};
  }, HasSubstr("twice"));
  refused([]() -> Result<std::optional<loader::NamedTensor>> { return std::nullopt; }, HasSubstr("no tensor"));
}

TEST_F(UpdateRules, requests_in_progress_go_on_with_the_new_weights) {
  next_.write(scratch_.at("next"));
  const auto finish = [](Engine& engine, RequestId id, std::deque<std::int32_t> tokens) {
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
  const RequestId id = engine_->submit(request).value();
  std::deque<std::int32_t> tokens;
  for (int i = 0; i < 3; ++i)
    for (const Event& event : engine_->step()) tokens.push_back(event.token.value());
  engine_->pause();
  EXPECT_TRUE(engine_->step().empty());
  ASSERT_TRUE(engine_->update_weights(stream_of(next_)));
  engine_->resume();
  const auto all = finish(*engine_, id, tokens);
  ASSERT_EQ(all.size(), 8u);

  // The same tokens as a prompt of a fresh engine lead to the same end.
  const auto fresh = engine_of(scratch_.at("next"), "wint8");
  Request rest = request;
  rest.prompt.insert(rest.prompt.end(), tokens.begin(), tokens.end());
  rest.sampling.max_tokens = 5;
  const auto end = finish(*fresh, fresh->submit(rest).value(), {});
  EXPECT_TRUE(std::ranges::equal(end, std::vector(all.begin() + 3, all.end())));
}

}  // namespace
}  // namespace inflight::engine
