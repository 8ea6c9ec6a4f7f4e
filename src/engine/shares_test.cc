// Conversion shared by ranks: each reads, quantizes and writes whole parameters, and the folder holds what one rank's holds, tensor by tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/bf16.h"
#include "engine/open_model.h"
#include "engine/ranks_for_test.h"
#include "engine/test_folder.h"
#include "loader/export.h"
#include "loader/output_files.h"

namespace inflight::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

EngineOptions options_of(const std::string& quantization, int ranks) {
  EngineOptions options;
  options.quantization = quantization;
  options.tensor_parallel_size = ranks;
  options.threads = 1;
  return options;
}

struct Shared {
  std::vector<Result<loader::ExportReport>> reports;
  std::vector<std::int64_t> weights;  // bytes in the memory of each rank
};

// progress(rank): false stops that rank's writing.
Shared convert(const std::string& folder, const std::string& quantization, int n, const std::string& output, const std::function<bool(int)>& progress = {}, std::int64_t max_file_bytes = 60'000) {
  Shared shared{std::vector<Result<loader::ExportReport>>(static_cast<std::size_t>(n)), std::vector<std::int64_t>(static_cast<std::size_t>(n))};
  run_ranks(n, [&](std::shared_ptr<comm::Comm> comm, int rank) {
    auto& report = shared.reports[static_cast<std::size_t>(rank)];
    const auto opened = open_share(folder, options_of(quantization, n), {}, comm);
    if (!opened) {
      report = std::unexpected(opened.error());
      return 0;
    }
    shared.weights[static_cast<std::size_t>(rank)] = (*opened)->store.weight_bytes();
    report = loader::export_model(folder, (*opened)->table, (*opened)->store, output, [&](std::int64_t, std::int64_t) { return !progress || progress(rank); }, max_file_bytes, {},
                                  {comm.get(), (*opened)->owners});
    return 0;
  });
  return shared;
}

void expect_same_folder(const std::string& one, const std::string& other) {
  const TestFolder want = TestFolder::read(one), got = TestFolder::read(other);
  EXPECT_EQ(want.tensors.size(), got.tensors.size());
  for (const auto& [name, tensor] : want.tensors) {
    const auto found = got.tensors.find(name);
    ASSERT_NE(found, got.tensors.end()) << name;
    EXPECT_EQ(tensor.dtype, found->second.dtype) << name;
    EXPECT_EQ(tensor.shape, found->second.shape) << name;
    EXPECT_EQ(tensor.data, found->second.data) << name;
  }
  EXPECT_EQ(text_of(one + "/config.json"), text_of(other + "/config.json"));
}

void expect_same_conversion(const std::string& folder, const std::string& quantization) {
  const ScratchFolder scratch;
  const auto whole = open_model(folder, options_of(quantization, 1));
  ASSERT_TRUE(whole) << whole.error().message;
  ASSERT_TRUE(loader::export_model(folder, (*whole)->table, (*whole)->store, scratch.at("one")));
  for (const int n : {2, 3}) {
    SCOPED_TRACE(fmt::format("{} {} on {} ranks", folder, quantization, n));
    const std::string output = scratch.at(fmt::format("on-{}", n));
    const Shared shared = convert(folder, quantization, n, output);
    for (const auto& report : shared.reports) {
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->bytes, shared.reports[0]->bytes);
    }
    expect_same_folder(scratch.at("one"), output);
    for (const std::int64_t bytes : shared.weights) EXPECT_LT(bytes, (*whole)->store.weight_bytes() * 3 / (2 * n) + 40'000);  // its share, and no more
  }
}

TEST(Shares, hold_what_one_rank_writes) {
  for (const std::string model : {"tiny-qwen3", "tiny-ernie4_5-moe", "tiny-deepseek-v3"})
    for (const std::string quantization : {"wint8", "wint4-g32", "bf16"}) expect_same_conversion(tiny(model), quantization);
}

TEST(Shares, keep_stored_forms) {
  for (const std::string form : {"gptq-4bit-act-order", "ct-w4a16-channel-zero", "ct-w8a8-int8", "paddle-wint8"}) expect_same_conversion(std::string(INFLIGHT_TEST_DATA) + "/forms/" + form, "");
}

// One rank's matrix alone has group scales that FP16 cannot hold: config.json, which rank 0 writes, must say so, and its tensors have another type.
TEST(Shares, know_of_scales_that_stay_wide_on_another_rank) {
  TestFolder folder = TestFolder::read(tiny("tiny-qwen3"));
  std::string last;
  for (const auto& [name, tensor] : folder.tensors)
    if (name.ends_with("mlp.down_proj.weight")) last = name;
  TestFolder::Tensor& tensor = folder.tensors.at(last);
  ASSERT_EQ(tensor.dtype, DType::kBF16);
  for (std::size_t at = 0; at < tensor.data.size(); at += 2) {
    std::uint16_t bits;
    std::memcpy(&bits, tensor.data.data() + at, 2);
    bits = float_to_bf16(bf16_to_float(bits) * 1e-6f);
    std::memcpy(tensor.data.data() + at, &bits, 2);
  }
  const ScratchFolder scratch;
  folder.write(scratch.at("model"));
  const auto whole = open_model(scratch.at("model"), options_of("wint4-g32", 1));
  ASSERT_TRUE(whole);
  std::int64_t wide = 0;
  for (std::size_t i = 0; i < (*whole)->table.rows.size(); ++i) wide += !(*whole)->store.vector(i) && (*whole)->store.matrix(i).wide_scales.bytes() != 0;
  ASSERT_EQ(wide, 1);
  expect_same_conversion(scratch.at("model"), "wint4-g32");
}

TEST(Shares, that_cannot_be_read_or_written_end_all_and_leave_nothing) {
  const ScratchFolder scratch;
  int calls = 0;  // of one rank's thread alone
  for (const auto& report : convert(tiny("tiny-qwen3"), "wint8", 3, scratch.at("out"), [&](int rank) { return rank != 2 || ++calls < 3; }).reports) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, Code::kCancelled);
    EXPECT_THAT(report.error().message, HasSubstr("rank 2"));
  }
  TestFolder folder = TestFolder::read(tiny("tiny-qwen3"));
  auto& broken = folder.tensors.at("model.norm.weight").data;
  std::memset(broken.data(), 0xff, broken.size());
  folder.write(scratch.at("broken"));
  for (const auto& report : convert(scratch.at("broken"), "wint8", 2, scratch.at("out")).reports) {
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message, HasSubstr("model.norm.weight"));
  }
  std::filesystem::create_directories(scratch.at("full/something"));
  for (const auto& report : convert(tiny("tiny-qwen3"), "wint8", 2, scratch.at("full")).reports) {
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message, HasSubstr("exists already"));
  }
  EXPECT_FALSE(std::filesystem::exists(scratch.at("out")));
  EXPECT_FALSE(std::filesystem::exists(scratch.at("out.part")));
  EXPECT_FALSE(std::filesystem::exists(scratch.at("full.part")));
  EXPECT_TRUE(std::filesystem::exists(scratch.at("full/something")));
}

TEST(Shares, are_even) {
  const std::vector<std::int64_t> bytes = {10, 10, 40, 0, 20, 20};
  EXPECT_THAT(loader::deal_out(bytes, 1), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(loader::deal_out(bytes, 2), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(loader::deal_out(std::vector<std::int64_t>{0, 0}, 3), ElementsAre(0, 0));
  const auto files = loader::cut_files(bytes, std::vector<int>{0, 0, 0, 1, 1, 1}, 50);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].end, 2u);
  EXPECT_EQ(files[1].end, 3u);
  EXPECT_EQ(files[2].rank, 1);
  EXPECT_EQ(files[2].bytes, 40);
}

}  // namespace
}  // namespace inflight::engine
