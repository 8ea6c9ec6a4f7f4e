// What a rank loads of matrices that arrive quantized (converted folders, stored forms of other tools) is one rank's, cut: the same numbers, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "comm/threads.h"
#include "engine/bytes_read_for_test.h"
#include "engine/open_model.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "kernels/dispatch.h"
#include "loader/export.h"
#include "loader/load.h"
#include "params/partition.h"

namespace inflight::engine {
namespace {

using params::Topology;

std::string data(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/" + name; }

struct Loaded {
  loader::LoadPlan plan;
  quant::ParamStore store;
};

EngineOptions options_of(const std::string& quantization) {
  EngineOptions options;
  options.quantization = quantization;
  options.compute = "fp32";
  options.threads = 2;
  return options;
}

Result<Loaded> load(const std::string& folder, const params::ParamTable& table, const Topology& topology, const std::string& quantization, bool streaming = true, comm::Comm* ranks = nullptr,
                    const std::function<void()>& meanwhile = {}) {
  const checkpoint::Checkpoint checkpoint = TRY(checkpoint::Checkpoint::open(folder));
  quant::FormatPolicy policy = TRY(quant::make_policy(quantization, "auto", {}));
  policy.wide_derived = true;
  policy.settle(table);
  const int threads = topology.tp_size > 2 ? 1 : 2;
  ThreadPool pool(threads);
  Loaded loaded;
  loaded.plan = TRY(loader::plan_load(checkpoint, table, topology, policy, threads));
  TRY(loaded.store.allocate(loaded.plan.params));
  if (meanwhile) meanwhile();  // between the plan and the load
  const loader::LoadContext context{checkpoint, loaded.plan, table, *TRY(kernels::choose()), pool, loaded.store, ranks};
  TRY(streaming ? loader::load_streaming(context, {}) : loader::load_whole(context, {}));
  return loaded;
}

// Rows of one rank's matrix against those of the whole one. Returns how many numbers were compared.
std::int64_t expect_slice(const params::ParamSpec& row, const Topology& topology, const quant::Matrix& local, const quant::Matrix& whole) {
  EXPECT_EQ(local.format, whole.format) << row.full_name();
  if (local.format != whole.format) return 0;
  std::vector<float> got(static_cast<std::size_t>(std::max(row.inputs, local.inputs))), want(static_cast<std::size_t>(row.inputs));
  std::int64_t first = 0, compared = 0;
  for (std::size_t p = 0; p < row.pieces.size(); first += row.pieces[p].rows, ++p) {
    const params::Slice slice = params::slice_of(row, p, topology).value();
    EXPECT_EQ(local.inputs - local.lead, slice.col_end - slice.col_begin) << row.full_name();
    for (std::int64_t r = 0; r < slice.row_end - slice.row_begin; ++r) {
      local.format->dequantize(local, slice.local_row + r, got.data());
      whole.format->dequantize(whole, first + slice.row_begin + r, want.data());
      for (std::int64_t k = 0; k < slice.col_end - slice.col_begin; ++k, ++compared) {
        std::int64_t input = slice.col_begin + k, at = local.lead + k;
        if (local.gathers_inputs) input = at = (*local.order)[static_cast<std::size_t>(at)];
        const float a = got[static_cast<std::size_t>(at)], b = want[static_cast<std::size_t>(input)];
        if (std::memcmp(&a, &b, sizeof a) != 0) {
          ADD_FAILURE() << row.full_name() << ", row " << slice.row_begin + r << " of piece " << p << ", input " << input << ": " << a << ", one rank has " << b << " (rank " << topology.tp_rank << " of "
                        << topology.tp_size << ", lead " << local.lead << ")";
          return compared;
        }
      }
    }
  }
  return compared;
}

// All ranks of a topology at once, each on a thread of its own.
std::vector<Result<Loaded>> load_ranks(const std::string& folder, const params::ParamTable& table, const std::vector<Topology>& topologies, const std::string& quantization, bool streaming) {
  std::vector<std::unique_ptr<comm::Comm>> ends = comm::thread_ranks(static_cast<int>(topologies.size()));
  std::vector<Result<Loaded>> loaded;
  for (std::size_t rank = 0; rank < topologies.size(); ++rank) loaded.emplace_back(std::unexpected(Error{}));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < topologies.size(); ++rank)
    threads.emplace_back([&, rank] {
      loaded[rank] = load(folder, table, topologies[rank], quantization, streaming, ends[rank].get());
      if (!loaded[rank]) ends[rank]->fail(loaded[rank].error());
    });
  threads.clear();
  return loaded;
}

std::vector<Topology> ranks_of(int size, bool deal) {
  std::vector<Topology> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back({.tp_rank = rank, .tp_size = size, .ep_rank = deal ? rank : 0, .ep_size = deal ? size : 1});
  return ranks;
}

struct Seen {
  int topologies = 0;        // that the model divides over
  int leads = 0;             // matrices that begin inside a group, block or word
};

// Every rank of every topology that the model divides over.
Seen expect_slices(const std::string& folder, const std::string& quantization = "") {
  Seen seen;
  const ModelPlan model = plan_model(folder, options_of(quantization)).value();
  const auto whole = load(folder, model.table, {}, quantization);
  if (!whole) {
    ADD_FAILURE() << whole.error().message;
    return seen;
  }
  std::int64_t numbers = 0;
  for (const params::ParamSpec& row : model.table.rows)
    if (!row.derivation && row.role != params::Role::kVector) numbers += row.outputs() * row.inputs;
  const bool experts = std::ranges::any_of(model.table.rows, [](const params::ParamSpec& row) { return row.expert >= 0; });
  for (const int size : {2, 4})
    for (const bool deal : {false, true}) {
      const std::vector<Topology> ranks = ranks_of(size, deal);
      if ((deal && !experts) || !params::check_ranks(model.table, ranks[0])) continue;
      ++seen.topologies;
      for (const bool streaming : {true, false}) {
        const std::vector<Result<Loaded>> loaded = load_ranks(folder, model.table, ranks, quantization, streaming);
        std::int64_t compared = 0;
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
          if (!loaded[rank]) {
            ADD_FAILURE() << "rank " << rank << " of " << size << ": " << loaded[rank].error().message;
            return seen;
          }
          for (std::size_t i = 0; i < model.table.rows.size(); ++i) {
            const params::ParamSpec& row = model.table.rows[i];
            if (row.derivation || row.role == params::Role::kVector || !params::is_local(row, ranks[rank]).value()) continue;
            compared += expect_slice(row, ranks[rank], loaded[rank]->store.matrix(i), whole->store.matrix(i));
            seen.leads += loaded[rank]->store.matrix(i).lead != 0;
          }
        }
        EXPECT_GE(compared, numbers) << "ranks together hold every number";
      }
    }
  return seen;
}

struct Case {
  const char* name;
  int topologies;  // that the model's sizes allow
  bool leads = false;
};
std::string test_name(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class FormsOnRanks : public testing::TestWithParam<Case> {};

TEST_P(FormsOnRanks, kept_numbers_are_those_of_one_rank) {
  const Seen seen = expect_slices(data(GetParam().name));
  EXPECT_EQ(seen.topologies, GetParam().topologies);
  EXPECT_EQ(seen.leads > 0, GetParam().leads) << seen.leads;
}

const std::vector<Case>& forms() {
  static const std::vector<Case> all = {
      {"forms/gptq-4bit-sym", 1, true}, {"forms/gptq-4bit-asym", 1, true}, {"forms/gptq-4bit-act-order", 1, true}, {"forms/gptq-4bit-act-order-moe", 4, true}, {"forms/gptq-8bit-v2-channel", 1}, {"forms/awq-g32", 1},
      {"forms/ct-w4a16-group", 1, true}, {"forms/ct-w4a16-channel-zero", 1, true}, {"forms/ct-w4a16-g-idx", 1, true}, {"forms/ct-w8a16-group-zero", 1},
      {"forms/ct-w8a8-int8", 1}, {"forms/ct-fp8-tensor", 1}, {"forms/ct-fp8-channel", 1}, {"forms/ct-fp8-block", 1},
      {"forms/fp8-block-qwen3-moe", 1, true}, {"forms/fp8-block-deepseek-v3", 2}, {"forms/paddle-wint8", 2}, {"forms/paddle-wint4", 2}, {"forms/paddle-wint4-row-major", 2},
      {"gguf/qwen3-q4_k_m.gguf", 2}, {"gguf/qwen3-q2_k.gguf", 2}, {"gguf/qwen3-q5_k_m.gguf", 2}, {"gguf/llama.gguf", 2, true}, {"gguf/qwen3-moe.gguf", 4, true}, {"gguf/deepseek-v3.gguf", 4, true},
      {"gguf/deepseek-v2-lite.gguf", 4}, {"gguf/ernie4_5.gguf", 2, true}, {"gguf/ernie4_5-moe.gguf", 4, true}, {"gguf/glm4-moe.gguf", 4, true}, {"gguf/llama-yarn.gguf", 2, true},
      {"gguf/qwen2.gguf", 2, true}, {"gguf/qwen2-moe.gguf", 4, true}, {"gguf/qwen3.gguf", 2, true}};
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, FormsOnRanks, testing::ValuesIn(forms()), [](const auto& test) { return test_name(test.param.name); });

TEST(StoredForms, of_this_list_are_all_that_there_are) {
  std::vector<std::string> found, listed;
  for (const auto& entry : std::filesystem::directory_iterator(data("forms")))
    if (entry.is_directory()) found.push_back("forms/" + entry.path().filename().string());
  for (const auto& entry : std::filesystem::directory_iterator(data("gguf")))
    if (entry.path().extension() == ".gguf" && entry.path().stem() != "sentence-piece") found.push_back("gguf/" + entry.path().filename().string());  // that one is a vocabulary
  for (const Case& c : forms()) listed.push_back(c.name);
  EXPECT_THAT(listed, testing::UnorderedElementsAreArray(found));
}

std::string convert(const ScratchFolder& scratch, const std::string& name, const std::string& quantization) {
  const auto opened = open_model(data(name), options_of(quantization)).value();
  EXPECT_TRUE(loader::export_model(opened->folder, opened->table, opened->store, scratch.at("converted"), {}, 1 << 30));
  return scratch.at("converted");
}

class FoldersOnRanks : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(FoldersOnRanks, codes_and_scales_are_those_of_one_rank) {
  const auto& [name, quantization] = GetParam();
  const ScratchFolder scratch;
  EXPECT_GE(expect_slices(convert(scratch, name, quantization)).topologies, 1);
}

INSTANTIATE_TEST_SUITE_P(All, FoldersOnRanks,
                         testing::Combine(testing::Values("tiny/tiny-qwen3", "tiny/tiny-llama-odd", "tiny/tiny-qwen3-moe", "tiny/tiny-deepseek-v3"),
                                          testing::Values("wint8", "wint4", "wint4-g32", "wint4-g128", "wlut4", "tensor_wise_fp8", "block_wise_fp8")),
                         [](const auto& test) { return test_name(std::get<0>(test.param) + "_" + std::get<1>(test.param)); });

INSTANTIATE_TEST_SUITE_P(OfForms, FoldersOnRanks,
                         testing::Combine(testing::Values("forms/gptq-4bit-asym", "forms/gptq-4bit-act-order", "forms/gptq-4bit-act-order-moe", "forms/gptq-8bit-v2-channel", "forms/ct-w4a16-channel-zero",
                                                          "forms/ct-w4a16-g-idx", "forms/ct-w8a8-int8",
                                                          "forms/fp8-block-qwen3-moe"),
                                          testing::Values("")),
                         [](const auto& test) { return test_name(std::get<0>(test.param)); });

// The numbers of a form quantized anew: scales of whole rows, groups, blocks and matrices, whatever a rank holds of them.
class AnewOnRanks : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(AnewOnRanks, codes_and_scales_are_those_of_one_rank) {
  const auto& [name, quantization] = GetParam();
  EXPECT_GE(expect_slices(data(name), quantization).topologies, 1);
}

INSTANTIATE_TEST_SUITE_P(All, AnewOnRanks,
                         testing::Combine(testing::Values("forms/gptq-4bit-asym", "forms/gptq-4bit-act-order", "forms/gptq-4bit-act-order-moe", "forms/awq-g32", "forms/ct-w4a16-channel-zero", "forms/ct-fp8-block", "forms/fp8-block-qwen3-moe",
                                                          "forms/fp8-block-deepseek-v3", "forms/paddle-wint4", "gguf/qwen3-q4_k_m.gguf", "gguf/qwen3-moe.gguf"),
                                          testing::Values("wint8", "wint4", "wint4-g32", "wint4-g128", "wlut4", "tensor_wise_fp8", "block_wise_fp8")),
                         [](const auto& test) { return test_name(std::get<0>(test.param) + "_" + std::get<1>(test.param)); });

// ---- bytes

class BytesOfForms : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(BytesOfForms, are_read_once_by_all_ranks_together) {
  const auto& [name, quantization] = GetParam();
  const ModelPlan model = plan_model(data(name), options_of(quantization)).value();
  const auto whole = load(data(name), model.table, {}, quantization);
  ASSERT_TRUE(whole) << whole.error().message;
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(data(name)).value();
  for (const InputFile& shard : checkpoint.shards()) (void)read_file(shard.path());  // into the page cache: direct reads are of whole blocks
  const std::vector<Topology> ranks = ranks_of(2, false);
  std::int64_t opening = -bytes_read();  // what every rank reads before it plans, and while it does
  {
    const auto again = checkpoint::Checkpoint::open(data(name)).value();
    quant::FormatPolicy policy = quant::make_policy(quantization, "auto", {}).value();
    policy.wide_derived = true;
    policy.settle(model.table);
    (void)loader::plan_load(again, model.table, ranks[0], policy, 2).value();
  }
  opening += bytes_read();
  const std::int64_t before = bytes_read();
  const auto loaded = load_ranks(data(name), model.table, ranks, quantization, true);
  const std::int64_t read = bytes_read() - before;
  std::int64_t planned = 0, replicated = 0;
  for (const auto& part : loaded) {
    ASSERT_TRUE(part) << part.error().message;
    planned += part->plan.source_bytes;
  }
  for (const params::ParamSpec& row : model.table.rows)
    for (std::size_t p = 0; p < row.pieces.size() && !row.derivation && !params::is_cut(row, ranks[0]); ++p)
      if (const checkpoint::Tensor* tensor = checkpoint.find(row.piece_name(p))) replicated += tensor->info.bytes();
  for (const loader::FormSource& form : whole->plan.forms)  // scales of outputs, orders of inputs
    for (std::size_t t = 1; t < form.tensors.size(); ++t)
      if (form.places[t] >= 0 && form.tensors[t].input_unit == 0) replicated += checkpoint.tensors()[static_cast<std::size_t>(form.places[t])].info.bytes();
  // A word or scale that a border cuts is read by both sides: of rows of 52 to 96 numbers that is some percent, of larger ones nothing.
  EXPECT_LE(planned, whole->plan.source_bytes + whole->plan.source_bytes / 10 + replicated);
  EXPECT_GE(planned, whole->plan.source_bytes);
  if (before < 0) return;
  EXPECT_LE(read - 2 * opening, planned + 4096) << "of " << planned;
}

INSTANTIATE_TEST_SUITE_P(All, BytesOfForms,
                         testing::Combine(testing::Values("forms/gptq-4bit-act-order", "forms/gptq-8bit-v2-channel", "forms/ct-w4a16-g-idx", "forms/ct-w8a8-int8", "forms/paddle-wint4-row-major"),
                                          testing::Values("", "wint8", "tensor_wise_fp8")),
                         [](const auto& test) { return test_name(std::get<0>(test.param) + "_" + std::get<1>(test.param)); });

// Their blocks of 256 are cut where numbers are kept: then both sides of a border read them.
INSTANTIATE_TEST_SUITE_P(Gguf, BytesOfForms, testing::Combine(testing::Values("gguf/qwen3-q4_k_m.gguf", "gguf/qwen3-q2_k.gguf"), testing::Values("wint8", "tensor_wise_fp8")),
                         [](const auto& test) { return test_name(std::get<0>(test.param) + "_" + std::get<1>(test.param)); });

// ---- inputs that are sorted by group

std::string numbers(const std::vector<std::int32_t>& values) { return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int32_t)); }

// A converted folder whose wint4-g32 codes are said to be another tool's; column k of every down_proj among `matrices` is input 7 k (modulo their number).
TestFolder sorted_folder(const std::string& converted, const std::string& key, const std::string& matrices, std::int64_t inputs) {
  TestFolder folder = TestFolder::read(converted);
  folder.config["quantization_config"]["inflight"][key] = "int4-g32";
  folder.config["quantization_config"]["inflight"]["version"] = 2;
  std::vector<std::int32_t> order(static_cast<std::size_t>(inputs));
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = static_cast<std::int32_t>(k * 7 % order.size());
  std::vector<std::string> bases;
  for (const auto& [name, tensor] : folder.tensors)
    if (name.ends_with(".weight_packed") && name.find(matrices) != std::string::npos && name.find("down_proj") != std::string::npos) bases.push_back(name.substr(0, name.rfind('.')));
  for (const std::string& base : bases) folder.tensors[base + ".weight_order"] = {DType::kI32, {inputs}, numbers(order)};
  return folder;
}

TEST(SortedInputsOnRanks, of_a_converted_folder_are_a_run_of_the_order) {
  const ScratchFolder scratch;
  sorted_folder(convert(scratch, "tiny/tiny-qwen3", "wint4-g32"), "linear", "mlp.", 192).write(scratch.at("sorted"));
  EXPECT_GE(expect_slices(scratch.at("sorted")).topologies, 1);
}

TEST(SortedInputsOnRanks, of_experts_are_a_run_of_the_order) {
  const ScratchFolder scratch;
  sorted_folder(convert(scratch, "tiny/tiny-qwen3-moe", "wint4-g32"), "experts", ".experts.", 64).write(scratch.at("sorted"));
  EXPECT_EQ(expect_slices(scratch.at("sorted")).topologies, 4);
}

// ---- what is wrong with a checkpoint is found by ranks too

// The message of one rank, and those of two.
void expect_refused(const TestFolder& folder, const std::string& what) {
  SCOPED_TRACE(what);
  const ScratchFolder scratch;
  folder.write(scratch.at("model"));
  const ModelPlan model = plan_model(scratch.at("model"), options_of("")).value_or(ModelPlan{});
  if (model.table.rows.empty()) {  // found while planning, which each rank does by itself
    const auto one = plan_model(scratch.at("model"), options_of(""));
    EXPECT_THAT(one.error().message, testing::HasSubstr(what));
    return;
  }
  const auto one = load(scratch.at("model"), model.table, {}, "");
  ASSERT_FALSE(one);
  EXPECT_THAT(one.error().message, testing::HasSubstr(what));
  std::string said;
  for (const auto& loaded : load_ranks(scratch.at("model"), model.table, ranks_of(2, false), "", true)) {
    EXPECT_FALSE(loaded);
    if (!loaded) said += loaded.error().message + "\n";
  }
  EXPECT_THAT(said, testing::HasSubstr(one.error().message));
}

TEST(DamagedFormsOnRanks, are_refused_in_the_words_of_one_rank) {
  TestFolder fp8 = TestFolder::read(data("forms/ct-fp8-channel"));
  fp8.tensors.at("model.layers.0.mlp.down_proj.weight").data[52 * 5 + 40] = '\x7f';  // of 52 columns, one of the second rank's
  expect_refused(fp8, "row 5, column 40: FP8 code");

  TestFolder gguf_like = TestFolder::read(data("forms/ct-w8a16-group-zero"));
  for (auto& [name, tensor] : gguf_like.tensors)
    if (name.ends_with("o_proj.weight_scale")) std::memset(tensor.data.data() + tensor.data.size() - static_cast<std::size_t>(dtype_bits(tensor.dtype) / 8), 0xff, static_cast<std::size_t>(dtype_bits(tensor.dtype) / 8));
  expect_refused(gguf_like, "(group 1) is not a finite number");

  TestFolder sorted = TestFolder::read(data("forms/gptq-4bit-act-order"));
  const std::int32_t beyond = 1000;
  std::memcpy(sorted.tensors.at("model.layers.0.mlp.down_proj.g_idx").data.data() + 4, &beyond, 4);
  expect_refused(sorted, "input 1 is in group 1000");

  const ScratchFolder scratch;
  TestFolder own = TestFolder::read(convert(scratch, "tiny/tiny-qwen3", "wint4-g32"));
  const std::int64_t shape[2] = {64, 96};
  own.tensors.at("model.layers.0.mlp.down_proj.weight_shape").data.assign(reinterpret_cast<const char*>(shape), sizeof shape);
  expect_refused(own, "says [64, 96], but the model needs [64, 192]");
}

// The folder in two files, the second of which holds the matrices named so.
void write_apart(const TestFolder& folder, const std::string& matrices, const std::string& path) {
  Json index = {{"weight_map", Json::object()}};
  std::filesystem::create_directories(path);
  for (const bool named : {false, true}) {
    TestFolder part = folder;
    std::erase_if(part.tensors, [&](const auto& tensor) { return (tensor.first.find(matrices) != std::string::npos) != named; });
    const std::string file = named ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
    part.write(path + "/part");
    std::filesystem::rename(path + "/part/model.safetensors", path + "/" + file);
    std::filesystem::rename(path + "/part/config.json", path + "/config.json");
    for (const auto& [name, tensor] : part.tensors) index["weight_map"][name] = file;
  }
  std::ofstream(path + "/model.safetensors.index.json") << index.dump();
}

// Shares of a matrix are read by different ranks: one that cannot read its own ends all.
TEST(SharedReads, of_a_file_that_is_cut_under_one_rank_end_all) {
  for (const std::string quantization : {"", "wint8", "tensor_wise_fp8"}) {
    const ScratchFolder scratch;
    for (const char* copy : {"whole", "cut"}) write_apart(TestFolder::read(data("forms/gptq-4bit-act-order")), "down_proj", scratch.at(copy));  // of which every rank needs all
    const std::string file = scratch.at("cut") + "/model-00002-of-00002.safetensors";
    const ModelPlan model = plan_model(scratch.at("whole"), options_of(quantization)).value();
    const std::vector<Topology> topologies = ranks_of(2, false);
    auto ends = comm::thread_ranks(2);
    std::vector<Result<Loaded>> loaded;
    for (std::size_t rank = 0; rank < 2; ++rank) loaded.emplace_back(std::unexpected(Error{}));
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const auto cut = [&] {
          if (rank == 1) std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
        };
        loaded[rank] = load(scratch.at(rank == 1 ? "cut" : "whole"), model.table, topologies[rank], quantization, true, ends[rank].get(), cut);
      });
    threads.clear();
    for (const auto& part : loaded) {
      ASSERT_FALSE(part);
      EXPECT_THAT(part.error().message, testing::AllOf(testing::HasSubstr("rank 1"), testing::HasSubstr("cut/model-00002-of-00002.safetensors"), testing::AnyOf(testing::HasSubstr("truncated"), testing::HasSubstr("changed"))));
    }
  }
}

// ---- whole models

class FormLogitsOnRanks : public testing::TestWithParam<std::tuple<std::string, std::string, bool>> {};

TEST_P(FormLogitsOnRanks, are_those_of_one_rank) {
  const auto& [name, compute, experts] = GetParam();
  EngineOptions options = options_of("");
  options.compute = compute;
  options.threads = 1;
  options.fp8_activations = "none";
  const auto one = open_model(data(name), options).value();
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(3 + i * 5 % 60);
  options.tensor_parallel_size = 2;
  options.enable_expert_parallel = experts;
  RankedModel model(2, data(name), options);
  ASSERT_TRUE(model.opened) << model.opened.error().message;
  options.tensor_parallel_size = 1;
  options.enable_expert_parallel = false;
  options.compute = "fp32";
  const auto plain = open_model(data(name), options).value();
  const auto stride = static_cast<std::size_t>(one->model->logits_stride()), vocabulary = static_cast<std::size_t>(one->model->info().vocabulary);
  const auto worst = [&](std::span<const float> got, std::span<const float> want) {
    float most = 0;
    for (std::size_t i = 0; i < want.size(); ++i)
      if (i % stride < vocabulary) most = std::max(most, std::fabs(got[i] - want[i]));
    return most;
  };
  for (const bool decode : {false, true}) {
    SCOPED_TRACE(decode ? "decode" : "prompt");
    const auto want = forward_once(*one, ids, {.decode = decode}).logits, got = forward_once(**model.opened, ids, {.decode = decode}).logits, exact = forward_once(*plain, ids, {.decode = decode}).logits;
    ASSERT_EQ(got.size(), want.size());
    const float largest = worst(want, std::vector<float>(want.size()));
    // A rank rounds its own channels by a scale of their own (int8): another error than one rank's, of the same size.
    if (compute == "fp32") {
      EXPECT_LE(worst(got, want), 2e-5f * largest);
    } else {
      EXPECT_LE(worst(got, exact), 2 * worst(want, exact) + 2e-5f * largest);
    }
  }
  for (const auto& outcome : model.end()) EXPECT_TRUE(outcome) << outcome.error().message;
}

INSTANTIATE_TEST_SUITE_P(All, FormLogitsOnRanks,
                         testing::Values(std::tuple("forms/gptq-4bit-asym", "fp32", false), std::tuple("forms/gptq-4bit-act-order", "fp32", false), std::tuple("forms/gptq-4bit-act-order", "int8", false),
                                         std::tuple("forms/ct-w4a16-g-idx", "fp32", false), std::tuple("forms/awq-g32", "fp32", false), std::tuple("forms/ct-w4a16-channel-zero", "fp32", false),
                                         std::tuple("forms/ct-fp8-block", "fp32", false), std::tuple("forms/fp8-block-qwen3-moe", "fp32", false), std::tuple("forms/fp8-block-deepseek-v3", "fp32", true),
                                         std::tuple("forms/paddle-wint4", "fp32", false), std::tuple("forms/paddle-wint8", "fp32", true), std::tuple("gguf/qwen3-q4_k_m.gguf", "fp32", false),
                                         std::tuple("gguf/qwen3-moe.gguf", "fp32", false)),
                         [](const auto& test) { return test_name(std::get<0>(test.param) + "_" + std::get<1>(test.param) + (std::get<2>(test.param) ? "_whole_experts" : "")); });

}  // namespace
}  // namespace inflight::engine
