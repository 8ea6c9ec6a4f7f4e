#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/read_tensor.h"
#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string problem(const std::string& folder, Code code) {
  const auto checkpoint = Checkpoint::open(folder);
  if (checkpoint) return "";
  EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().message;
  return checkpoint.error().message;
}

// Two shards: b, a in the first, c in the second.
struct TwoShards : TestFolder {
  TwoShards() {
    write("config.json", R"({"model_type":"toy","hidden_size":4})");
    write("model-00001-of-00002.safetensors", pack_floats({"b", "a"}));
    write("model-00002-of-00002.safetensors", pack_floats({"c"}));
    index(R"("a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors")");
  }
  void index(std::string_view map) const {
    write("model.safetensors.index.json", fmt::format(R"({{"metadata":{{"total_size":12}},"weight_map":{{{}}}}})", map));
  }
};

TEST(Checkpoint, opens_a_single_file) {
  const TestFolder folder;
  folder.write("config.json", R"({"model_type":"toy"})");
  folder.write("model.safetensors", pack_floats({"x", "y"}));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->folder(), folder.path());
  EXPECT_EQ(checkpoint->config_path(), folder / "config.json");
  EXPECT_EQ(checkpoint->config().at("model_type"), "toy");
  EXPECT_EQ(checkpoint->shards().size(), 1u);
  EXPECT_EQ(checkpoint->data_bytes(), 8);
  ASSERT_NE(checkpoint->find("y"), nullptr);
  EXPECT_THAT(*read_as_f32(*checkpoint, *checkpoint->find("y")), ElementsAre(1.0f));
  EXPECT_EQ(checkpoint->find("z"), nullptr);
  EXPECT_EQ(checkpoint->find(""), nullptr);
}

TEST(Checkpoint, opens_shards_in_name_order_and_tensors_in_offset_order) {
  const TwoShards folder;
  auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().message;
  const Checkpoint checkpoint = std::move(*opened);
  ASSERT_EQ(checkpoint.shards().size(), 2u);
  EXPECT_THAT(checkpoint.shards()[1].path(), HasSubstr("model-00002"));
  std::vector<std::string> names;
  for (const Tensor& tensor : checkpoint.tensors()) names.push_back(fmt::format("{}@{}", tensor.info.name, tensor.shard));
  EXPECT_THAT(names, ElementsAre("b@0", "a@0", "c@1"));
  EXPECT_EQ(checkpoint.data_bytes(), 12);
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_NE(checkpoint.find(name), nullptr);
    EXPECT_EQ(checkpoint.find(name)->info.name, name);
  }
  EXPECT_THAT(*read_as_f32(checkpoint, *checkpoint.find("a")), ElementsAre(1.0f));
  EXPECT_THAT(*read_as_f32(checkpoint, *checkpoint.find("c")), ElementsAre(0.0f));
}

TEST(Checkpoint, stray_files_beside_the_shards_are_not_read) {
  const TwoShards folder;
  folder.write("model-00003-of-00003.safetensors", pack_floats({"a"}));  // would be a duplicate
  folder.write("consolidated.safetensors", "not a safetensors file");
  folder.write("model.safetensors", "the index wins");
  folder.write("pytorch_model.bin", "PK");
  EXPECT_EQ(problem(folder.path(), Code::kInternal), "");

  const TestFolder single;
  single.write("config.json", "{}");
  single.write("model.safetensors", pack_floats({"x"}));
  single.write("golden.safetensors", pack_floats({"x"}));
  EXPECT_EQ(problem(single.path(), Code::kInternal), "");
}

TEST(Checkpoint, missing_shards_are_all_listed_before_anything_is_read) {
  const TwoShards folder;
  folder.index(R"("a":"model-00001-of-00002.safetensors","b":"gone-1.safetensors","c":"gone-2.safetensors","d":"gone-2.safetensors")");
  folder.write("model-00001-of-00002.safetensors", "garbage that would be reported first if it were read");
  EXPECT_THAT(problem(folder.path(), Code::kNotFound),
              AllOf(HasSubstr("2 of the 3 files"), HasSubstr("\"gone-1.safetensors\", \"gone-2.safetensors\""), HasSubstr("incomplete download?")));
}

TEST(Checkpoint, a_shard_that_is_a_folder_a_pipe_or_a_dangling_link_is_missing) {
  const TwoShards folder;
  const std::string shard = folder / "model-00002-of-00002.safetensors";
  std::filesystem::remove(shard);
  std::filesystem::create_directory(shard);
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), HasSubstr("1 of the 2 files"));
  std::filesystem::remove(shard);
  ASSERT_EQ(::mkfifo(shard.c_str(), 0600), 0);  // opening it would wait for ever
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), HasSubstr("1 of the 2 files"));
  std::filesystem::remove(shard);
  std::filesystem::create_symlink("../../blobs/0123", shard);
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), HasSubstr("1 of the 2 files"));
}

TEST(Checkpoint, shards_may_be_links_as_in_the_hub_cache) {
  const TwoShards folder;
  const TestFolder blobs;
  std::filesystem::rename(folder / "model-00002-of-00002.safetensors", blobs / "0123");
  std::filesystem::create_symlink(blobs / "0123", folder / "model-00002-of-00002.safetensors");
  EXPECT_EQ(problem(folder.path(), Code::kInternal), "");
}

TEST(Checkpoint, a_tensor_of_the_index_that_no_shard_holds) {
  const TwoShards folder;
  folder.index(
      R"("a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors","d":"model-00002-of-00002.safetensors")");
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt),
              AllOf(HasSubstr("1 of the 4 tensors"), HasSubstr("\"d\" (\"model-00002-of-00002.safetensors\")"), HasSubstr("incomplete download")));
}

TEST(Checkpoint, a_tensor_that_the_index_does_not_list) {
  const TwoShards folder;
  folder.index(R"("a":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors")");
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt),
              AllOf(HasSubstr("holds tensor \"b\""), HasSubstr("does not list"), HasSubstr("model-00001-of-00002.safetensors")));
}

TEST(Checkpoint, a_tensor_in_another_shard_than_the_index_says) {
  const TwoShards folder;
  folder.index(R"("a":"model-00002-of-00002.safetensors","b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors")");
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), AllOf(HasSubstr("holds tensor \"a\""), HasSubstr("says it is in \"model-00002-of-00002.safetensors\"")));
}

TEST(Checkpoint, a_tensor_in_two_shards) {
  const TwoShards folder;
  folder.write("model-00002-of-00002.safetensors", pack_floats({"c", "a"}));
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), AllOf(HasSubstr("model-00002-of-00002.safetensors: holds tensor \"a\""), HasSubstr("a duplicate")));
}

TEST(Checkpoint, one_file_under_two_names_is_a_duplicate) {
  const TwoShards folder;
  std::filesystem::remove(folder / "model-00002-of-00002.safetensors");
  std::filesystem::create_symlink(folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors");
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), HasSubstr("a duplicate"));
}

TEST(Checkpoint, an_index_with_a_path_outside_the_folder) {
  const TwoShards folder;
  folder.index(R"("a":"../model-00001-of-00002.safetensors")");
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), HasSubstr("only files in the folder itself are read"));
}

TEST(Checkpoint, a_truncated_shard_is_found_before_any_data_is_read) {
  const TwoShards folder;
  const std::string shard = folder / "model-00001-of-00002.safetensors";
  const auto size = std::filesystem::file_size(shard);
  for (const std::uintmax_t cut : {size - 1, size - 8, std::uintmax_t{20}, std::uintmax_t{4}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(shard, cut);
    EXPECT_THAT(problem(folder.path(), Code::kCorrupt), AllOf(HasSubstr(shard), HasSubstr("incomplete download?"))) << cut;
  }
}

TEST(Checkpoint, zeros_in_place_of_a_file_are_found) {
  const TwoShards folder;
  folder.write("model-00001-of-00002.safetensors", std::string(4096, '\0'));
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), HasSubstr("header length is 0"));
}

TEST(Checkpoint, a_shard_that_changes_size_after_open_is_noticed) {
  const TwoShards folder;
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_TRUE(checkpoint->verify_unchanged(0));
  EXPECT_TRUE(checkpoint->verify_unchanged(1));
  const std::string shard = folder / "model-00001-of-00002.safetensors";
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 4);
  const auto verdict = checkpoint->verify_unchanged(0);
  ASSERT_FALSE(verdict);
  EXPECT_EQ(verdict.error().code, Code::kCorrupt);
  EXPECT_THAT(verdict.error().message,
              AllOf(HasSubstr(shard), HasSubstr(fmt::format("was {} bytes long", size)), HasSubstr(fmt::format("is {} now", size - 4))));
  EXPECT_TRUE(checkpoint->verify_unchanged(1));
  const auto data = read_as_f32(*checkpoint, *checkpoint->find("a"));  // the last tensor of the cut shard
  ASSERT_FALSE(data);
  EXPECT_THAT(data.error().message, HasSubstr("ended early"));
  EXPECT_EQ(checkpoint->verify_unchanged(2).error().code, Code::kInternal);
  EXPECT_EQ(checkpoint->verify_unchanged(-1).error().code, Code::kInternal);
}

TEST(Checkpoint, no_folder_no_weights_no_config) {
  const TestFolder folder;
  EXPECT_THAT(problem(folder / "absent", Code::kNotFound), HasSubstr("does not exist"));
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), AllOf(HasSubstr("is empty"), HasSubstr("supported: model.safetensors")));
  EXPECT_THAT(problem(folder.write("file", "x"), Code::kInvalidArgument), HasSubstr("not a folder"));
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), HasSubstr("holds no weights"));
  folder.write("model.safetensors", pack_floats({"x"}));
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), AllOf(HasSubstr("no config.json"), HasSubstr("incomplete download?")));
}

TEST(Checkpoint, weights_in_other_forms_are_named_with_what_is_supported) {
  for (const char* name : {"pytorch_model.bin", "consolidated.00.pth", "model_state.pdparams"}) {
    const TestFolder folder;
    folder.write("config.json", "{}");
    folder.write(name, "x");
    EXPECT_THAT(problem(folder.path(), Code::kUnsupported), AllOf(HasSubstr(fmt::format("\"{}\"", name)), HasSubstr("supported: model.safetensors"))) << name;
  }
}

TEST(Checkpoint, a_folder_with_gguf_files_names_one_to_give) {
  const TestFolder folder;
  folder.write("model-Q4_K_M.gguf", "x");
  EXPECT_THAT(problem(folder.path(), Code::kUnsupported), AllOf(HasSubstr("give the file itself"), HasSubstr(folder / "model-Q4_K_M.gguf")));
}

TEST(Checkpoint, shards_without_their_index) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model-00001-of-00002.safetensors", pack_floats({"x"}));
  EXPECT_THAT(problem(folder.path(), Code::kNotFound),
              AllOf(HasSubstr("\"model-00001-of-00002.safetensors\""), HasSubstr("model.safetensors.index.json"), HasSubstr("incomplete download?")));
}

TEST(Checkpoint, a_dangling_link_to_index_or_weights_is_an_incomplete_download) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  std::filesystem::create_symlink("../../blobs/0123", folder / "model.safetensors");
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), HasSubstr("incomplete download?"));
  std::filesystem::create_symlink("../../blobs/4567", folder / "model.safetensors.index.json");
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), AllOf(HasSubstr("index.json"), HasSubstr("incomplete download?")));
}

TEST(Checkpoint, broken_config) {
  const TestFolder folder;
  folder.write("model.safetensors", pack_floats({"x"}));
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("<html>"), std::string("{}\0{}", 5), std::string(200, '['),
                                  std::string("{\"a\":\"\xff\"}")}) {
    folder.write("config.json", text);
    EXPECT_THAT(problem(folder.path(), Code::kCorrupt), HasSubstr("config.json")) << text;
  }
  std::filesystem::resize_file(folder / "config.json", std::uintmax_t{1} << 33);  // sparse: must not be read
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), HasSubstr("at most"));
  std::filesystem::remove(folder / "config.json");
  ASSERT_EQ(::mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(problem(folder.path(), Code::kNotFound), HasSubstr("config.json"));
}

TEST(Checkpoint, a_file_without_tensors_is_no_checkpoint) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", pack("{}"));
  EXPECT_THAT(problem(folder.path(), Code::kCorrupt), HasSubstr("holds no tensors"));
}

TEST(Checkpoint, generation_config_is_an_object_or_absent) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", pack_floats({"x"}));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint);
  auto generation = checkpoint->generation_config();
  ASSERT_TRUE(generation);
  EXPECT_FALSE(generation->has_value());
  folder.write("generation_config.json", R"({"eos_token_id":[1,2]})");
  generation = checkpoint->generation_config();
  ASSERT_TRUE(generation && *generation);
  EXPECT_EQ((**generation).at("eos_token_id"), Json::array({1, 2}));
  folder.write("generation_config.json", "[1]");
  EXPECT_EQ(checkpoint->generation_config().error().code, Code::kCorrupt);
  std::filesystem::remove(folder / "generation_config.json");
  std::filesystem::create_symlink("nowhere", folder / "generation_config.json");
  EXPECT_THAT(checkpoint->generation_config().error().message, AllOf(HasSubstr("generation_config.json"), Not(HasSubstr("nowhere"))));
}

}  // namespace
}  // namespace inflight::checkpoint
