#include "checkpoint/index_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string problem(std::string_view text, Code code = Code::kCorrupt) {
  const auto index = parse_index(text, "x.index.json");
  if (index) return "";
  EXPECT_EQ(index.error().code, code) << index.error().message;
  EXPECT_TRUE(index.error().message.starts_with("x.index.json: ")) << index.error().message;
  return index.error().message;
}
std::string problem_of_file(std::string_view file, Code code = Code::kCorrupt) { return problem(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", file), code); }

TEST(Index, maps_tensors_to_sorted_distinct_files) {
  const auto index = parse_index(
      R"({"metadata":{"total_size":1.5e300,"x":[null]},"weight_map":{"c":"m-2.safetensors","a":"m-2.safetensors","b":"m-1.safetensors"},"later":{"weight":"../x"}})",
      "i");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_THAT(index->files, ElementsAre("m-1.safetensors", "m-2.safetensors"));
  EXPECT_EQ(index->shard_of("a"), 1);
  EXPECT_EQ(index->shard_of("b"), 0);
  EXPECT_EQ(index->shard_of("c"), 1);
  EXPECT_EQ(index->shard_of("d"), -1);
  EXPECT_EQ(index->shard_of(""), -1);
  EXPECT_EQ(index->tensors.size(), 3u);
}

TEST(Index, file_names_must_stay_inside_the_folder) {
  for (const char* escape :
       {"../m.safetensors", "/etc/m.safetensors", "sub/m.safetensors", "..", ".", "", "a/../../m.safetensors", "..\\\\m.safetensors", "C:\\\\m.safetensors"})
    EXPECT_THAT(problem_of_file(escape), AllOf(HasSubstr("tensor \"a\""), HasSubstr("only files in the folder itself are read"))) << escape;
  EXPECT_THAT(problem_of_file("m.safetensors\\u0000.safetensors"), HasSubstr("control character"));
  EXPECT_THAT(problem_of_file("m\\n.safetensors"), HasSubstr("control character"));
  EXPECT_EQ(problem_of_file("..m..safetensors"), "");  // odd, but a plain name
}

TEST(Index, files_of_other_forms_are_unsupported) { EXPECT_THAT(problem_of_file("pytorch_model.bin", Code::kUnsupported), HasSubstr("no .safetensors file")); }

TEST(Index, duplicates_are_rejected_even_when_they_agree) {
  EXPECT_THAT(problem(R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})"), HasSubstr("lists tensor \"a\" twice"));
  EXPECT_THAT(problem(R"({"weight_map":{"a":"m.safetensors","b":"m.safetensors","\u0061":"n.safetensors"}})"), HasSubstr("lists tensor \"a\" twice"));
  EXPECT_THAT(problem(R"({"weight_map":{"a":"m.safetensors"},"weight_map":{"b":"m.safetensors"}})"), HasSubstr("\"weight_map\" appears twice"));
}

TEST(Index, wrong_shapes_say_what_is_there_instead) {
  EXPECT_THAT(problem("[]"), HasSubstr("must be a JSON object, but is an array"));
  EXPECT_THAT(problem("{}"), HasSubstr("\"weight_map\" is missing"));
  EXPECT_THAT(problem(R"({"metadata":{"weight_map":{"a":"m.safetensors"}}})"), HasSubstr("\"weight_map\" is missing"));
  EXPECT_THAT(problem(R"({"weight_map":{}})"), HasSubstr("empty"));
  EXPECT_THAT(problem(R"({"weight_map":["a"]})"), HasSubstr("must be an object, but is an array"));
  EXPECT_THAT(problem(R"({"weight_map":null})"), HasSubstr("must be an object, but is null"));
  EXPECT_THAT(problem(R"({"weight_map":{"a":1}})"), HasSubstr("file of tensor \"a\" must be a string, but is an integer"));
  EXPECT_THAT(problem(R"({"weight_map":{"a":{"file":"m.safetensors"}}})"), HasSubstr("must be a string, but is an object"));
}

TEST(Index, broken_json) {
  EXPECT_THAT(problem(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem(R"({"weight_map":{"a":"m.safetensors")"), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem(std::string(R"({"weight_map":{"a":"m.safetensors"}})") + '\0' + "junk"), HasSubstr("NUL"));
  EXPECT_THAT(problem(R"({"weight_map":{"a":"m.safetensors"}} {})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem(R"({"x":)" + std::string(100, '[') + std::string(100, ']') + "}"), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(problem("<html>"), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace inflight::checkpoint
