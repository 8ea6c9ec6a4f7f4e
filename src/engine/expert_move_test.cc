// Experts that another tool quantized move between ranks: what each rank holds after every move are one rank's bytes, and logits stay. Ranks are threads here.
#include "engine/expert_move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/compare_for_test.h"
#include "engine/expert_balancer.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"

namespace inflight::engine {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 2;

std::string data(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/" + name; }

EngineOptions options_of(int ranks, int redundant = 0, const std::string& quantization = "") {
  EngineOptions options;
  options.quantization = quantization;
  options.compute = "fp32";
  options.threads = 1;
  options.fp8_activations = "none";
  options.tensor_parallel_size = ranks;
  options.enable_expert_parallel = options.enable_eplb = ranks > 1;
  options.redundant_experts = redundant;
  return options;
}

// A model on ranks, of each of which this thread sees what it holds, from the first forward() on. After one that follows a move all of them have switched.
struct Ranked {
  Ranked(const std::string& folder, const EngineOptions& options) : opened(kRanks), model(kRanks, folder, options, [this](OpenedModel& own, int rank) { opened[static_cast<std::size_t>(rank)] = &own; }) {
    if (model.opened) opened[0] = model.opened->get();
  }
  OpenedModel& lead() { return *opened[0]; }

  std::vector<OpenedModel*> opened;
  RankedModel model;
};

std::vector<float> logits_of(OpenedModel& opened) {
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 24; ++i) ids.push_back(3 + i * 5 % 28);
  return logits_of(opened, ids);
}

bool same_bytes(const void* a, const void* b, std::int64_t bytes) { return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0; }

// Codes, scales, offsets and order of inputs are one rank's, of every expert that the rank holds. Returns how many matrices those were.
int expect_experts(const OpenedModel& rank, const OpenedModel& one) {
  int matrices = 0;
  for (std::size_t i = 0; i < one.table.rows.size(); ++i) {
    const params::ParamSpec& row = one.table.rows[i];
    if (row.expert < 0 || !rank.topology.placement->on_rank(row.layer, row.expert, rank.topology.ep_rank)) continue;
    SCOPED_TRACE(row.full_name());
    const quant::Matrix &got = rank.store.matrix(i), &want = one.store.matrix(i);
    const quant::Slot& slot = one.plan.slots[i];
    EXPECT_EQ(got.format, want.format);
    EXPECT_EQ(got.scales_fp16, want.scales_fp16);
    EXPECT_EQ(got.order != nullptr, want.order != nullptr);
    if (got.format != want.format || got.scales_fp16 != want.scales_fp16) continue;
    const std::int64_t scales = want.group != 0 ? want.panels() * want.groups() * 16 * (want.scales_fp16 ? 2 : 4) : slot.bytes.scales;
    EXPECT_TRUE(same_bytes(got.codes, want.codes, slot.bytes.codes));
    EXPECT_TRUE(same_bytes(got.view().scales, want.view().scales, scales));
    EXPECT_TRUE(slot.bytes.offsets == 0 || same_bytes(got.offsets, want.offsets, slot.bytes.offsets));
    EXPECT_TRUE(!want.order || *got.order == *want.order);
    ++matrices;
  }
  return matrices;
}

// Physical expert p of layer l is a replica of expert (p + turn + l) modulo their number.
std::shared_ptr<const params::ExpertPlacement> turned(const params::ExpertPlacement& placement, std::int64_t turn) {
  std::vector<std::vector<std::int32_t>> logical = placement.logical();
  for (std::size_t layer = 0; layer < logical.size(); ++layer)
    for (std::size_t p = 0; p < logical[layer].size(); ++p)
      logical[layer][p] = static_cast<std::int32_t>((static_cast<std::int64_t>(p + layer) + turn) % placement.experts());
  return std::make_shared<const params::ExpertPlacement>(params::ExpertPlacement::create(placement.experts(), placement.ranks(), std::move(logical)).value());
}

Result<bool> move_to(OpenedModel& lead, std::shared_ptr<const params::ExpertPlacement> placement) {
  begin_expert_move(lead, std::move(placement));
  return finish_expert_move(lead, /*wait=*/true);
}

void expect_moves(const std::string& folder, int redundant, const std::string& quantization = "") {
  const auto one = open_model(folder, options_of(1, 0, quantization));
  ASSERT_TRUE(one) << one.error().message;
  const std::vector<float> expected = logits_of(**one);
  Ranked ranked(folder, options_of(kRanks, redundant, quantization));
  ASSERT_TRUE(ranked.model.opened) << ranked.model.opened.error().message;
  expect_close(logits_of(ranked.lead()), expected, 2e-5f);
  std::vector<std::int64_t> bytes;
  for (const OpenedModel* own : ranked.opened) bytes.push_back(own->store.weight_bytes());
  const params::ExpertPlacement initial = *ranked.lead().runtime->placement;
  for (const std::int64_t turn : {1, 2, 1, 3, 0}) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    const auto placement = turned(initial, turn);
    const auto moved = move_to(ranked.lead(), placement);
    ASSERT_TRUE(moved) << moved.error().message;
    EXPECT_EQ(*ranked.lead().runtime->placement, *placement);
    expect_close(logits_of(ranked.lead()), expected, 2e-5f);
    int matrices = 0;
    for (const OpenedModel* own : ranked.opened) matrices += expect_experts(*own, **one);
    EXPECT_GT(matrices, 0);
  }
  const auto back = move_to(ranked.lead(), std::make_shared<const params::ExpertPlacement>(initial));
  ASSERT_TRUE(back) << back.error().message;
  expect_close(logits_of(ranked.lead()), expected, 2e-5f);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) EXPECT_EQ(ranked.opened[rank]->store.weight_bytes(), bytes[rank]) << "what left gave its memory back, rank " << rank;
  for (const auto& outcome : ranked.model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
}

struct Case {
  const char* name;
  int redundant;  // so that experts and replicas divide over the ranks
};

class StoredExperts : public testing::TestWithParam<Case> {};

TEST_P(StoredExperts, move_as_they_are_stored) { expect_moves(data(GetParam().name), GetParam().redundant); }

INSTANTIATE_TEST_SUITE_P(Forms, StoredExperts,
                         testing::Values(Case{"forms/fp8-block-deepseek-v3", 2}, Case{"forms/fp8-block-qwen3-moe", 1}, Case{"forms/paddle-wint4", 2}, Case{"forms/paddle-wint8", 0}, Case{"gguf/qwen3-moe.gguf", 2},
                                         Case{"gguf/deepseek-v3.gguf", 0}, Case{"gguf/ernie4_5-moe.gguf", 2}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::ranges::replace_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
                           return name;
                         });

TEST(StoredExperts, move_when_they_are_quantized_anew) {
  for (const std::string quantization : {"wint8", "wint4-g32", "tensor_wise_fp8"})
    for (const std::string folder : {"forms/fp8-block-deepseek-v3", "gguf/qwen3-moe.gguf"}) {
      SCOPED_TRACE(folder + " as " + quantization);
      expect_moves(data(folder), 2, quantization);
    }
}

// ---- tools of which no small mixture of experts is at hand: its matrices with codes and scales by chance

class Random {
 public:
  std::string words(std::int64_t count) {
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) add(bytes, static_cast<std::uint32_t>(generator_()));
    return bytes;
  }
  std::string e4m3(std::int64_t count) {  // up to 2 in magnitude
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) add(bytes, static_cast<std::uint8_t>(generator_() % 64 + (generator_() % 2) * 128));
    return bytes;
  }
  std::string scales(std::int64_t count, DType dtype) {  // about 0.01
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) add(bytes, static_cast<std::uint16_t>((dtype == DType::kF16 ? 0x2000 : 0x3c00) + generator_() % 128));
    return bytes;
  }

 private:
  template <class T>
  static void add(std::string& bytes, T value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
  std::mt19937 generator_{7};
};

// Each input's group, by chance. Of an expert all matrices have one order, since those that are fused must.
std::string groups_of(const std::string& scope, std::int64_t inputs, std::int64_t group) {
  std::vector<std::int32_t> of(static_cast<std::size_t>(inputs));
  for (std::size_t k = 0; k < of.size(); ++k) of[k] = static_cast<std::int32_t>(static_cast<std::int64_t>(k) / group);
  std::ranges::shuffle(of, std::mt19937(static_cast<std::uint32_t>(std::hash<std::string>{}(scope))));
  return {reinterpret_cast<const char*>(of.data()), of.size() * sizeof of[0]};
}

// A tiny model with every projection in a form, which `convert` writes: base, outputs, inputs.
template <class Convert>
void write_converted(const std::string& to, const Json& quantization_config, const Convert& convert, const std::string& model = "tiny-qwen3-moe") {
  TestFolder folder = TestFolder::read(data("tiny/" + model));
  folder.config["quantization_config"] = quantization_config;
  const auto before = folder.tensors;
  for (const auto& [name, tensor] : before) {
    if (!name.ends_with("_proj.weight") && !name.ends_with("_mqa.weight")) continue;
    convert(folder, name.substr(0, name.rfind('.')), tensor.shape[0], tensor.shape[1]);
    if (folder.tensors.at(name).dtype == tensor.dtype) folder.tensors.erase(name);  // nothing took its name
  }
  folder.write(to);
}

// As DeepSeek publishes V3 and R1.
TEST(StoredExperts, move_in_fp8_blocks_of_128) {
  const ScratchFolder scratch;
  Random random;
  write_converted(scratch.at("fp8"), {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}}, [&](TestFolder& folder, const std::string& base, std::int64_t n, std::int64_t k) {
    folder.tensors[base + ".weight"] = {DType::kF8E4M3, {n, k}, random.e4m3(n * k)};
    const std::int64_t blocks = (n + 127) / 128 * ((k + 127) / 128);
    folder.tensors[base + ".weight_scale_inv"] = {DType::kBF16, {(n + 127) / 128, (k + 127) / 128}, random.scales(blocks, DType::kBF16)};
  }, "tiny-deepseek-v3");
  const auto one = open_model(scratch.at("fp8"), options_of(1)).value();
  EXPECT_TRUE(std::ranges::all_of(one->table.rows, [&](const params::ParamSpec& row) { return row.expert < 0 || one->plan.slots[static_cast<std::size_t>(&row - one->table.rows.data())].format->name == "block_wise_fp8"; }));
  expect_moves(scratch.at("fp8"), 2);
}

TEST(StoredExperts, move_in_gptq_form) {
  for (const bool act_order : {false, true}) {
    SCOPED_TRACE(act_order ? "act-order" : "in order");
    const ScratchFolder scratch;
    Random random;
    write_converted(scratch.at("gptq"), {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"desc_act", act_order}, {"sym", false}}, [&](TestFolder& folder, const std::string& base, std::int64_t n, std::int64_t k) {
      folder.tensors[base + ".qweight"] = {DType::kI32, {k / 8, n}, random.words(k / 8 * n)};
      folder.tensors[base + ".qzeros"] = {DType::kI32, {k / 32, n / 8}, random.words(k / 32 * n / 8)};
      folder.tensors[base + ".scales"] = {DType::kF16, {k / 32, n}, random.scales(k / 32 * n, DType::kF16)};
      if (act_order) folder.tensors[base + ".g_idx"] = {DType::kI32, {k}, groups_of(base.substr(0, base.rfind('.')), k, 32)};
    });
    expect_moves(scratch.at("gptq"), 2);
  }
}

TEST(StoredExperts, move_in_awq_form) {
  const ScratchFolder scratch;
  Random random;
  write_converted(scratch.at("awq"), {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"zero_point", true}, {"version", "gemm"}}, [&](TestFolder& folder, const std::string& base, std::int64_t n, std::int64_t k) {
    folder.tensors[base + ".qweight"] = {DType::kI32, {k, n / 8}, random.words(k * n / 8)};
    folder.tensors[base + ".qzeros"] = {DType::kI32, {k / 32, n / 8}, random.words(k / 32 * n / 8)};
    folder.tensors[base + ".scales"] = {DType::kF16, {k / 32, n}, random.scales(k / 32 * n, DType::kF16)};
  });
  expect_moves(scratch.at("awq"), 0);
}

TEST(StoredExperts, move_in_compressed_tensors_form) {
  const ScratchFolder scratch;
  Random random;
  const Json weights = {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "group"}, {"group_size", 32}};
  const Json config = {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}, {"ignore", {"lm_head", "re:.*mlp.gate$"}}, {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  write_converted(scratch.at("ct"), config, [&](TestFolder& folder, const std::string& base, std::int64_t n, std::int64_t k) {
    const std::int64_t shape[2] = {n, k};
    folder.tensors[base + ".weight_packed"] = {DType::kI32, {n, k / 8}, random.words(n * k / 8)};
    folder.tensors[base + ".weight_scale"] = {DType::kBF16, {n, k / 32}, random.scales(n * k / 32, DType::kBF16)};
    folder.tensors[base + ".weight_shape"] = {DType::kI64, {2}, std::string(reinterpret_cast<const char*>(shape), sizeof shape)};
  });
  expect_moves(scratch.at("ct"), 4);
}

// ---- what a rank cannot load leaves all as it was

TEST(StoredExperts, that_one_rank_cannot_load_leave_the_placement) {
  const std::string folder = data("forms/fp8-block-deepseek-v3");
  const ScratchFolder scratch;
  TestFolder infinite = TestFolder::read(folder), plain = infinite;
  for (auto& [name, tensor] : infinite.tensors)
    if (name.find("mlp.experts.") != std::string::npos && name.ends_with("weight_scale_inv")) tensor.data.replace(0, 4, std::string("\0\0\x80\x7f", 4));
  infinite.write(scratch.at("infinite"));
  const auto before = plain.tensors;
  for (const auto& [name, tensor] : before) {
    if (name.find("mlp.experts.") == std::string::npos || !name.ends_with(".weight")) continue;
    plain.tensors[name] = {DType::kBF16, tensor.shape, std::string(tensor.data.size() * 2, '\0')};
    plain.tensors.erase(name + "_scale_inv");
  }
  plain.write(scratch.at("plain"));

  Ranked ranked(folder, options_of(kRanks, 2));
  ASSERT_TRUE(ranked.model.opened) << ranked.model.opened.error().message;
  const std::vector<float> expected = logits_of(ranked.lead());
  const auto placement = ranked.lead().runtime->placement;
  for (const auto& [other, why] : {std::pair("infinite", "scale"), std::pair("plain", "stored in another way"), std::pair("nowhere", "nowhere")}) {
    SCOPED_TRACE(other);
    ranked.opened[1]->folder = scratch.at(other);
    const auto moved = move_to(ranked.lead(), turned(*placement, 1));
    ASSERT_FALSE(moved);
    EXPECT_THAT(moved.error().message, testing::AllOf(HasSubstr("rank 1 could not load experts"), HasSubstr(why)));
    EXPECT_EQ(ranked.lead().runtime->placement, placement);
    EXPECT_EQ(logits_of(ranked.lead()), expected);  // bit for bit
  }
  ranked.opened[1]->folder = folder;
  const auto one = open_model(folder, options_of(1)).value();
  const auto moved = move_to(ranked.lead(), turned(*placement, 1));
  ASSERT_TRUE(moved) << moved.error().message;
  expect_close(logits_of(ranked.lead()), expected, 2e-5f);
  for (const OpenedModel* own : ranked.opened) EXPECT_GT(expect_experts(*own, *one), 0);
  for (const auto& outcome : ranked.model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
}

// By their loads, through the engine; tokens travel to their experts.
TEST(StoredExperts, are_balanced_by_their_loads) {
  const std::string folder = data("forms/fp8-block-deepseek-v3");
  const auto one = open_model(folder, options_of(1)).value();
  const std::vector<float> expected = logits_of(*one);
  for (const int groups : {1, 2}) {
    SCOPED_TRACE(testing::Message() << groups << " groups");
    EngineOptions options = options_of(kRanks);
    options.data_parallel_size = groups;
    options.tensor_parallel_size = kRanks / groups;
    Ranked ranked(folder, options);
    ASSERT_TRUE(ranked.model.opened) << ranked.model.opened.error().message;
    expect_close(logits_of(ranked.lead()), expected, 2e-5f);
    ExpertBalancer balancer(ranked.lead());
    const auto rebalanced = balancer.rebalance();
    ASSERT_TRUE(rebalanced) << rebalanced.error().message;
    EXPECT_GT(rebalanced->layers, 0);
    EXPECT_LT(rebalanced->after, rebalanced->before);
    expect_close(logits_of(ranked.lead()), expected, 2e-5f);
    for (const OpenedModel* own : ranked.opened) EXPECT_GT(expect_experts(*own, *one), 0);
    for (const auto& outcome : ranked.model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
  }
}

}  // namespace
}  // namespace inflight::engine
