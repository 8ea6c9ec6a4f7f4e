#include "checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/gguf_for_test.h"
#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The error of a file that must not parse; "" when it does.
std::string problem(const std::string& file, Code code = Code::kCorrupt) {
  const auto header = parse_gguf(file);
  if (header) return "";
  EXPECT_EQ(header.error().code, code) << header.error().message;
  EXPECT_THAT(header.error().message, HasSubstr("m.gguf"));
  return header.error().message;
}

TEST(GgufHeader, reads_every_kind_of_value) {
  GgufBuilder b;
  b.set("u8", raw<std::uint32_t>(0) + raw<std::uint8_t>(200)).set("i8", raw<std::uint32_t>(1) + raw<std::int8_t>(-3)).set("u16", raw<std::uint32_t>(2) + raw<std::uint16_t>(65535));
  b.set("i16", raw<std::uint32_t>(3) + raw<std::int16_t>(-300)).set("u32", gguf_u32(4000000000u)).set("i32", raw<std::uint32_t>(5) + raw<std::int32_t>(-70000)).set("f32", gguf_f32(1e-5f));
  b.set("bool", gguf_bool(true)).set("text", gguf_text("a\xc3\xa9")).set("u64", raw<std::uint32_t>(10) + raw<std::uint64_t>(1ull << 40)).set("i64", raw<std::uint32_t>(11) + raw<std::int64_t>(-1));
  b.set("f64", raw<std::uint32_t>(12) + raw<double>(0.1)).set("texts", gguf_texts({"x", "", "yz"})).set("i32s", gguf_i32s({1, -1}));
  b.set("f32s", raw<std::uint32_t>(9) + raw<std::uint32_t>(6) + raw<std::uint64_t>(2) + raw(0.5f) + raw(-2.0f)).set("none", gguf_texts({}));
  const auto h = parse_gguf(b.file());
  ASSERT_TRUE(h) << h.error().message;
  const auto integer = [&](const char* key) { return h->integer(key).value().value(); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -3);
  EXPECT_EQ(integer("u16"), 65535);
  EXPECT_EQ(integer("i16"), -300);
  EXPECT_EQ(integer("u32"), 4000000000);
  EXPECT_EQ(integer("i32"), -70000);
  EXPECT_EQ(integer("u64"), std::int64_t{1} << 40);
  EXPECT_EQ(integer("i64"), -1);
  EXPECT_EQ(h->number("f32").value(), 1e-5);  // the decimal, not 9.999999747378752e-06
  EXPECT_EQ(h->number("f64").value(), 0.1);
  EXPECT_EQ(h->number("u8").value(), 200.0);
  EXPECT_EQ(h->boolean("bool").value(), true);
  EXPECT_EQ(h->string("text").value(), "a\xc3\xa9");
  EXPECT_THAT(h->strings("texts").value().value(), ElementsAre("x", "", "yz"));
  EXPECT_THAT(h->integers("i32s").value().value(), ElementsAre(1, -1));
  EXPECT_THAT(h->floats("f32s").value().value(), ElementsAre(0.5f, -2.0f));
  EXPECT_TRUE(h->strings("none").value()->empty());
  EXPECT_EQ(h->integer("absent").value(), std::nullopt);
  EXPECT_EQ(h->strings("absent").value(), std::nullopt);
}

TEST(GgufHeader, a_value_of_another_kind_is_named) {
  GgufBuilder b;
  b.set("k", gguf_text("7")).set("n", gguf_u32(7)).set("big", raw<std::uint32_t>(10) + raw<std::uint64_t>(UINT64_MAX)).set("list", gguf_i32s({1}));
  const auto h = parse_gguf(b.file()).value();
  EXPECT_THAT(h.integer("k").error().message, AllOf(HasSubstr("\"k\""), HasSubstr("is string"), HasSubstr("an integer")));
  EXPECT_THAT(h.integer("big").error().message, HasSubstr("u64"));
  EXPECT_THAT(h.string("n").error().message, HasSubstr("is u32, but a string"));
  EXPECT_THAT(h.boolean("n").error().message, HasSubstr("a bool"));
  EXPECT_THAT(h.strings("list").error().message, HasSubstr("an array of i32"));
  EXPECT_THAT(h.floats("list").error().message, HasSubstr("f32"));
  EXPECT_THAT(h.number("k").error().message, HasSubstr("a number"));
}

TEST(GgufHeader, tensors_lie_where_it_says_in_shapes_outermost_first) {
  GgufBuilder b;
  b.set("general.name", gguf_text("m"));
  b.add("a", {64, 3}, 2, 3 * 36).add("b", {5}, 0, 20).add("c", {256, 2, 4}, 14, 8 * 210);
  for (const std::uint32_t version : {2u, 3u}) {
    b.version = version;
    const std::string file = b.file();
    const auto h = parse_gguf(file);
    ASSERT_TRUE(h) << h.error().message;
    EXPECT_EQ(h->version, version);
    ASSERT_EQ(h->tensors.size(), 3u);
    const auto begin = static_cast<std::int64_t>((b.header().size() + 31) / 32 * 32);
    EXPECT_EQ(h->tensors[0].name, "a");
    EXPECT_EQ(h->tensors[0].dtype, DType::kQ4_0);
    EXPECT_THAT(h->tensors[0].shape, ElementsAre(3, 64));
    EXPECT_EQ(h->tensors[0].begin, begin);
    EXPECT_EQ(h->tensors[0].bytes(), 108);
    EXPECT_EQ(h->tensors[1].begin, begin + 128);
    EXPECT_EQ(h->tensors[1].bytes(), 20);
    EXPECT_THAT(h->tensors[2].shape, ElementsAre(4, 2, 256));
    EXPECT_EQ(h->tensors[2].bytes(), 1680);
    EXPECT_EQ(h->tensors[2].end, static_cast<std::int64_t>(file.size()));
  }
}

TEST(GgufHeader, another_alignment) {
  GgufBuilder b;
  b.alignment = 8;
  b.set("general.alignment", gguf_u32(8)).add("a", {3}, 0, 12).add("b", {1}, 0, 4);
  const auto h = parse_gguf(b.file());
  ASSERT_TRUE(h) << h.error().message;
  EXPECT_EQ(h->tensors[1].begin - h->tensors[0].begin, 16);
  for (const std::uint32_t bad : {0u, 3u, 1u << 21}) EXPECT_THAT(problem(GgufBuilder().set("general.alignment", gguf_u32(bad)).file()), HasSubstr("a power of two"));
  EXPECT_THAT(problem(GgufBuilder().set("general.alignment", gguf_text("8")).file()), HasSubstr("an integer"));
}

TEST(GgufHeader, every_shorter_file_is_refused_without_reading_past_its_end) {
  GgufBuilder b;
  b.set("k", gguf_texts({"abc", "d"})).set("n", gguf_u32(1)).add("a", {64, 3}, 2, 108).add("b", {5}, 0, 20);
  const std::string file = b.file();
  for (std::size_t size = 0; size < file.size(); ++size) EXPECT_THAT(problem(file.substr(0, size)), AnyOf(HasSubstr(size < 4 ? "not a GGUF file" : "incomplete download?"), HasSubstr("more than a file of"))) << size;
}

TEST(GgufHeader, a_start_of_the_file_says_whether_more_is_needed) {
  GgufBuilder b;
  b.set("k", gguf_texts({"abc", "d"})).add("a", {64, 3}, 2, 108);
  const std::string file = b.file();
  bool more = false;
  for (std::size_t size = 4; size < b.header().size(); ++size) {
    EXPECT_FALSE(parse_gguf_header(std::make_shared<std::string>(file.substr(0, size)), static_cast<std::int64_t>(file.size()), "m.gguf", &more));
    EXPECT_TRUE(more) << size;
  }
  EXPECT_TRUE(parse_gguf_header(std::make_shared<std::string>(b.header()), static_cast<std::int64_t>(file.size()), "m.gguf", &more));
  EXPECT_FALSE(parse_gguf_header(std::make_shared<std::string>(file.substr(0, 30)), 30, "m.gguf", &more));
  EXPECT_FALSE(more);
}

TEST(GgufHeader, counts_beyond_the_file) {
  std::string file = GgufBuilder().set("k", gguf_texts({"abc"})).file();
  const auto with = [&](std::size_t at, std::uint64_t value) {
    std::string bad = file;
    std::memcpy(bad.data() + at, &value, 8);
    return problem(bad);
  };
  EXPECT_THAT(with(8, 1ull << 60), HasSubstr("more than a file of"));
  EXPECT_THAT(with(16, 1ull << 60), HasSubstr("more than a file of"));
  EXPECT_THAT(with(24, 1ull << 62), HasSubstr("metadata key"));                  // the key's length
  EXPECT_THAT(with(24, UINT64_MAX), HasSubstr("metadata key"));
  EXPECT_THAT(with(41, 1ull << 61), HasSubstr("elements of at least 8 bytes"));  // the array's count
  EXPECT_THAT(with(49, UINT64_MAX), HasSubstr("metadata \"k\""));                // the first string's length
}

TEST(GgufHeader, kinds_that_do_not_exist) {
  EXPECT_THAT(problem(GgufBuilder().set("k", raw<std::uint32_t>(13) + raw<std::uint64_t>(0)).file()), HasSubstr("value type 13"));
  EXPECT_THAT(problem(GgufBuilder().set("k", raw<std::uint32_t>(9) + raw<std::uint32_t>(99) + raw<std::uint64_t>(0)).file()), HasSubstr("value type 99"));
  EXPECT_THAT(problem(GgufBuilder().set("k", raw<std::uint32_t>(9) + raw<std::uint32_t>(9) + raw<std::uint64_t>(0)).file(), Code::kUnsupported), HasSubstr("array of arrays"));
  EXPECT_THAT(problem(GgufBuilder().set("k", raw<std::uint32_t>(7) + "\2").file()), HasSubstr("only 0 and 1"));
}

TEST(GgufHeader, names_that_appear_twice) {
  EXPECT_THAT(problem(GgufBuilder().set("k", gguf_u32(1)).set("k", gguf_u32(2)).file()), HasSubstr("\"k\" appears twice"));
  EXPECT_THAT(problem(GgufBuilder().floats("a", {8}).floats("a", {8}).file()), HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(problem(GgufBuilder().floats("", {8}).file()), HasSubstr("no name"));
}

TEST(GgufHeader, hostile_tensors) {
  const auto one = [](std::vector<std::uint64_t> dimensions, std::uint32_t type, std::uint64_t offset, std::size_t data = 4096) {
    GgufBuilder b;
    b.tensors.push_back({"a", std::move(dimensions), type, offset});
    b.data.resize(data);
    return b.file();
  };
  EXPECT_EQ(problem(one({32, 2}, 0, 0)), "");
  EXPECT_THAT(problem(one({1, 1, 1, 1, 1}, 0, 0)), HasSubstr("5 dimensions"));
  EXPECT_THAT(problem(one({0}, 0, 0)), HasSubstr("dimension of 0"));
  EXPECT_THAT(problem(one({1ull << 63}, 0, 0)), HasSubstr("dimension of"));
  EXPECT_THAT(problem(one({1ull << 32, 1ull << 32}, 0, 0)), HasSubstr("overflows"));
  EXPECT_THAT(problem(one({(1ull << 62)}, 0, 0)), HasSubstr("beyond 2^63"));
  EXPECT_THAT(problem(one({32}, 0, ~31ull)), HasSubstr("beyond 2^63"));
  EXPECT_THAT(problem(one({32}, 0, 5)), HasSubstr("multiple of the alignment"));
  EXPECT_THAT(problem(one({1025}, 0, 0)), AllOf(HasSubstr("incomplete download?"), HasSubstr("4096 bytes of data")));
  EXPECT_THAT(problem(one({1024}, 0, 32)), HasSubstr("incomplete download?"));
  EXPECT_THAT(problem(one({48, 2}, 2, 0)), AllOf(HasSubstr("48"), HasSubstr("whole blocks"), HasSubstr("Q4_0")));
  EXPECT_THAT(problem(one({128}, 12, 0)), HasSubstr("256"));
  GgufBuilder overlap;
  overlap.floats("a", {16}).floats("b", {16});
  overlap.tensors[1].offset = 32;
  EXPECT_THAT(problem(overlap.file()), HasSubstr("overlap"));
}

TEST(GgufHeader, types_that_are_not_read_are_named_with_those_that_are) {
  const std::pair<std::uint32_t, const char*> types[] = {{16, "IQ2_XXS"}, {20, "IQ4_NL"}, {23, "IQ4_XS"}, {29, "IQ1_M"}, {34, "TQ1_0"}, {39, "MXFP4"}, {40, "NVFP4"}, {9, "Q8_1"}, {31, "31 (unknown)"}, {999, "999 (unknown)"}};
  for (const auto& [number, name] : types)
    EXPECT_THAT(problem(GgufBuilder().add("t", {256}, number, 256).file(), Code::kUnsupported), AllOf(HasSubstr("\"t\""), HasSubstr(name), HasSubstr("Q4_K Q5_K Q6_K")));
}

TEST(GgufHeader, what_is_no_gguf) {
  EXPECT_THAT(problem(""), HasSubstr("not a GGUF file"));
  EXPECT_THAT(problem("<!DOCTYPE html>"), HasSubstr("error page"));
  EXPECT_THAT(problem("version https://git-lfs.github.com/spec/v1"), HasSubstr("git lfs pull"));
  EXPECT_THAT(problem("tjgg" + std::string(20, '\0')), HasSubstr("form before GGUF"));
  GgufBuilder b;
  b.version = 1;
  EXPECT_THAT(problem(b.file(), Code::kUnsupported), HasSubstr("version 1"));
  b.version = 0x03000000;
  EXPECT_THAT(problem(b.file(), Code::kUnsupported), HasSubstr("big endian"));
}

TEST(GgufHeader, is_read_from_a_file_longer_than_the_first_piece) {
  GgufBuilder b;
  b.set("long", gguf_texts(std::vector<std::string>(50000, "some token of a vocabulary, long enough"))).set("after", gguf_u32(9)).floats("a", {8});
  const TestFolder folder;
  const auto h = read_gguf_header(InputFile::open(folder.write("m.gguf", b.file())).value());
  ASSERT_TRUE(h) << h.error().message;
  EXPECT_EQ(h->integer("after").value(), 9);
  EXPECT_EQ(h->strings("long").value()->size(), 50000u);
}

}  // namespace
}  // namespace inflight::checkpoint
