// The same weights on every road: in flight, default, converted and loaded again, shards in any order, 1 to 4 threads, every ISA.
// "Same" is bit for bit: packed codes, scales, vectors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "checkpoint/checkpoint.h"
#include "checkpoint/read_tensor.h"
#include "checkpoint/safetensors_writer.h"
#include "engine/open_model.h"
#include "engine/test_folder.h"
#include "engine/test_forward.h"
#include "kernels/dispatch.h"
#include "loader/export.h"

namespace inflight::engine {
namespace {

namespace fs = std::filesystem;

std::string tiny(const std::string& name) { return std::string(INFLIGHT_TEST_DATA) + "/tiny/" + name; }

std::unique_ptr<OpenedModel> open(const std::string& folder, const std::string& quantization, int threads = 2, const std::string& road = "default_v1", const std::string& head = "auto") {
  EngineOptions options;
  options.quantization = quantization;
  options.threads = threads;
  options.load_choices = road;
  options.lm_head = head;
  auto opened = open_model(folder, options);
  if (!opened) ADD_FAILURE() << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

// All bytes of all parameters, in order, with names, so that a difference is reported by name.
void expect_same_weights(const OpenedModel& a, const OpenedModel& b) {
  ASSERT_EQ(a.table.rows.size(), b.table.rows.size());
  for (std::size_t i = 0; i < a.table.rows.size(); ++i) {
    const std::string name = a.table.rows[i].full_name();
    if (const float* vector = a.store.vector(i)) {
      EXPECT_EQ(std::memcmp(vector, b.store.vector(i), static_cast<std::size_t>(a.table.rows[i].outputs()) * 4), 0) << name;
      continue;
    }
    const quant::Matrix &x = a.store.matrix(i), &y = b.store.matrix(i);
    ASSERT_EQ(x.format->name, y.format->name) << name;
    const quant::PackedBytes bytes = x.format->bytes(x.outputs, x.inputs, x.group);
    ASSERT_GT(bytes.codes, 0);
    EXPECT_EQ(std::memcmp(x.codes, y.codes, static_cast<std::size_t>(bytes.codes)), 0) << name << ": codes differ";
    ASSERT_EQ(x.wide_scales.bytes(), y.wide_scales.bytes()) << name;
    if (x.wide_scales.bytes()) {
      EXPECT_EQ(std::memcmp(x.wide_scales.data(), y.wide_scales.data(), x.wide_scales.bytes()), 0) << name << ": wide scales differ";
    } else if (bytes.scales) {
      EXPECT_EQ(std::memcmp(x.scales, y.scales, static_cast<std::size_t>(bytes.scales)), 0) << name << ": scales differ";
    }
  }
}

class Roads : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Roads, default_threads_and_isas_give_the_same_bits) {
  const auto& [model, quantization] = GetParam();
  const auto reference = open(tiny(model), quantization, 1);
  ASSERT_TRUE(reference);
  for (const int threads : {2, 4}) {
    const auto other = open(tiny(model), quantization, threads);
    ASSERT_TRUE(other);
    expect_same_weights(*reference, *other);
  }
  const auto plain = open(tiny(model), quantization, 2, "default");
  ASSERT_TRUE(plain);
  expect_same_weights(*reference, *plain);
  for (const std::string_view isa : kernels::available()) {
    ASSERT_EQ(::setenv("INFLIGHT_ISA", std::string(isa).c_str(), 1), 0);
    const auto forced = open(tiny(model), quantization);
    ::unsetenv("INFLIGHT_ISA");
    ASSERT_TRUE(forced);
    EXPECT_EQ(forced->runtime->kernels->isa, isa);
    expect_same_weights(*reference, *forced);
  }
}

TEST_P(Roads, converted_and_loaded_again_is_identical_in_codes_and_in_logits) {
  const auto& [model, quantization] = GetParam();
  const ScratchFolder scratch;
  const auto original = open(tiny(model), quantization);
  ASSERT_TRUE(original);
  const auto exported = loader::export_model(tiny(model), original->table, original->store, scratch.at("out"));
  ASSERT_TRUE(exported) << exported.error().message;
  for (const std::string road : {"default_v1", "default"}) {
    const auto again = open(scratch.at("out"), "", 2, road);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->quantization, quantization);
    expect_same_weights(*original, *again);
    const std::vector<std::int32_t> ids = {5, 17, 300, 4, 4, 99};
    EXPECT_EQ(forward_once(*original, ids).logits, forward_once(*again, ids).logits);
  }
  // Convert of a converted folder is the identity, byte for byte.
  const auto again = open(scratch.at("out"), "");
  ASSERT_TRUE(again);
  ASSERT_TRUE(loader::export_model(scratch.at("out"), again->table, again->store, scratch.at("twice")));
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(bytes(scratch.at("out") + "/model.safetensors"), bytes(scratch.at("twice") + "/model.safetensors"));
  EXPECT_EQ(bytes(scratch.at("out") + "/config.json"), bytes(scratch.at("twice") + "/config.json"));
}

TEST(RoadsStopped, loading_ends_when_nobody_wants_the_model) {
  for (const std::string road : {"default_v1", "default"}) {
    EngineOptions options;
    options.load_choices = road;
    const auto stopped = open_model(tiny("tiny-qwen3"), options, [](std::int64_t, std::int64_t) { return false; });
    ASSERT_FALSE(stopped) << road;
    EXPECT_EQ(stopped.error().code, Code::kCancelled);
  }
}

TEST(RoadsStopped, writing_that_is_stopped_leaves_nothing) {
  const ScratchFolder scratch;
  const auto original = open(tiny("tiny-qwen3"), "wint8");
  ASSERT_TRUE(original);
  int calls = 0;
  const auto stopped = loader::export_model(tiny("tiny-qwen3"), original->table, original->store, scratch.at("out"), [&](std::int64_t, std::int64_t) { return ++calls < 3; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::kCancelled);
  EXPECT_EQ(calls, 3);
  EXPECT_FALSE(std::filesystem::exists(scratch.at("out")));
  EXPECT_FALSE(std::filesystem::exists(scratch.at("out.part")));
}

TEST(RoadsConverted, other_formats_than_the_stored_ones_are_refused) {
  const ScratchFolder scratch;
  const auto original = open(tiny("tiny-qwen3"), "wint8");  // with a wint8 head
  ASSERT_TRUE(original);
  ASSERT_TRUE(loader::export_model(tiny("tiny-qwen3"), original->table, original->store, scratch.at("out")));
  const auto opens = [&](const std::string& quantization, const std::string& head) {
    EngineOptions options;
    options.quantization = quantization;
    options.lm_head = head;
    const auto opened = open_model(scratch.at("out"), options);
    if (!opened) {
      EXPECT_EQ(opened.error().code, Code::kInvalidArgument) << opened.error().message;
    }
    return opened.has_value();
  };
  EXPECT_TRUE(opens("", "auto"));
  EXPECT_TRUE(opens("wint8", "auto"));
  EXPECT_TRUE(opens("wint8", "wint8"));
  EXPECT_FALSE(opens("bf16", "auto"));
  EXPECT_FALSE(opens("wint4-g32", "auto"));
  EXPECT_FALSE(opens("", "bf16"));
}

TEST_P(Roads, a_cold_checkpoint_read_past_the_page_cache_gives_the_same_bits) {
  const auto& [model, quantization] = GetParam();
  const ScratchFolder scratch;
  TestFolder::read(tiny(model)).write(scratch.at("cold"));
  const auto reference = open(tiny(model), quantization, 1);
  const int descriptor = ::open((scratch.at("cold") + "/model.safetensors").c_str(), O_RDONLY);
  ::fsync(descriptor);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);  // where the file system keeps its pages anyway, this is one more warm load
  ::close(descriptor);
  const auto cold = open(scratch.at("cold"), quantization);
  ASSERT_TRUE(reference && cold);
  RecordProperty("direct_io", cold->report.direct_io ? "yes" : "no");
  expect_same_weights(*reference, *cold);
}

TEST_P(Roads, shards_in_any_number_and_order_give_the_same_bits) {
  const auto& [model, quantization] = GetParam();
  const ScratchFolder scratch;
  const auto source = checkpoint::Checkpoint::open(tiny(model)).value();
  std::mt19937 random(7);
  for (const int shards : {3, 7}) {
    const std::string folder = scratch.at(fmt::format("{}", shards));
    fs::create_directories(folder);
    fs::copy(tiny(model) + "/config.json", folder);
    std::vector<const checkpoint::Tensor*> order;
    for (const auto& tensor : source.tensors()) order.push_back(&tensor);
    std::ranges::shuffle(order, random);
    Json map = Json::object();
    for (int s = 0; s < shards; ++s) {
      const std::string name = fmt::format("part-{}.safetensors", s);
      std::vector<checkpoint::TensorSpec> specs;
      for (std::size_t i = static_cast<std::size_t>(s); i < order.size(); i += static_cast<std::size_t>(shards)) {
        specs.push_back({order[i]->info.name, order[i]->info.dtype, order[i]->info.shape});
        map[order[i]->info.name] = name;
      }
      auto writer = checkpoint::SafetensorsWriter::create(folder + "/" + name, specs).value();
      for (std::size_t i = static_cast<std::size_t>(s); i < order.size(); i += static_cast<std::size_t>(shards)) {
        std::vector<char> data(static_cast<std::size_t>(order[i]->info.bytes()));
        ASSERT_TRUE(source.shards()[static_cast<std::size_t>(order[i]->shard)].read_at(data.data(), data.size(), order[i]->info.begin));
        ASSERT_TRUE(writer.write(order[i]->info.name, data.data(), data.size()));
      }
      ASSERT_TRUE(writer.commit());
    }
    std::ofstream(folder + "/model.safetensors.index.json") << Json{{"weight_map", map}}.dump();
    const auto reference = open(tiny(model), quantization, 1), shuffled = open(folder, quantization);
    ASSERT_TRUE(reference && shuffled);
    expect_same_weights(*reference, *shuffled);
  }
}

std::string label(std::string text) {
  std::ranges::replace(text, '-', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Tiny, Roads,
                         testing::Combine(testing::Values("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-llama-odd", "tiny-ernie4_5-moe", "tiny-deepseek-v3"),
                                          testing::Values("bf16", "wint8", "wint4", "wint4-g128", "wint4-g64", "wint4-g32", "wlut4")),
                         [](const auto& test) { return label(std::get<0>(test.param) + "_" + std::get<1>(test.param)); });

}  // namespace
}  // namespace inflight::engine
