// Replays tests/hostile/verdicts.json: our verdict on each file against that of the reference parser, and our writer's bytes against the reference's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::UnorderedElementsAre;

const Json& table() {
  static const Json json = read_json_file(INFLIGHT_TEST_DATA "/hostile/verdicts.json").value();
  return json;
}

TEST(Verdicts, equal_the_reference_on_every_file_but_the_listed_differences) {
  std::set<std::string> differing;
  int accepted = 0, rejected = 0;
  for (const Json& row : table().at("cases")) {
    const std::string name = row.at("name"), file = from_hex(row.at("file").get<std::string>());
    SCOPED_TRACE(name);
    const auto header = parse_header(file, static_cast<std::int64_t>(file.size()), "file");
    const bool expected = row.value("ours", row.at("reference").get<std::string>()) == "accept";
    EXPECT_EQ(header.has_value(), expected) << (header ? "accepted" : header.error().message) << "\nthe reference: " << row.value("reason", "accept");
    (expected ? accepted : rejected) += 1;
    if (row.contains("ours")) differing.insert(name);
    if (!header) {
      EXPECT_TRUE(header.error().code == Code::kCorrupt || header.error().code == Code::kUnsupported) << header.error().message;
      EXPECT_TRUE(header.error().message.starts_with("file: ")) << header.error().message;
      EXPECT_LT(header.error().message.size(), 1000u);
      EXPECT_TRUE(std::ranges::all_of(header.error().message, [](char c) { return c >= 0x20 && c <= 0x7e; })) << header.error().message;
      continue;
    }
    if (!row.contains("tensors")) continue;
    Json ours = Json::array();
    for (const TensorInfo& tensor : header->tensors) {
      std::string hex;
      for (std::int64_t i = tensor.begin; i < tensor.end; ++i) hex += fmt::format("{:02x}", static_cast<unsigned char>(file[static_cast<std::size_t>(i)]));
      ours.push_back({tensor.name, dtype_name(tensor.dtype), tensor.shape, hex});
      EXPECT_EQ(tensor.elements() * dtype_bits(tensor.dtype) / 8, tensor.bytes());
    }
    std::sort(ours.begin(), ours.end());
    Json theirs = row.at("tensors");
    std::sort(theirs.begin(), theirs.end());
    EXPECT_EQ(ours, theirs);
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(rejected, 800);
  EXPECT_THAT(differing, UnorderedElementsAre("name_twice", "name_twice_other_range", "name_twice_escaped",      // by design
                                              "dtype_F6_E2M3", "dtype_F6_E3M2", "dtype_C64",                     // no arithmetic here has them
                                              "shape_beyond_int64_after_zero", "dtype_object", "entry_array"));  // spellings no writer uses
}

TEST(Verdicts, the_writer_makes_the_bytes_that_the_reference_makes) {
  for (const Json& row : table().at("written")) {
    std::vector<TensorSpec> specs;
    for (const Json& tensor : row.at("tensors")) specs.push_back({tensor[0], *dtype_from_name(tensor[1].get<std::string>()), tensor[2]});
    const TestFolder folder;
    auto writer = SafetensorsWriter::create(folder / "x.safetensors", specs, row.at("metadata").get<std::map<std::string, std::string>>());
    ASSERT_TRUE(writer) << writer.error().message;
    for (const Json& tensor : row.at("tensors")) {
      const std::string data = from_hex(tensor[3].get<std::string>());
      ASSERT_TRUE(writer->write(tensor[0].get<std::string>(), data.data(), data.size()));
    }
    ASSERT_TRUE(writer->commit());
    EXPECT_EQ(*read_file(folder / "x.safetensors"), from_hex(row.at("file").get<std::string>()));
  }
}

}  // namespace
}  // namespace inflight::checkpoint
