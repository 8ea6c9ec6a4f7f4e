// What several ranks load together is what one rank loads, cut: dequantized rows and scales bit for bit, for every format and road.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/bf16.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "comm/threads.h"
#include "engine/bytes_read_for_test.h"
#include "engine/test_folder.h"
#include "engine/tiny_models_for_test.h"
#include "kernels/dispatch.h"
#include "loader/exchange.h"
#include "loader/load.h"
#include "models/registry.h"
#include "params/partition.h"

namespace inflight::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A model's parameters as one rank of a topology has them.
struct Loaded {
  std::unique_ptr<checkpoint::Checkpoint> checkpoint;
  params::ParamTable table;
  quant::ParamStore store;
  loader::LoadPlan plan;
  Result<loader::LoadReport> report;
};

struct Wish {
  std::string folder;
  std::string quantization = {};
  std::string fp8_target = "ocp";
  std::string lm_head = "auto";
  bool streaming = true;
  int threads = 2;
};

std::unique_ptr<Loaded> prepare(const Wish& wish, const params::Topology& topology) {
  auto loaded = std::make_unique<Loaded>();
  loaded->checkpoint = std::make_unique<checkpoint::Checkpoint>(checkpoint::Checkpoint::open(wish.folder).value());
  const checkpoint::Checkpoint& checkpoint = *loaded->checkpoint;
  const JsonView config{&checkpoint.config(), checkpoint.config_path()};
  const loader::Forms forms = loader::Forms::of(checkpoint).value();
  const auto model = models::build_model(config, {&loaded->table, &loaded->store, [&](std::string_view name) { return forms.has(name); },
                                                  [&](std::string_view name) { return checkpoint.find(name)->info.shape; }, false, topology});
  EXPECT_TRUE(model) << model.error().message;
  quant::FormatPolicy policy = quant::make_policy(wish.quantization, wish.lm_head).value();
  policy.set_fp8_target(wish.fp8_target).value();
  policy.settle(loaded->table);
  auto plan = loader::plan_load(checkpoint, loaded->table, topology, policy, wish.threads);
  EXPECT_TRUE(plan) << plan.error().message;
  loaded->plan = *std::move(plan);
  loaded->store.allocate(loaded->plan.params).value();
  return loaded;
}

void load(Loaded& loaded, const Wish& wish, comm::Comm* ranks) {
  ThreadPool pool(wish.threads);
  const loader::LoadContext context{*loaded.checkpoint, loaded.plan, loaded.table, **kernels::choose(), pool, loaded.store, ranks};
  loaded.report = wish.streaming ? loader::load_streaming(context, {}) : loader::load_whole(context, {});
}

std::vector<params::Topology> ranks_of(int tensor, bool experts) {
  std::vector<params::Topology> ranks;
  for (int rank = 0; rank < tensor; ++rank) ranks.push_back({.tp_rank = rank, .tp_size = tensor, .ep_rank = experts ? rank : 0, .ep_size = experts ? tensor : 1});
  return ranks;
}

// meanwhile: between the plans and the loads.
std::vector<std::unique_ptr<Loaded>> load_ranks(const Wish& wish, const std::vector<params::Topology>& topologies, const std::function<void()>& meanwhile = {}) {
  std::vector<std::unique_ptr<Loaded>> loaded;
  for (const params::Topology& topology : topologies) loaded.push_back(prepare(wish, topology));
  if (meanwhile) meanwhile();
  auto ranks = comm::thread_ranks(static_cast<int>(topologies.size()));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) threads.emplace_back([&, r] { load(*loaded[r], wish, ranks[r].get()); });
  for (std::thread& thread : threads) thread.join();
  return loaded;
}

std::vector<float> row_of(const quant::Matrix& matrix, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(matrix.inputs));
  matrix.format->dequantize(matrix, row, values.data());
  return values;
}

// Scales of one row as a converted folder has them, a string an element.
std::vector<std::string> scales_of(const quant::Matrix& matrix, std::int64_t row, std::size_t tensor) {
  const quant::StoredTensor stored = matrix.format->stored(1, matrix.inputs, matrix.group, matrix.group != 0 && !matrix.scales_fp16)[tensor];
  std::string bytes(static_cast<std::size_t>(stored.row_bytes), '\0');
  matrix.format->export_row(matrix, row, tensor, bytes.data());
  const auto width = static_cast<std::size_t>(stored.row_bytes / stored.shape[1]);
  std::vector<std::string> scales;
  for (std::size_t at = 0; at < bytes.size(); at += width) scales.push_back(bytes.substr(at, width));
  return scales;
}

template <class T>
bool same_bits(const std::vector<T>& a, std::size_t from, const std::vector<T>& b, std::size_t at, std::size_t n) {
  if constexpr (std::is_same_v<T, float>) return std::memcmp(a.data() + from, b.data() + at, n * sizeof(T)) == 0;
  else return std::equal(a.begin() + static_cast<std::ptrdiff_t>(from), a.begin() + static_cast<std::ptrdiff_t>(from + n), b.begin() + static_cast<std::ptrdiff_t>(at));
}

// Codes with their padding are what a converted folder of these rows becomes in memory: padding holds the code of zero.
void expect_zero_padding(const Loaded& part, std::size_t i) {
  const quant::Matrix& m = part.store.matrix(i);
  quant::ParamStore again;
  quant::ParamPlan plan{.slots = {part.plan.params.slots[i]}, .weight_bytes = 0};
  plan.slots[0].offset = 0;
  plan.weight_bytes = plan.slots[0].bytes.codes + plan.slots[0].bytes.scales + plan.slots[0].bytes.offsets + 192;
  again.allocate(plan).value();
  quant::begin(again.matrix(0)).value();
  for (std::int64_t row = 0; row < m.outputs; ++row) {
    std::string bytes(static_cast<std::size_t>(m.format->stored(1, m.inputs, m.group, false)[0].row_bytes), '\0');
    m.format->export_row(m, row, 0, bytes.data());
    const auto imported = m.format->import_row(again.matrix(0), row, 0, DType::kU8, bytes.data());
    ASSERT_TRUE(imported) << imported.error().message;
  }
  EXPECT_EQ(std::memcmp(m.codes, again.matrix(0).codes, static_cast<std::size_t>(plan.slots[0].bytes.codes)), 0) << "padding is not zeros";
}

// Every local row against its part of the whole one. Returns how many matrices have a lead.
int expect_slices(const Loaded& whole, const Loaded& part, const params::Topology& topology) {
  int leads = 0;
  for (std::size_t i = 0; i < whole.table.rows.size(); ++i) {
    const params::ParamSpec& row = whole.table.rows[i];
    SCOPED_TRACE(row.full_name());
    if (!params::is_local(row, topology).value()) {
      EXPECT_EQ(part.plan.params.slots[i].outputs, 0);
      continue;
    }
    bool counted = false;
    if (const quant::Slot& slot = part.plan.params.slots[i]; slot.format && slot.format->quantized() && slot.outputs > 0) expect_zero_padding(part, i);
    for (std::size_t p = 0; p < row.pieces.size(); ++p) {
      const params::Slice slice = params::slice_of(row, p, topology).value();
      std::int64_t first = 0;
      for (std::size_t before = 0; before < p; ++before) first += row.pieces[before].rows;
      for (std::int64_t r = slice.row_begin; r < slice.row_end; ++r) {
        const std::int64_t local = slice.local_row + r - slice.row_begin;
        if (const float* vector = whole.store.vector(i)) {
          EXPECT_EQ(std::memcmp(vector + first + r, part.store.vector(i) + local, sizeof(float)), 0) << "element " << r;
          continue;
        }
        const quant::Matrix &w = whole.store.matrix(i), &m = part.store.matrix(i);
        EXPECT_EQ(w.format, m.format);
        EXPECT_EQ(m.inputs, m.lead + slice.col_end - slice.col_begin);
        EXPECT_EQ((slice.col_begin - m.lead) % m.format->lead_step(), 0);
        const auto lead = static_cast<std::size_t>(m.lead), begin = static_cast<std::size_t>(slice.col_begin), width = static_cast<std::size_t>(slice.col_end - slice.col_begin);
        if (lead != 0 && !std::exchange(counted, true)) ++leads;
        const std::vector<float> a = row_of(w, first + r), b = row_of(m, local);
        if (!same_bits(a, begin, b, lead, width)) return ADD_FAILURE() << "row " << r << " differs", leads;
        for (std::size_t k = 0; k < lead; ++k) EXPECT_EQ(b[k], 0.0f) << "lead column " << k;
        if (!m.format->quantized()) continue;
        EXPECT_EQ(w.group != 0 && !w.scales_fp16, m.group != 0 && !m.scales_fp16) << "scales of another width";
        const auto tensors = m.format->stored(1, m.inputs, m.group, false);
        for (std::size_t t = 1; t < tensors.size(); ++t) {
          if (tensors[t].row_bytes == 0) continue;
          const auto x = scales_of(w, first + r, t), y = scales_of(m, local, t);
          const std::size_t at = x.size() == 1 ? 0 : (begin - lead) / static_cast<std::size_t>(m.format->lead_step());
          if (!same_bits(x, at, y, 0, y.size())) return ADD_FAILURE() << "scales of row " << r << " differ", leads;
        }
      }
    }
  }
  return leads;
}

struct Format {
  std::string name, target = "ocp";
};
void PrintTo(const Format& format, std::ostream* out) { *out << format.name << ' ' << format.target; }

class RankSlices : public testing::TestWithParam<std::tuple<std::string, Format>> {};

TEST_P(RankSlices, are_those_of_one_rank_bit_for_bit) {
  const auto& [model, format] = GetParam();
  Wish wish{.folder = tiny(model), .quantization = format.name, .fp8_target = format.target};
  const auto whole = prepare(wish, {});
  load(*whole, wish, nullptr);
  ASSERT_TRUE(whole->report) << whole->report.error().message;
  int turn = 0;
  for (const bool experts : {false, true}) {
    if (experts && std::ranges::none_of(whole->table.rows, [](const params::ParamSpec& row) { return row.expert >= 0; })) continue;
    for (const int n : params::rank_counts(whole->table, experts, 8)) {
      if (n == 1) continue;
      wish.streaming = turn % 3 != 2;
      wish.threads = 1 + turn++ % 2;
      SCOPED_TRACE(fmt::format("{} ranks{}{}", n, experts ? ", whole experts" : "", wish.streaming ? "" : ", default road"));
      const auto topologies = ranks_of(n, experts);
      const auto parts = load_ranks(wish, topologies);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        ASSERT_TRUE(parts[r]->report) << parts[r]->report.error().message;
        expect_slices(*whole, *parts[r], topologies[r]);
      }
    }
  }
  EXPECT_GT(turn, 0) << "the model suits no number of ranks";
}

INSTANTIATE_TEST_SUITE_P(Tiny, RankSlices,
                         testing::Combine(testing::ValuesIn(tiny_names()),
                                          testing::Values(Format{""}, Format{"wint8"}, Format{"wint4"}, Format{"wint4-g128"}, Format{"wint4-g64"}, Format{"wint4-g32"}, Format{"wlut4"}, Format{"wlut4-mix"},
                                                          Format{"tensor_wise_fp8"}, Format{"block_wise_fp8"}, Format{"tensor_wise_fp8", "gaudi"}, Format{"block_wise_fp8", "gaudi"})),
                         [](const auto& test) {
                           const Format& format = std::get<1>(test.param);
                           std::string name = std::get<0>(test.param) + "_" + (format.name.empty() ? "bf16" : format.name) + (format.target == "ocp" ? "" : "_" + format.target);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// tiny-llama with other sizes and numbers of its own: hidden 320, an intermediate size and a vocabulary to choose.
TestFolder wide_llama(std::int64_t intermediate, std::int64_t vocabulary) {
  TestFolder folder = TestFolder::read(tiny("tiny-llama"));
  folder.config["hidden_size"] = 320;
  folder.config["intermediate_size"] = intermediate;
  folder.config["vocab_size"] = vocabulary;
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0, 0.05f);
  for (auto& [name, tensor] : folder.tensors) {
    const std::int64_t heads = tensor.shape[0];  // of q, k and v
    if (name.ends_with("norm.weight")) tensor.shape = {320};
    else if (name.find("embed") != name.npos || name.find("head") != name.npos) tensor.shape = {vocabulary, 320};
    else if (name.find("o_proj") != name.npos) tensor.shape = {320, tensor.shape[1]};
    else if (name.find("down_proj") != name.npos) tensor.shape = {320, intermediate};
    else tensor.shape = {name.find("mlp") != name.npos ? intermediate : heads, 320};
    std::int64_t elements = 1;
    for (const std::int64_t n : tensor.shape) elements *= n;
    tensor.data.clear();
    for (std::int64_t i = 0; i < elements; ++i) {
      const std::uint16_t bits = float_to_bf16(normal(rng));
      tensor.data.append(reinterpret_cast<const char*>(&bits), 2);
    }
  }
  return folder;
}

TEST(RankSlicesInBatches, rows_of_several_batches_and_matrices_read_twice_are_the_same) {
  const ScratchFolder scratch;
  wide_llama(192, 500).write(scratch.at("model"));
  for (const std::string quantization : {"wint8", "wint4-g64", "wint4-g128", "wlut4", "tensor_wise_fp8", "block_wise_fp8"}) {
    SCOPED_TRACE(quantization);
    const Wish wish{.folder = scratch.at("model"), .quantization = quantization, .lm_head = quantization};
    const auto whole = prepare(wish, {});
    load(*whole, wish, nullptr);
    for (const std::int64_t staging : {std::int64_t{1} << 30, std::int64_t{1}}) {
      const auto topologies = ranks_of(4, false);
      std::vector<std::unique_ptr<Loaded>> parts;
      for (const params::Topology& topology : topologies) {
        parts.push_back(prepare(wish, topology));
        loader::LoadPlan& plan = parts.back()->plan;
        const std::size_t before = plan.batches.size();
        plan.batches.clear();
        const std::vector<const quant::Format*> none(parts.back()->table.rows.size(), nullptr);
        loader::plan_exchange(*parts.back()->checkpoint, parts.back()->table, topology, none, plan, {.batch_bytes = 1 << 14, .staging_bytes = staging}).value();
        EXPECT_GT(plan.batches.size(), before + 5);
        EXPECT_EQ(plan.batches[0].twice, staging == 1);
      }
      auto ranks = comm::thread_ranks(4);
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < 4; ++r) threads.emplace_back([&, r] { load(*parts[r], wish, ranks[r].get()); });
      for (std::thread& thread : threads) thread.join();
      for (std::size_t r = 0; r < 4; ++r) {
        ASSERT_TRUE(parts[r]->report) << parts[r]->report.error().message;
        const int leads = expect_slices(*whole, *parts[r], topologies[r]);
        if (quantization == "wint4-g64" || quantization.starts_with("block")) {
          EXPECT_EQ(leads > 0, r != 0) << "rank " << r;
        }
      }
    }
  }
}

// The vocabulary is cut in runs of panels, of which the last rank's is shorter, or empty.
TEST(RankSlicesOfVocabularies, that_do_not_divide) {
  const ScratchFolder scratch;
  for (const std::int64_t vocabulary : {500, 97, 33}) {
    wide_llama(192, vocabulary).write(scratch.at("model"));
    for (const std::string head : {"wint8", "tensor_wise_fp8", "block_wise_fp8", "wlut4"}) {
      SCOPED_TRACE(fmt::format("{} rows, {}", vocabulary, head));
      const Wish wish{.folder = scratch.at("model"), .quantization = "wint8", .lm_head = head};
      const auto whole = prepare(wish, {});
      load(*whole, wish, nullptr);
      const auto topologies = ranks_of(4, false);
      const auto parts = load_ranks(wish, topologies);
      for (std::size_t r = 0; r < 4; ++r) {
        ASSERT_TRUE(parts[r]->report) << parts[r]->report.error().message;
        expect_slices(*whole, *parts[r], topologies[r]);
      }
    }
  }
}

// Where one group's scale of a matrix does not fit FP16, the whole matrix keeps FP32 scales: on all ranks.
TEST(RankSlicesWithWideScales, all_ranks_keep_them_where_one_must) {
  const ScratchFolder scratch;
  TestFolder folder = wide_llama(256, 512);
  auto& down = folder.tensors.at("model.layers.1.mlp.down_proj.weight");
  auto& gate = folder.tensors.at("model.layers.0.mlp.gate_proj.weight");
  const std::uint16_t tiny_number = float_to_bf16(1e-6f);
  for (std::size_t k = 0; k < 32; ++k) std::memcpy(down.data.data() + (5 * 256 + 128 + k) * 2, &tiny_number, 2);  // of rank 1 of 2
  for (std::size_t k = 0; k < 32; ++k) std::memcpy(gate.data.data() + (3 * 320 + k) * 2, &tiny_number, 2);       // of rank 0
  folder.write(scratch.at("model"));
  for (const std::string quantization : {"wint4-g32", "wint4-g128"})
    for (const int n : {2, 4}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", quantization, n));
      const Wish wish{.folder = scratch.at("model"), .quantization = quantization};
      const auto whole = prepare(wish, {});
      load(*whole, wish, nullptr);
      int wide = 0;
      for (std::size_t i = 0; i < whole->table.rows.size(); ++i) wide += !whole->store.vector(i) && whole->store.matrix(i).wide_scales.bytes() != 0;
      EXPECT_EQ(wide, quantization == "wint4-g32" ? 2 : 0);
      const auto topologies = ranks_of(n, false);
      const auto parts = load_ranks(wish, topologies);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        ASSERT_TRUE(parts[r]->report) << parts[r]->report.error().message;
        expect_slices(*whole, *parts[r], topologies[r]);
        EXPECT_EQ(parts[r]->report->weight_bytes, parts[r]->store.weight_bytes());
      }
    }
}

TEST(RankSlicesRead, no_more_than_their_parts) {
  const ScratchFolder scratch;
  wide_llama(512, 512).write(scratch.at("wide"));
  for (const std::string& folder : {scratch.at("wide"), tiny("tiny-qwen3-moe"), tiny("tiny-ernie4_5-moe-paddle")})
    for (const std::string quantization : {"", "wint8", "wint4-g64", "wlut4", "tensor_wise_fp8", "block_wise_fp8"})
      for (const bool experts : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", folder, quantization, experts));
        const Wish wish{.folder = folder, .quantization = quantization};
        const auto whole = prepare(wish, {});
        const auto topologies = ranks_of(4, experts);
        std::int64_t before = 0, planned = 0, slices = 0;
        const auto parts = load_ranks(wish, topologies, [&] {
          for (const InputFile& shard : whole->checkpoint->shards()) (void)read_file(shard.path());  // into the page cache: direct reads are of whole blocks
          before = bytes_read();
        });
        const std::int64_t read = bytes_read() - before;
        const bool direct = std::ranges::any_of(parts, [](const auto& part) { return part->report && part->report->direct_io; });
        for (std::size_t r = 0; r < parts.size(); ++r) {
          ASSERT_TRUE(parts[r]->report) << parts[r]->report.error().message;
          planned += parts[r]->report->source_bytes;
          for (const params::ParamSpec& row : whole->table.rows)
            for (std::size_t p = 0; p < row.pieces.size() && !row.derivation; ++p) {
              const params::Slice slice = params::slice_of(row, p, topologies[r]).value();
              const auto& tensor = whole->checkpoint->find(row.piece_name(p))->info;
              slices += (slice.row_end - slice.row_begin) * (slice.col_end - slice.col_begin) * dtype_bits(tensor.dtype) / 8;
            }
        }
        // Slices of all ranks are the checkpoint once, and again what is replicated. Groups of 16 that borders cross are read by both sides.
        EXPECT_LE(planned, slices + slices / 20);
        if (before < 0 || direct) continue;  // no such count here
        EXPECT_LE(read, planned + 4096) << "of " << planned;
        EXPECT_GE(read, planned) << "of " << planned;
      }
}

// All ranks end with the message of the one whose part is damaged, and the place in the checkpoint.
TEST(RankSlicesFail, every_rank_says_what_one_found) {
  const ScratchFolder scratch;
  const std::uint16_t nan = 0x7fc0;
  struct Damage {
    std::string tensor;
    std::int64_t row, column;
    int rank;
  };
  for (const Damage& damage : {Damage{"model.layers.1.mlp.down_proj.weight", 200, 150, 3}, Damage{"model.layers.2.self_attn.k_proj.weight", 5, 319, 0}, Damage{"lm_head.weight", 140, 0, 1}}) {
    TestFolder folder = wide_llama(192, 512);
    auto& tensor = folder.tensors.at(damage.tensor);
    std::memcpy(tensor.data.data() + (damage.row * tensor.shape[1] + damage.column) * 2, &nan, 2);
    folder.write(scratch.at("model"));
    for (const std::string quantization : {"wint8", "wint4-g128", "tensor_wise_fp8", "wlut4"})
      for (const bool streaming : {true, false}) {
        const auto parts = load_ranks({.folder = scratch.at("model"), .quantization = quantization, .streaming = streaming}, ranks_of(4, false));
        for (const auto& part : parts) {
          ASSERT_FALSE(part->report) << quantization;
          EXPECT_EQ(part->report.error().code, Code::kCorrupt);
          EXPECT_THAT(part->report.error().message, AllOf(HasSubstr(fmt::format("\"{}\" holds nan at [{}, {}]", damage.tensor, damage.row, damage.column)), HasSubstr("rank")));
          EXPECT_EQ(part->report.error().message, parts[0]->report.error().message);
        }
      }
  }
}

TEST(RankSlicesFail, a_file_that_is_cut_under_one_rank_ends_all) {
  const ScratchFolder scratch;
  for (const char* copy : {"whole", "cut"}) wide_llama(192, 512).write(scratch.at(copy));
  const std::string file = scratch.at("cut") + "/model.safetensors";
  for (const bool streaming : {true, false}) {
    std::filesystem::copy_file(scratch.at("whole") + "/model.safetensors", file, std::filesystem::copy_options::overwrite_existing);
    const auto topologies = ranks_of(2, false);
    std::vector<std::unique_ptr<Loaded>> parts;
    for (const char* copy : {"whole", "cut"}) parts.push_back(prepare({.folder = scratch.at(copy), .quantization = "wint8", .streaming = streaming}, topologies[parts.size()]));
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 5000);
    auto ranks = comm::thread_ranks(2);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r) threads.emplace_back([&, r] { load(*parts[r], {.streaming = streaming}, ranks[r].get()); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& part : parts) {
      ASSERT_FALSE(part->report);
      EXPECT_THAT(part->report.error().message, AllOf(HasSubstr("rank 1"), HasSubstr("cut/model.safetensors"), testing::AnyOf(HasSubstr("truncated"), HasSubstr("changed"))));
    }
  }
}

TEST(RankSlicesPlan, sizes_that_do_not_divide_are_refused_with_all_names_and_the_counts_that_work) {
  const auto whole = prepare({.folder = tiny("tiny-llama-odd")}, {});
  const auto plan = loader::plan_load(*whole->checkpoint, whole->table, {.tp_size = 8}, {}, 2);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kUnsupported);
  EXPECT_THAT(plan.error().message, AllOf(HasSubstr("cannot be cut over 8 ranks"), HasSubstr("model.layers.0.self_attn.qkv_proj.weight: 96 outputs in units of 24"),
                                          HasSubstr("model.layers.0.mlp.down_proj.weight: 100 inputs"), HasSubstr("nearest rank count that works is 4")));
}

}  // namespace
}  // namespace inflight::engine
