#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/read_tensor.h"
#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Result<SafetensorsHeader> parse(const std::string& file) { return parse_header(file, static_cast<std::int64_t>(file.size()), "m.safetensors"); }

// The error of a file that must not parse; "" when it does.
std::string problem(const std::string& file, Code code = Code::kCorrupt) {
  const auto header = parse(file);
  if (header) return "";
  EXPECT_EQ(header.error().code, code) << header.error().message;
  return header.error().message;
}
std::string problem_of_entry(const std::string& dtype, const std::string& shape, const std::string& offsets, std::size_t data = 8, Code code = Code::kCorrupt) {
  return problem(pack(fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), std::string(data, '\0')), code);
}

const std::string kValid = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
const std::string kZeros(8, '\0');

TEST(SafetensorsHeader, reads_names_types_shapes_absolute_offsets_and_metadata) {
  const std::string text =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )";
  const auto header = parse(pack(text, std::string(20, '\0')));
  ASSERT_TRUE(header) << header.error().message;
  const auto begin = 8 + static_cast<std::int64_t>(text.size());
  EXPECT_EQ(header->data_begin, begin);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->tensors.size(), 2u);
  const TensorInfo &a = header->tensors[0], &b = header->tensors[1];  // file order, not header order
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_THAT(a.shape, ElementsAre(2));
  EXPECT_EQ(a.begin, begin);
  EXPECT_EQ(a.end, begin + 8);
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.begin, begin + 8);
  EXPECT_EQ(b.bytes(), 12);
  EXPECT_EQ(b.elements(), 6);
}

TEST(SafetensorsHeader, scalars_empty_tensors_and_empty_headers_are_accepted) {
  const auto scalar = parse(pack(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "0123"));
  ASSERT_TRUE(scalar);
  EXPECT_EQ(scalar->tensors[0].elements(), 1);
  const auto empty = parse(pack(R"({"a":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})"));
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->tensors[0].elements(), 0);
  ASSERT_TRUE(parse(pack("{}")));
  ASSERT_TRUE(parse(pack(R"({"__metadata__":{"k":"v"}})")));
}

TEST(SafetensorsHeader, elements_of_dimensions_whose_product_alone_overflows_is_zero) {
  const auto header = parse(pack(R"({"a":{"dtype":"F32","shape":[9223372036854775807,2,0],"data_offsets":[0,0]}})"));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors[0].elements(), 0);
}

// Each row of the verdict table, with what its message must say.

TEST(SafetensorsHeader, short_data_says_incomplete_download) {
  EXPECT_THAT(problem(pack(kValid, kZeros.substr(1))),
              AllOf(HasSubstr("m.safetensors"), HasSubstr("\"a\""), HasSubstr("only 7 bytes of data"), HasSubstr("incomplete download?")));
}
TEST(SafetensorsHeader, trailing_bytes) { EXPECT_THAT(problem(pack(kValid, std::string(12, '\0'))), HasSubstr("4 bytes follow the last tensor")); }
TEST(SafetensorsHeader, file_of_7_bytes) { EXPECT_THAT(problem(std::string(7, '\0')), AllOf(HasSubstr("7 bytes long"), HasSubstr("incomplete download?"))); }
TEST(SafetensorsHeader, header_length_0) { EXPECT_THAT(problem(pack("", kZeros)), HasSubstr("header length is 0")); }
TEST(SafetensorsHeader, header_length_2_64_minus_1) {
  EXPECT_THAT(problem(pack(kValid, kZeros, ~std::uint64_t{0})), HasSubstr("header length 18446744073709551615 is above the limit of 100000000"));
}
TEST(SafetensorsHeader, header_length_2_63) {
  EXPECT_THAT(problem(pack(kValid, kZeros, std::uint64_t{1} << 63)), HasSubstr("header length 9223372036854775808 is above"));
}
TEST(SafetensorsHeader, header_length_100000001) { EXPECT_THAT(problem(pack(kValid, kZeros, 100'000'001)), HasSubstr("above the limit of 100000000")); }
TEST(SafetensorsHeader, header_length_one_past_the_end) {
  EXPECT_THAT(problem(pack(kValid, kZeros, kValid.size() + 9)),
              AllOf(HasSubstr(fmt::format("header length is {}, but only {} bytes follow", kValid.size() + 9, kValid.size() + 8)), HasSubstr("incomplete")));
}
TEST(SafetensorsHeader, html_page_is_named) { EXPECT_THAT(problem("<!DOCTYPE html>\n<html><body>Please log in</body></html>"), HasSubstr("web page")); }
TEST(SafetensorsHeader, html_page_of_6_bytes_is_named) { EXPECT_THAT(problem("<html>"), HasSubstr("web page")); }
TEST(SafetensorsHeader, lfs_pointer_is_named) {
  EXPECT_THAT(problem("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n"),
              AllOf(HasSubstr("Git LFS pointer"), HasSubstr("git lfs pull")));
}
TEST(SafetensorsHeader, json_error_is_named) { EXPECT_THAT(problem(R"({"error":"Repository not found"})"), HasSubstr("JSON text")); }
TEST(SafetensorsHeader, gguf_is_named) { EXPECT_THAT(problem(std::string("GGUF\3\0\0\0\0\0\0\0", 12)), HasSubstr("GGUF")); }
TEST(SafetensorsHeader, torch_archive_is_named) { EXPECT_THAT(problem(std::string("PK\3\4\0\0\10\10\0\0", 10)), HasSubstr("PyTorch")); }
TEST(SafetensorsHeader, a_header_of_60_bytes_is_not_mistaken_for_a_web_page) {
  const std::string text = kValid + std::string(60 - kValid.size(), ' ');  // its length field begins with '<'
  EXPECT_TRUE(parse(pack(text, kZeros)));
}
TEST(SafetensorsHeader, overlap) {
  EXPECT_THAT(
      problem(pack(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", std::string(12, '\0'))),
      AllOf(HasSubstr("tensor \"b\" begins at data offset 4, but the one before it ends at 8"), HasSubstr("overlap")));
}
TEST(SafetensorsHeader, shared_range) {
  EXPECT_THAT(problem(pack(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", kZeros)),
              HasSubstr("overlap"));
}
TEST(SafetensorsHeader, hole_between) {
  EXPECT_THAT(
      problem(pack(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})", std::string(20, '\0'))),
      HasSubstr("bytes between them belong to no tensor"));
}
TEST(SafetensorsHeader, hole_at_the_start) {
  EXPECT_THAT(problem_of_entry("F32", "[2]", "[4,12]", 12), HasSubstr("begins at data offset 4, but the one before it ends at 0"));
}
TEST(SafetensorsHeader, offsets_reversed) { EXPECT_THAT(problem_of_entry("F32", "[2]", "[8,0]"), HasSubstr("reversed")); }
TEST(SafetensorsHeader, offsets_negative) { EXPECT_THAT(problem_of_entry("F32", "[2]", "[-8,0]"), HasSubstr("2 unsigned integers")); }
TEST(SafetensorsHeader, offsets_floats) { EXPECT_THAT(problem_of_entry("F32", "[2]", "[0.0,8.0]"), HasSubstr("2 unsigned integers")); }
TEST(SafetensorsHeader, offsets_near_2_64) {
  EXPECT_THAT(problem_of_entry("F32", "[2]", "[18446744073709551608,18446744073709551615]"), HasSubstr("only 8 bytes of data"));
}
TEST(SafetensorsHeader, offsets_that_wrap) { EXPECT_THAT(problem_of_entry("F32", "[2]", "[18446744073709551608,0]"), HasSubstr("reversed")); }
TEST(SafetensorsHeader, offsets_three) { EXPECT_THAT(problem_of_entry("F32", "[2]", "[0,8,8]"), HasSubstr("must hold 2 numbers, but holds 3")); }
TEST(SafetensorsHeader, shape_whose_product_wraps) {
  EXPECT_THAT(problem_of_entry("F32", "[4611686018427387904,4]", "[0,0]", 0), HasSubstr("overflows 64 bits"));
}
TEST(SafetensorsHeader, shape_larger_than_its_range) {
  EXPECT_THAT(problem_of_entry("F32", "[1000,1000]", "[0,4]", 4), HasSubstr("the shape takes 4000000 bytes, but the offsets span 4"));
}
TEST(SafetensorsHeader, dtype_unknown) {
  EXPECT_THAT(problem_of_entry("Q4_0", "[2]", "[0,8]", 8, Code::kUnsupported), AllOf(HasSubstr("\"Q4_0\""), HasSubstr("known: F64")));
}
TEST(SafetensorsHeader, dtype_in_lower_case) { EXPECT_THAT(problem_of_entry("f32", "[2]", "[0,8]", 8, Code::kUnsupported), HasSubstr("\"f32\"")); }
TEST(SafetensorsHeader, four_bit_elements_that_end_inside_a_byte) { EXPECT_THAT(problem_of_entry("F4", "[3]", "[0,2]", 2), HasSubstr("whole byte")); }
TEST(SafetensorsHeader, metadata_with_a_number) {
  EXPECT_THAT(problem(pack(R"({"__metadata__":{"a":1}})")), HasSubstr("value of \"a\" must be a string, but is an integer"));
}
TEST(SafetensorsHeader, header_is_an_array) { EXPECT_THAT(problem(pack("[]")), HasSubstr("must be a JSON object, but is an array")); }
TEST(SafetensorsHeader, header_of_5000_arrays) { EXPECT_NE(problem(pack(std::string(5000, '[') + std::string(5000, ']'))), ""); }
TEST(SafetensorsHeader, a_million_levels_in_an_ignored_field) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THAT(problem(pack(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":)" + deep + "}}", kZeros)), HasSubstr("nested deeper than 127 levels"));
}
TEST(SafetensorsHeader, invalid_utf8_in_a_name) {
  EXPECT_THAT(problem(pack("{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", kZeros)), HasSubstr("not valid JSON"));
}
TEST(SafetensorsHeader, nul_padding) {
  EXPECT_THAT(problem(pack(kValid + std::string(3, '\0'), kZeros)), AllOf(HasSubstr("NUL"), HasSubstr(fmt::format("byte {}", kValid.size()))));
}
TEST(SafetensorsHeader, duplicate_name_is_rejected) {
  const std::string entry = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_THAT(problem(pack("{\"a\":" + entry + ",\"a\":" + entry + "}", kZeros)), HasSubstr("\"a\" appears twice"));
}
TEST(SafetensorsHeader, names_in_messages_are_printable_and_cut) {
  const std::string message =
      problem(pack("{\"" + std::string("\\u001b[31m") + std::string(5000, 'n') + "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", kZeros));
  EXPECT_THAT(message, AllOf(HasSubstr("\\x1b[31m"), Not(HasSubstr("\x1b"))));
  EXPECT_LT(message.size(), 500u);
}

TEST(SafetensorsHeader, size_and_bytes_that_disagree_are_our_own_bug) {
  const std::string file = pack(kValid, kZeros);
  EXPECT_EQ(parse_header(file, 3, "x").error().code, Code::kInternal);
  EXPECT_EQ(parse_header(file, -1, "x").error().code, Code::kInternal);
  EXPECT_EQ(parse_header(file.substr(0, 20), static_cast<std::int64_t>(file.size()), "x").error().code, Code::kInternal);
}

TEST(SafetensorsHeader, the_header_alone_is_enough) {
  const std::string start = pack(R"({"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})");
  const auto header = parse_header(start, static_cast<std::int64_t>(start.size()) + (std::int64_t{1} << 40), "x");
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors[0].bytes(), std::int64_t{1} << 40);
}

TEST(ReadHeader, reads_only_the_header_of_a_sparse_file_of_a_terabyte) {
  const TestFolder folder;
  const std::string path = folder.write("m.safetensors", pack(R"({"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})"));
  std::error_code error;
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + (std::uintmax_t{1} << 40), error);
  if (error) GTEST_SKIP() << "no sparse files of that size here: " << error.message();
  const InputFile file = *InputFile::open(path);
  const auto header = read_header(file);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors[0].bytes(), std::int64_t{1} << 40);
}

TEST(ReadHeader, agrees_with_parse_header_on_short_and_broken_files) {
  const TestFolder folder;
  for (const std::string& bytes : {std::string(), std::string(7, 'x'), std::string("<html>"), pack(kValid, kZeros), pack(kValid),
                                   pack(kValid, kZeros, 99'999'999), pack(kValid, kZeros, ~0ull), pack("{}"), std::string(200, '<')}) {
    const std::string path = folder.write("m.safetensors", bytes);
    const InputFile file = *InputFile::open(path);
    const auto from_file = read_header(file), from_bytes = parse_header(bytes, static_cast<std::int64_t>(bytes.size()), path);
    ASSERT_EQ(from_file.has_value(), from_bytes.has_value());
    if (from_file) continue;
    EXPECT_EQ(from_file.error().message, from_bytes.error().message);
  }
}

TEST(ReadHeader, a_file_truncated_after_it_was_opened_is_an_error) {
  const TestFolder folder;
  const std::string path = folder.write("m.safetensors", pack(kValid, kZeros));
  const InputFile file = *InputFile::open(path);
  std::filesystem::resize_file(path, 20);
  const auto header = read_header(file);
  ASSERT_FALSE(header);
  EXPECT_THAT(header.error().message, HasSubstr("ended early"));
}

TEST(ReadTensor, floats_of_three_types_and_integers_exactly) {
  const TestFolder folder;
  // 1.5 and -2 in F32, BF16 and F16; then I64 -5, I32 -6, U8 200.
  const std::string data = from_hex(
      "0000c03f000000c0"
      "c03f00c0"
      "003e00c0"
      "fbffffffffffffff"
      "faffffff"
      "c8");
  const std::string path =
      folder.write("m.safetensors", pack(R"({"f":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
                                         R"("h":{"dtype":"F16","shape":[2],"data_offsets":[12,16]},"l":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},)"
                                         R"("i":{"dtype":"I32","shape":[],"data_offsets":[24,28]},"u":{"dtype":"U8","shape":[1],"data_offsets":[28,29]}})",
                                         data));
  for (const char* name : {"f", "b", "h"}) EXPECT_THAT(*read_named_f32(path, name), ElementsAre(1.5f, -2.0f)) << name;
  EXPECT_THAT(*read_named_i64(path, "l"), ElementsAre(-5));
  EXPECT_THAT(*read_named_i64(path, "i"), ElementsAre(-6));
  EXPECT_THAT(*read_named_i64(path, "u"), ElementsAre(200));
  EXPECT_EQ(read_named_f32(path, "u").error().code, Code::kUnsupported);
  EXPECT_EQ(read_named_i64(path, "f").error().code, Code::kUnsupported);
  EXPECT_EQ(read_named_f32(path, "missing").error().code, Code::kNotFound);
}

TEST(ReadTensor, tensors_longer_than_one_piece) {
  const TestFolder folder;
  const std::int64_t n = 200'001;
  std::string data;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = static_cast<float>(i) * 0.5f;
    data.append(reinterpret_cast<const char*>(&value), 4);
  }
  const std::string path = folder.write("m.safetensors", pack(fmt::format(R"({{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}})", n, 4 * n), data));
  const auto values = read_named_f32(path, "a");
  ASSERT_TRUE(values) << values.error().message;
  ASSERT_EQ(values->size(), static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ((*values)[static_cast<std::size_t>(i)], static_cast<float>(i) * 0.5f);
}

}  // namespace
}  // namespace inflight::checkpoint
