// Checkpoints that contradict themselves, their config or the machine: each is refused before or while loading, with a message that says
// what, where, expected against got, and what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "engine/memory_limit.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "kernels/dispatch.h"
#include "loader/load.h"
#include "models/registry.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kTiny = std::string(INFLIGHT_TEST_DATA) + "/tiny/";
const std::string kQ = "model.layers.1.self_attn.q_proj.weight";

class BadCheckpoint : public testing::Test {
 protected:
  BadCheckpoint() : folder_(TestFolder::read(kTiny + "tiny-llama")) {}

  Error refused(const EngineOptions& options = {}) {
    folder_.write(scratch_.at("model"));
    auto opened = open_model(scratch_.at("model"), options);
    EXPECT_FALSE(opened) << "was accepted";
    return opened ? Error{} : opened.error();
  }
  void accepted(const EngineOptions& options = {}) {
    folder_.write(scratch_.at("model"));
    auto opened = open_model(scratch_.at("model"), options);
    EXPECT_TRUE(opened) << opened.error().message;
  }

  TestFolder folder_;
  ScratchFolder scratch_;
};

TEST_F(BadCheckpoint, the_unchanged_copy_loads) { accepted(); }

TEST_F(BadCheckpoint, missing_tensors_are_listed) {
  folder_.tensors.erase(kQ);
  folder_.tensors.erase("model.norm.weight");
  const Error error = refused();
  EXPECT_EQ(error.code, Code::kCorrupt);
  EXPECT_THAT(error.message, AllOf(HasSubstr("2 of the"), HasSubstr(kQ), HasSubstr("model.norm.weight"), HasSubstr("incomplete download")));
}

TEST_F(BadCheckpoint, a_long_list_of_missing_tensors_is_cut) {
  folder_.config["num_hidden_layers"] = 9;
  EXPECT_THAT(refused().message, AllOf(HasSubstr("54 of the"), HasSubstr("... and 46 more")));
}

TEST_F(BadCheckpoint, a_tensor_that_nothing_wants_is_an_error) {
  folder_.tensors["model.layers.1.self_attn.q_proj.extra"] = {DType::kF32, {1}, std::string(4, '\0')};
  EXPECT_THAT(refused().message, AllOf(HasSubstr("belong to no parameter"), HasSubstr("q_proj.extra [1]")));
}

TEST_F(BadCheckpoint, a_rotary_cache_is_ignored_by_its_rule_and_reported) {
  folder_.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {8}, std::string(32, '\0')};
  folder_.write(scratch_.at("model"));
  const auto opened = open_model(scratch_.at("model"), {});
  ASSERT_TRUE(opened);
  EXPECT_THAT((*opened)->report.ignored, testing::ElementsAre(AllOf(HasSubstr("rotary_emb.inv_freq"), HasSubstr("rotary"))));
}

TEST_F(BadCheckpoint, a_misshapen_tensor_names_both_shapes) {
  folder_.tensors[kQ].shape = {32, 128};
  EXPECT_THAT(refused().message, AllOf(HasSubstr(kQ), HasSubstr("[32, 128]"), HasSubstr("[64, 64]"), HasSubstr("qkv_proj"), HasSubstr("hint")));
}

TEST_F(BadCheckpoint, an_element_type_without_meaning_here_is_named) {
  auto& tensor = folder_.tensors[kQ];
  tensor = {DType::kF8E4M3, tensor.shape, std::string(64 * 64, '\0')};
  const Error error = refused();
  EXPECT_EQ(error.code, Code::kUnsupported);
  EXPECT_THAT(error.message, AllOf(HasSubstr(kQ), HasSubstr("F8_E4M3"), HasSubstr("BF16 or F16 or F32")));
}

TEST_F(BadCheckpoint, non_finite_weights_name_tensor_and_element) {
  for (const std::string quantization : {"", "wint8", "wint4", "wint4-g32"})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
      for (const std::string road : {"default_v1", "default"}) {
        folder_ = TestFolder::read(kTiny + "tiny-llama");
        const std::uint16_t bits = float_to_bf16(bad);
        std::memcpy(folder_.tensors[kQ].data.data() + (37 * 64 + 5) * 2, &bits, 2);
        EngineOptions options;
        options.quantization = quantization;
        options.load_choices = road;
        const Error error = refused(options);
        EXPECT_EQ(error.code, Code::kCorrupt);
        EXPECT_THAT(error.message, AllOf(HasSubstr(kQ), HasSubstr("[37, 5]"), HasSubstr(fmt::format("{}", bad)))) << quantization << " " << road;
      }
}

TEST_F(BadCheckpoint, a_non_finite_norm_names_the_element) {
  const std::uint16_t bits = 0x7fc0;
  std::memcpy(folder_.tensors["model.norm.weight"].data.data() + 3 * 2, &bits, 2);
  EXPECT_THAT(refused().message, AllOf(HasSubstr("model.norm.weight"), HasSubstr("element 3")));
}

TEST_F(BadCheckpoint, required_config_fields_are_named) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    folder_ = TestFolder::read(kTiny + "tiny-llama");
    folder_.config.erase(key);
    EXPECT_THAT(refused().message, AllOf(HasSubstr("config.json"), HasSubstr(key), HasSubstr("missing")));
    folder_.config[key] = "sixty-four";
    EXPECT_THAT(refused().message, AllOf(HasSubstr(key), HasSubstr("sixty-four")));
    folder_.config[key] = -4;
    EXPECT_THAT(refused().message, AllOf(HasSubstr(key), HasSubstr("-4")));
  }
}

TEST_F(BadCheckpoint, absurd_config_values_are_refused) {
  folder_.config["num_hidden_layers"] = 2000000000;
  EXPECT_THAT(refused().message, HasSubstr("not believable"));
  folder_ = TestFolder::read(kTiny + "tiny-llama");
  folder_.config["num_key_value_heads"] = 3;
  EXPECT_THAT(refused().message, AllOf(HasSubstr("num_attention_heads 4"), HasSubstr("num_key_value_heads 3")));
  folder_ = TestFolder::read(kTiny + "tiny-llama");
  folder_.config["hidden_act"] = "gelu";
  EXPECT_THAT(refused().message, AllOf(HasSubstr("gelu"), HasSubstr("silu")));
}

TEST_F(BadCheckpoint, an_unknown_architecture_lists_the_known_ones) {
  folder_.config["architectures"] = {"LamaForCausalLM"};
  const Error error = refused();
  EXPECT_EQ(error.code, Code::kUnsupported);
  EXPECT_THAT(error.message, AllOf(HasSubstr("LamaForCausalLM"), HasSubstr("Qwen2ForCausalLM"), HasSubstr("Did you mean \"LlamaForCausalLM\"?")));
  folder_.config.erase("architectures");
  folder_.config["model_type"] = "llama";
  accepted();
}

TEST_F(BadCheckpoint, unknown_rotary_types_and_unread_keys_are_refused_by_name) {
  folder_.config["rope_scaling"]["rope_type"] = "longrope";
  EXPECT_THAT(refused().message, AllOf(HasSubstr("longrope"), HasSubstr("llama3")));
  folder_ = TestFolder::read(kTiny + "tiny-llama");
  folder_.config["rope_scaling"]["long_factor"] = 2;
  EXPECT_THAT(refused().message, AllOf(HasSubstr("long_factor"), HasSubstr("not read")));
}

TEST_F(BadCheckpoint, unknown_names_of_options_suggest_the_nearest) {
  EngineOptions options;
  options.quantization = "wint6";
  EXPECT_THAT(refused(options).message, AllOf(HasSubstr("wint6"), HasSubstr("Did you mean \"wint8\"?")));
  options = {};
  options.lm_head = "wint88";
  EXPECT_THAT(refused(options).message, AllOf(HasSubstr("--lm-head"), HasSubstr("Did you mean \"wint8\"?")));
  options = {};
  options.compute = "int9";
  EXPECT_THAT(refused(options).message, HasSubstr("Did you mean \"int8\"?"));
  options = {};
  options.load_choices = "default_v2";
  EXPECT_THAT(refused(options).message, HasSubstr("Did you mean \"default_v1\"?"));
  options = {};
  options.kv_cache_dtype = "bf61";
  EXPECT_THAT(refused(options).message, HasSubstr("Did you mean \"bf16\"?"));
}

TEST_F(BadCheckpoint, biases_of_some_projections_only_are_missing_tensors) {
  for (const std::string name : {"q_proj", "k_proj", "v_proj"}) folder_.tensors["model.layers.0.self_attn." + name + ".bias"] = {DType::kBF16, {name == "q_proj" ? 64 : 32}, std::string(name == "q_proj" ? 128 : 64, '\0')};
  accepted();  // the tensors decide, not the config's attention_bias
  folder_.tensors.erase("model.layers.0.self_attn.k_proj.bias");
  EXPECT_THAT(refused().message, HasSubstr("model.layers.0.self_attn.k_proj.bias"));
}

TEST_F(BadCheckpoint, heads_and_embeddings_in_all_four_ways) {
  auto notes = [&] {
    folder_.write(scratch_.at("model"));
    auto opened = open_model(scratch_.at("model"), {});
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::pair{(*opened)->model->info().notes, (*opened)->report.ignored} : std::pair<std::vector<std::string>, std::vector<std::string>>{};
  };
  EXPECT_THAT(notes().first, testing::IsEmpty());  // untied, lm_head present
  folder_.config["tie_word_embeddings"] = true;    // tied, a different lm_head present: it is used, with a note
  EXPECT_THAT(notes().first, testing::ElementsAre(HasSubstr("different lm_head.weight")));
  folder_.tensors["lm_head.weight"] = folder_.tensors["model.embed_tokens.weight"];  // tied, an equal lm_head present: ignored by rule
  EXPECT_THAT(notes().second, testing::ElementsAre(HasSubstr("lm_head.weight")));
  folder_.tensors.erase("lm_head.weight");  // tied, none
  EXPECT_THAT(notes().first, testing::IsEmpty());
  folder_.config["tie_word_embeddings"] = false;  // untied, none: tied, with a note
  EXPECT_THAT(notes().first, testing::ElementsAre(HasSubstr("shares the embedding")));
}

TEST_F(BadCheckpoint, wider_checkpoints_keep_their_precision) {
  // F32 weights that BF16 could not hold must come through exactly.
  auto& tensor = folder_.tensors[kQ];
  std::string wide(64 * 64 * 4, '\0');
  for (int i = 0; i < 64 * 64; ++i) {
    const float value = 1.0f + static_cast<float>(i) * 0x1p-20f;
    std::memcpy(wide.data() + i * 4, &value, 4);
  }
  tensor = {DType::kF32, {64, 64}, wide};
  folder_.write(scratch_.at("model"));
  const auto opened = open_model(scratch_.at("model"), {});
  ASSERT_TRUE(opened) << opened.error().message;
  for (std::size_t i = 0; i < (*opened)->table.rows.size(); ++i)
    if ((*opened)->table.rows[i].full_name() == "model.layers.1.self_attn.qkv_proj.weight") {
      std::vector<float> row(64);
      const quant::Matrix& matrix = (*opened)->store.matrix(i);
      matrix.format->dequantize(matrix, 63, row.data());
      EXPECT_EQ(row[63], 1.0f + 4095 * 0x1p-20f);
    }
}

TEST_F(BadCheckpoint, a_shard_cut_between_check_and_read_is_an_error_on_both_roads) {
  folder_.write(scratch_.at("model"));
  const std::string file = scratch_.at("model") + "/model.safetensors";
  for (const bool streaming : {true, false}) {
    folder_.write(scratch_.at("model"));
    params::ParamTable table;
    quant::ParamStore store;
    const auto checkpoint = checkpoint::Checkpoint::open(scratch_.at("model")).value();
    const JsonView config{&checkpoint.config(), checkpoint.config_path()};
    const auto model = models::build_model(config, {&table, &store, [&](std::string_view name) { return checkpoint.find(name) != nullptr; }});
    ASSERT_TRUE(model);
    const auto plan = loader::plan_load(checkpoint, table, {}, {}, 2).value();
    ASSERT_TRUE(store.allocate(plan.params));
    ThreadPool pool(2);
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4096);
    const loader::LoadContext context{checkpoint, plan, table, **kernels::choose(), pool, store};
    const auto loaded = streaming ? loader::load_streaming(context, {}) : loader::load_whole(context, {});
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, Code::kCorrupt);
    EXPECT_THAT(loaded.error().message, AllOf(HasSubstr("model.safetensors"), testing::AnyOf(HasSubstr("truncated"), HasSubstr("changed"))));
  }
}

TEST_F(BadCheckpoint, a_plan_that_memory_cannot_hold_is_refused_with_the_numbers_before_reading) {
  // A header may promise what the disk does not store: a sparse file of the right size stands for a huge checkpoint.
  auto checkpoint = folder_;
  const std::int64_t vocabulary = std::int64_t{1} << 31;  // x 64 x 2 bytes = 256 GiB
  folder_.config["vocab_size"] = vocabulary;
  folder_.tensors.erase("lm_head.weight");
  folder_.tensors.erase("model.embed_tokens.weight");
  Json header = Json::object();
  std::int64_t at = 0;
  for (const auto& [name, tensor] : folder_.tensors) {
    header[name] = {{"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, at + static_cast<std::int64_t>(tensor.data.size())}}};
    at += static_cast<std::int64_t>(tensor.data.size());
  }
  header["model.embed_tokens.weight"] = {{"dtype", "BF16"}, {"shape", {vocabulary, 64}}, {"data_offsets", {at, at + vocabulary * 128}}};
  at += vocabulary * 128;
  std::filesystem::create_directories(scratch_.at("model"));
  std::ofstream(scratch_.at("model") + "/config.json") << folder_.config.dump();
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  const std::string file = scratch_.at("model") + "/model.safetensors";
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(&length), 8) << text;
  std::error_code error;
  std::filesystem::resize_file(file, 8 + length + static_cast<std::uintmax_t>(at), error);
  if (error) GTEST_SKIP() << "the temporary file system has no sparse files of this size: " << error.message();
  const auto opened = open_model(scratch_.at("model"), {});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kExhausted);
  EXPECT_THAT(opened.error().message, AllOf(HasSubstr("256"), HasSubstr("GiB"), HasSubstr("available"), HasSubstr("--quantization")));
  EXPECT_TRUE(plan_model(scratch_.at("model"), {}));  // inspect still shows the plan
}

TEST_F(BadCheckpoint, a_quantization_method_that_is_not_read_is_refused_with_those_that_are) {
  folder_.config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  const Error error = refused();
  EXPECT_EQ(error.code, Code::kUnsupported);
  EXPECT_THAT(error.message, AllOf(HasSubstr("bitsandbytes"), HasSubstr("gptq")));
}

}  // namespace
}  // namespace inflight::engine
