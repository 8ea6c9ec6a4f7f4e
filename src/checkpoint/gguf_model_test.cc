#include "checkpoint/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_for_test.h"
#include "checkpoint/read_tensor.h"
#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Metadata of a model of two layers: hidden 64, 4 heads on 2.
GgufBuilder model(const std::string& arch, std::initializer_list<std::pair<const char*, std::string>> more = {}) {
  GgufBuilder b;
  b.set("general.architecture", gguf_text(arch));
  const auto set = [&](const std::string& key, std::string value) {
    for (const auto& [name, other] : more)
      if (key == name) return;
    b.set(arch + "." + key, std::move(value));
  };
  set("block_count", gguf_u32(2));
  set("context_length", gguf_u32(2048));
  set("embedding_length", gguf_u32(64));
  set("feed_forward_length", gguf_u32(96));
  set("attention.head_count", gguf_u32(4));
  set("attention.head_count_kv", gguf_u32(2));
  set("attention.layer_norm_rms_epsilon", gguf_f32(1e-5f));
  set("rope.freq_base", gguf_f32(500000));
  for (const auto& [key, value] : more)
    if (!value.empty()) b.set(arch + "." + key, value);
  b.floats("token_embd.weight", {64, 100});
  return b;
}

Result<Json> config_of(const GgufBuilder& b, const std::vector<float>& factors = {}) {
  const auto header = parse_gguf(b.file()).value();
  return gguf_config(**find_gguf_family(header.string("general.architecture").value().value(), "m.gguf"), header, header.tensors, factors);
}
std::string problem(const GgufBuilder& b, Code code = Code::kCorrupt, const std::vector<float>& factors = {}) {
  const auto config = config_of(b, factors);
  if (config) return "";
  EXPECT_EQ(config.error().code, code) << config.error().message;
  return config.error().message;
}

// The names of one tensor after renaming, or the error.
std::vector<std::string> names_of(const std::string& arch, const std::string& name, std::vector<std::int64_t> shape = {8, 4}) {
  TensorInfo info{.name = name, .dtype = DType::kF32, .shape = shape, .begin = 0, .end = 4};
  info.end = info.elements() * 4;
  const auto renamed = rename_gguf_tensor(**find_gguf_family(arch, "m"), info, "m");
  if (!renamed) return {renamed.error().message};
  std::vector<std::string> names;
  for (const TensorInfo& part : *renamed) names.push_back(part.name);
  return names;
}

TEST(GgufNames, are_hugging_faces) {
  EXPECT_THAT(names_of("llama", "token_embd.weight"), ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(names_of("llama", "output_norm.weight"), ElementsAre("model.norm.weight"));
  EXPECT_THAT(names_of("llama", "output.weight"), ElementsAre("lm_head.weight"));
  EXPECT_THAT(names_of("llama", "rope_freqs.weight", {8}), ElementsAre());
  EXPECT_THAT(names_of("llama", "blk.0.attn_norm.weight"), ElementsAre("model.layers.0.input_layernorm.weight"));
  EXPECT_THAT(names_of("qwen2", "blk.12.attn_q.bias"), ElementsAre("model.layers.12.self_attn.q_proj.bias"));
  EXPECT_THAT(names_of("qwen2", "blk.3.attn_output.weight"), ElementsAre("model.layers.3.self_attn.o_proj.weight"));
  EXPECT_THAT(names_of("qwen3", "blk.3.attn_k_norm.weight"), ElementsAre("model.layers.3.self_attn.k_norm.weight"));
  EXPECT_THAT(names_of("qwen3", "blk.3.ffn_norm.weight"), ElementsAre("model.layers.3.post_attention_layernorm.weight"));
  EXPECT_THAT(names_of("glm4moe", "blk.3.post_attention_norm.weight"), ElementsAre("model.layers.3.post_attention_layernorm.weight"));
  EXPECT_THAT(names_of("qwen3moe", "blk.3.ffn_gate_inp.weight"), ElementsAre("model.layers.3.mlp.gate.weight"));
  EXPECT_THAT(names_of("qwen2moe", "blk.3.ffn_up_shexp.weight"), ElementsAre("model.layers.3.mlp.shared_expert.up_proj.weight"));
  EXPECT_THAT(names_of("qwen2moe", "blk.3.ffn_gate_inp_shexp.weight", {64}), ElementsAre("model.layers.3.mlp.shared_expert_gate.weight"));
  EXPECT_THAT(names_of("glm4moe", "blk.3.ffn_down_shexp.weight"), ElementsAre("model.layers.3.mlp.shared_experts.down_proj.weight"));
  EXPECT_THAT(names_of("glm4moe", "blk.3.exp_probs_b.bias"), ElementsAre("model.layers.3.mlp.gate.e_score_correction_bias"));
  EXPECT_THAT(names_of("deepseek2", "blk.3.exp_probs_b"), ElementsAre("model.layers.3.mlp.gate.e_score_correction_bias"));
  EXPECT_THAT(names_of("ernie4_5-moe", "blk.3.exp_probs_b.bias"), ElementsAre("model.layers.3.mlp.moe_statics.e_score_correction_bias"));
  EXPECT_THAT(names_of("deepseek2", "blk.3.attn_kv_a_mqa.weight"), ElementsAre("model.layers.3.self_attn.kv_a_proj_with_mqa.weight"));
  EXPECT_THAT(names_of("deepseek2", "blk.3.attn_kv_b.weight"), ElementsAre("model.layers.3.self_attn.kv_b_proj.weight"));
  EXPECT_THAT(names_of("deepseek2", "blk.3.attn_k_b.weight", {4, 16, 8}), ElementsAre("model.layers.3.self_attn.k_b_proj.weight"));
  EXPECT_THAT(names_of("deepseek2", "blk.3.attn_v_b.weight", {4, 16, 8}), ElementsAre("model.layers.3.self_attn.v_b_proj.weight"));
  EXPECT_THAT(names_of("glm4moe", "blk.46.nextn.eh_proj.weight"), ElementsAre("model.layers.46.nextn.eh_proj.weight"));
}

TEST(GgufNames, what_is_not_known_stays) {
  for (const char* name : {"blk.0.attn_sinks.weight", "blk.x.attn_q.weight", "blk.01.attn_q.weight", "blk.0", "blk.", "blk.99999999999.attn_q.weight", "v.patch_embd.weight", "blk.0.exp_probs_b.bias"})
    EXPECT_THAT(names_of("llama", name), ElementsAre(name));
}

TEST(GgufNames, stacked_experts_are_taken_apart) {
  const TensorInfo info{.name = "blk.1.ffn_down_exps.weight", .dtype = DType::kQ4_0, .shape = {3, 2, 64}, .begin = 1000, .end = 1000 + 3 * 72};
  const auto parts = rename_gguf_tensor(**find_gguf_family("qwen3moe", "m"), info, "m").value();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].name, "model.layers.1.mlp.experts.2.down_proj.weight");
  EXPECT_THAT(parts[2].shape, ElementsAre(2, 64));
  EXPECT_EQ(parts[2].begin, 1144);
  EXPECT_EQ(parts[2].end, 1216);
  EXPECT_THAT(names_of("qwen3moe", "blk.1.ffn_gate_up_exps.weight", {2, 4, 8}), ElementsAre("model.layers.1.mlp.experts.0.up_gate_proj.weight", "model.layers.1.mlp.experts.1.up_gate_proj.weight"));
  EXPECT_THAT(names_of("qwen3moe", "blk.1.ffn_down_exps.weight", {4, 8})[0], HasSubstr("[experts, outputs, inputs]"));
  EXPECT_THAT(names_of("qwen3moe", "blk.1.ffn_down_exps.weight", {65537, 1, 1})[0], HasSubstr("at most 65536"));
}

TEST(GgufConfig, keys_that_all_have) {
  GgufBuilder b = model("qwen3", {{"attention.key_length", gguf_u32(32)}});
  b.set("tokenizer.ggml.bos_token_id", gguf_u32(1)).set("tokenizer.ggml.eos_token_id", gguf_u32(7)).set("tokenizer.ggml.eot_token_id", gguf_u32(9)).set("tokenizer.ggml.eom_token_id", gguf_u32(7));
  const Json config = config_of(b).value();
  EXPECT_EQ(config["architectures"], Json::parse(R"(["Qwen3ForCausalLM"])"));
  EXPECT_EQ(config["vocab_size"], 100);
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["intermediate_size"], 96);
  EXPECT_EQ(config["num_hidden_layers"], 2);
  EXPECT_EQ(config["num_attention_heads"], 4);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["head_dim"], 32);
  EXPECT_EQ(config["max_position_embeddings"], 2048);
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);
  EXPECT_EQ(config["rope_theta"], 500000.0);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], Json::parse("[7, 9]"));
  EXPECT_FALSE(config.contains("rope_interleave"));
  EXPECT_FALSE(config.contains("rope_scaling"));
  EXPECT_EQ(config_of(model("llama")).value()["head_dim"], 16);
  EXPECT_EQ(config_of(model("llama")).value()["rope_interleave"], true);
  EXPECT_EQ(config_of(model("llama").floats("output.weight", {64, 100})).value()["tie_word_embeddings"], false);
}

TEST(GgufConfig, rotary_scaling) {
  const auto scaling = [](std::initializer_list<std::pair<const char*, std::string>> more, const std::vector<float>& factors = {}) {
    const auto config = config_of(model("llama", more), factors);
    return config ? config->value("rope_scaling", Json()) : Json(config.error().message);
  };
  EXPECT_EQ(scaling({{"rope.scaling.type", gguf_text("linear")}, {"rope.scaling.factor", gguf_f32(2.5f)}}), Json::parse(R"({"rope_type":"linear","factor":2.5})"));
  EXPECT_EQ(scaling({{"rope.scale_linear", gguf_f32(4)}}), Json::parse(R"({"rope_type":"linear","factor":4.0})"));
  EXPECT_EQ(scaling({{"rope.scaling.type", gguf_text("yarn")}, {"rope.scaling.factor", gguf_f32(4)}, {"rope.scaling.original_context_length", gguf_u32(512)}, {"rope.scaling.yarn_log_multiplier", gguf_f32(0.0707f)}}),
            Json::parse(R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":512,"mscale":0.707,"mscale_all_dim":0.707})"));
  EXPECT_EQ(scaling({}, std::vector<float>(8, 1)), Json());
  EXPECT_EQ(scaling({}, {1, 1, 1, 1, 2, 4, 8, 8}), Json::parse(R"({"rope_type":"factors","factors":[1.0,1.0,1.0,1.0,2.0,4.0,8.0,8.0]})"));
  EXPECT_THAT(problem(model("llama"), Code::kCorrupt, {2, 2}), HasSubstr("has 2 numbers"));
  EXPECT_THAT(problem(model("llama"), Code::kCorrupt, {1, 1, 1, 1, 2, 4, 8, 0}), HasSubstr("above 0"));
  EXPECT_THAT(problem(model("llama", {{"rope.scaling.type", gguf_text("longrope")}}), Code::kUnsupported), AllOf(HasSubstr("longrope"), HasSubstr("yarn")));
  EXPECT_THAT(problem(model("llama", {{"rope.scaling.type", gguf_text("yarn")}, {"rope.scaling.factor", gguf_f32(4)}}), Code::kUnsupported, {2, 2, 2, 2, 2, 2, 2, 2}), HasSubstr("rope_freqs"));
}

TEST(GgufConfig, experts) {
  const auto moe = [](const std::string& arch, std::initializer_list<std::pair<const char*, std::string>> more) {
    GgufBuilder b = model(arch, more);
    b.set(arch + ".expert_count", gguf_u32(8)).set(arch + ".expert_used_count", gguf_u32(3)).set(arch + ".expert_feed_forward_length", gguf_u32(48));
    return b.floats("blk.1.ffn_down_exps.weight", {48, 64, 8});
  };
  const Json qwen3 = config_of(moe("qwen3moe", {})).value();
  EXPECT_EQ(qwen3["num_experts"], 8);
  EXPECT_EQ(qwen3["num_experts_per_tok"], 3);
  EXPECT_EQ(qwen3["moe_intermediate_size"], 48);
  EXPECT_EQ(qwen3["norm_topk_prob"], true);
  EXPECT_EQ(qwen3["mlp_only_layers"], Json::parse("[0]"));
  const Json qwen2 = config_of(moe("qwen2moe", {{"expert_shared_feed_forward_length", gguf_u32(80)}})).value();
  EXPECT_EQ(qwen2["norm_topk_prob"], false);
  EXPECT_EQ(qwen2["shared_expert_intermediate_size"], 80);

  const Json glm = config_of(moe("glm4moe", {{"rope.dimension_count", gguf_u32(8)}, {"nextn_predict_layers", gguf_u32(1)}, {"leading_dense_block_count", gguf_u32(1)}, {"expert_shared_count", gguf_u32(1)},
                                             {"expert_weights_scale", gguf_f32(1.5f)}})).value();
  EXPECT_EQ(glm["num_hidden_layers"], 1);  // the last one predicts further tokens
  EXPECT_EQ(glm["num_nextn_predict_layers"], 1);
  EXPECT_EQ(glm["partial_rotary_factor"], 0.5);
  EXPECT_EQ(glm["first_k_dense_replace"], 1);
  EXPECT_EQ(glm["routed_scaling_factor"], 1.5);
  EXPECT_EQ(glm["use_qk_norm"], false);

  GgufBuilder ernie_file = moe("ernie4_5-moe", {{"leading_dense_block_count", gguf_u32(1)}, {"interleave_moe_layer_step", gguf_u32(1)}, {"expert_shared_count", gguf_u32(2)}});
  const Json ernie = config_of(ernie_file.floats("blk.1.exp_probs_b.bias", {8})).value();
  EXPECT_EQ(ernie["moe_num_experts"], 8);
  EXPECT_EQ(ernie["moe_k"], 3);
  EXPECT_EQ(ernie["moe_layer_start_index"], 1);
  EXPECT_EQ(ernie["moe_layer_end_index"], 1);
  EXPECT_EQ(ernie["moe_use_aux_free"], true);
  EXPECT_EQ(ernie["moe_num_shared_experts"], 2);
}

TEST(GgufConfig, latents) {
  const std::initializer_list<std::pair<const char*, std::string>> sizes = {{"rope.dimension_count", gguf_u32(8)}, {"attention.kv_lora_rank", gguf_u32(32)}, {"attention.q_lora_rank", gguf_u32(48)},
                                                                             {"attention.key_length", gguf_u32(40)}, {"attention.value_length", gguf_u32(32)}, {"attention.key_length_mla", gguf_u32(24)},
                                                                             {"attention.value_length_mla", gguf_u32(20)}, {"expert_count", gguf_u32(8)}, {"expert_used_count", gguf_u32(3)},
                                                                             {"expert_feed_forward_length", gguf_u32(48)}, {"expert_group_count", gguf_u32(4)}, {"expert_group_used_count", gguf_u32(2)}};
  const Json v2 = config_of(model("deepseek2", sizes)).value();
  EXPECT_EQ(v2["architectures"][0], "DeepseekV2ForCausalLM");
  EXPECT_EQ(v2["kv_lora_rank"], 32);
  EXPECT_EQ(v2["q_lora_rank"], 48);
  EXPECT_EQ(v2["qk_rope_head_dim"], 8);
  EXPECT_EQ(v2["qk_nope_head_dim"], 16);
  EXPECT_EQ(v2["v_head_dim"], 20);
  EXPECT_EQ(v2["scoring_func"], "softmax");
  EXPECT_EQ(v2["topk_method"], "group_limited_greedy");
  const Json v3 = config_of(model("deepseek2", sizes).floats("blk.1.exp_probs_b.bias", {8})).value();
  EXPECT_EQ(v3["architectures"][0], "DeepseekV3ForCausalLM");
  EXPECT_EQ(v3["scoring_func"], "sigmoid");
  EXPECT_EQ(v3["topk_method"], "noaux_tc");
}

TEST(GgufConfig, hostile_metadata) {
  EXPECT_THAT(problem(GgufBuilder().set("general.architecture", gguf_text("llama"))), HasSubstr("token_embd.weight"));
  EXPECT_THAT(problem(model("llama", {{"block_count", ""}})), HasSubstr("llama.block_count is missing"));
  EXPECT_THAT(problem(model("llama", {{"block_count", gguf_u32(0)}})), HasSubstr("from 1 to 2^31"));
  EXPECT_THAT(problem(model("llama", {{"block_count", gguf_u32(1000000)}})), HasSubstr("not believable"));
  EXPECT_THAT(problem(model("llama", {{"block_count", gguf_text("2")}})), HasSubstr("an integer"));
  EXPECT_THAT(problem(model("llama", {{"attention.head_count", gguf_u32(5)}})), HasSubstr("multiple of head_count"));
  EXPECT_THAT(problem(model("llama", {{"rope.dimension_count", gguf_u32(32)}})), HasSubstr("32 of 16"));
  EXPECT_THAT(problem(model("llama", {{"feed_forward_length", gguf_i32s({96, 128})}}), Code::kUnsupported), HasSubstr("differs from layer to layer"));
  EXPECT_EQ(problem(model("llama", {{"feed_forward_length", gguf_i32s({96, 96})}})), "");
  EXPECT_THAT(problem(model("llama", {{"expert_count", gguf_u32(8)}}), Code::kUnsupported), HasSubstr("Mixtral"));
  EXPECT_THAT(problem(model("llama", {{"logit_scale", gguf_f32(0.5f)}}), Code::kUnsupported), HasSubstr("logit_scale"));
  EXPECT_THAT(problem(model("llama", {{"attention.value_length", gguf_u32(8)}}), Code::kUnsupported), HasSubstr("value_length"));
  EXPECT_THAT(problem(model("qwen2", {{"attention.causal", gguf_bool(false)}}), Code::kUnsupported), HasSubstr("looks ahead"));
  EXPECT_THAT(problem(model("qwen3", {{"nextn_predict_layers", gguf_u32(2)}})), HasSubstr("not believable"));
}

TEST(GgufGeneration, sampling_is_what_the_file_says) {
  EXPECT_EQ(gguf_generation_config(parse_gguf(model("llama").file()).value()).value(), std::nullopt);
  GgufBuilder b = model("llama");
  b.set("general.sampling.temp", gguf_f32(0.6f)).set("general.sampling.top_k", gguf_u32(20)).set("general.sampling.top_p", gguf_f32(0.95f));
  EXPECT_EQ(gguf_generation_config(parse_gguf(b.file()).value()).value(), Json::parse(R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95})"));
}

TEST(GgufModel, a_file_is_a_checkpoint) {
  const TestFolder folder;
  GgufBuilder b = model("llama");
  b.floats("blk.0.attn_norm.weight", {64}).floats("rope_freqs.weight", {8});
  for (int i = 0; i < 8; ++i) {
    const float factor = static_cast<float>(1 + i);
    std::memcpy(b.data.data() + b.tensors.back().offset + 4 * i, &factor, 4);
  }
  const auto checkpoint = Checkpoint::open(folder.write("m.gguf", b.file()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  ASSERT_NE(checkpoint->find("model.layers.0.input_layernorm.weight"), nullptr);
  EXPECT_EQ(checkpoint->find("rope_freqs.weight"), nullptr);
  EXPECT_EQ(checkpoint->config()["rope_scaling"]["factors"][7], 8.0);
  EXPECT_EQ(checkpoint->data_bytes(), 100 * 64 * 4 + 64 * 4);
  EXPECT_EQ(checkpoint->generation_config().value(), std::nullopt);
}

TEST(GgufModel, files_of_a_split_are_one_model) {
  const TestFolder folder;
  GgufBuilder one = model("llama"), two;
  one.set("split.no", gguf_u32(0)).set("split.count", gguf_u32(2)).set("split.tensors.count", gguf_u32(2));
  two.set("split.no", gguf_u32(1)).set("split.count", gguf_u32(2)).floats("blk.0.attn_norm.weight", {64});
  const std::string first = folder.write("m-00001-of-00002.gguf", one.file());
  const auto problem_of = [](const std::string& path, Code code) {
    const auto checkpoint = Checkpoint::open(path);
    EXPECT_FALSE(checkpoint);
    if (!checkpoint) EXPECT_EQ(checkpoint.error().code, code);
    return checkpoint ? "" : checkpoint.error().message;
  };
  EXPECT_THAT(problem_of(first, Code::kNotFound), AllOf(HasSubstr("m-00002-of-00002.gguf"), HasSubstr("incomplete download?")));
  const std::string second = folder.write("m-00002-of-00002.gguf", two.file());
  for (const std::string& path : {first, second}) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->shards().size(), 2u);
    EXPECT_EQ(checkpoint->find("model.layers.0.input_layernorm.weight")->shard, 1);
    EXPECT_EQ(first_gguf_file(path), first);
  }
  GgufBuilder other = two;
  other.metadata[0].second = gguf_u32(0);
  folder.write("m-00002-of-00002.gguf", other.file());
  EXPECT_THAT(problem_of(first, Code::kCorrupt), HasSubstr("file 1 of 2"));
  folder.write("m-00002-of-00002.gguf", GgufBuilder(two).floats("extra", {1}).file());
  EXPECT_THAT(problem_of(first, Code::kCorrupt), HasSubstr("2 tensors, but its files hold 3"));
  EXPECT_THAT(problem_of(folder.write("alone.gguf", one.file()), Code::kCorrupt), HasSubstr("file 1 of 2"));
}

TEST(GgufModel, what_is_no_model_that_is_known) {
  const TestFolder folder;
  const auto problem_of = [&](const GgufBuilder& b) {
    const auto checkpoint = Checkpoint::open(folder.write("m.gguf", b.file()));
    return checkpoint ? "" : checkpoint.error().message;
  };
  EXPECT_THAT(problem_of(GgufBuilder()), HasSubstr("general.architecture is missing"));
  EXPECT_THAT(problem_of(model("qwen4")), AllOf(HasSubstr("\"qwen4\" is not supported"), HasSubstr("ernie4_5-moe"), HasSubstr("Did you mean \"qwen")));
  EXPECT_THAT(problem_of(model("llama").set("general.type", gguf_text("mmproj"))), HasSubstr("mmproj"));
  EXPECT_THAT(problem_of(model("llama").floats("blk.0.ffn_norm.weight", {64}).floats("blk.0.post_attention_norm.weight", {64})), HasSubstr("two tensors stand for"));
}

}  // namespace
}  // namespace inflight::checkpoint
