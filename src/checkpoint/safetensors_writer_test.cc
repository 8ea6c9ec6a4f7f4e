#include "checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <random>

#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::size_t entries_in(const std::string& folder) { return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator())); }

TEST(SafetensorsWriter, exact_bytes) {
  const TestFolder folder;
  const std::string path = folder / "m.safetensors";
  auto writer = SafetensorsWriter::create(path, {{"b", DType::kI8, {3}}, {"a", DType::kF32, {}}});
  ASSERT_TRUE(writer) << writer.error().message;
  ASSERT_TRUE(writer->write("b", "xy", 2));
  ASSERT_TRUE(writer->write("b", "z", 1));
  EXPECT_FALSE(fs::exists(path)) << "must not appear before it is complete";
  ASSERT_TRUE(writer->write("a", "0123", 4));
  ASSERT_TRUE(writer->commit());
  std::string header = R"({"b":{"dtype":"I8","shape":[3],"data_offsets":[0,3]},"a":{"dtype":"F32","shape":[],"data_offsets":[3,7]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(*read_file(path), pack(header, "xyz0123"));
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

TEST(SafetensorsWriter, what_is_written_is_read_back_whatever_the_shapes_and_pieces) {
  const TestFolder folder;
  constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16,   DType::kF16,  DType::kI8,
                              DType::kU8,  DType::kI64, DType::kF8E4M3, DType::kBool, DType::kF4};
  for (int seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
    std::vector<TensorSpec> specs;
    std::vector<std::string> data;
    for (int i = pick(8); i > 0; --i) {
      TensorSpec spec{fmt::format("t{}\"\\\u660e{}", i, pick(100)), kTypes[pick(std::size(kTypes))], {}};
      for (int rank = pick(5); rank > 0; --rank) spec.shape.push_back(pick(8) == 0 ? 0 : 1 + pick(6));
      if (spec.dtype == DType::kF4) spec.shape.push_back(2);
      std::string bytes(static_cast<std::size_t>(*spec.bytes()), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      specs.push_back(std::move(spec));
      data.push_back(std::move(bytes));
    }
    std::map<std::string, std::string> metadata;
    if (pick(2)) metadata = {{"format", "pt"}, {"k\n", "\u00e9"}};
    const std::string path = folder / fmt::format("{}.safetensors", seed);
    auto writer = SafetensorsWriter::create(path, specs, metadata);
    ASSERT_TRUE(writer) << writer.error().message;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      for (std::size_t at = 0; at < data[i].size();) {
        const std::size_t piece = std::min<std::size_t>(data[i].size() - at, 1 + random() % 100);
        ASSERT_TRUE(writer->write(specs[i].name, data[i].data() + at, piece));
        at += piece;
      }
    }
    const auto committed = writer->commit();
    ASSERT_TRUE(committed) << committed.error().message;

    const InputFile file = *InputFile::open(path);
    const auto header = read_header(file);
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->metadata, metadata);
    EXPECT_EQ(header->data_begin % 8, 0);
    ASSERT_EQ(header->tensors.size(), specs.size());
    for (const TensorInfo& tensor : header->tensors) {
      const auto at = std::ranges::find(specs, tensor.name, &TensorSpec::name);
      ASSERT_NE(at, specs.end());
      EXPECT_EQ(tensor.dtype, at->dtype);
      EXPECT_EQ(tensor.shape, at->shape);
      std::string bytes(static_cast<std::size_t>(tensor.bytes()), '\0');
      ASSERT_TRUE(file.read_at(bytes.data(), bytes.size(), tensor.begin));
      EXPECT_EQ(bytes, data[static_cast<std::size_t>(at - specs.begin())]);
    }
  }
}

TEST(SafetensorsWriter, wrong_amounts_and_orders_are_our_own_bugs_and_leave_nothing) {
  const TestFolder folder;
  const std::string path = folder / "m.safetensors";
  const auto attempt = [&](auto&& body) {
    auto writer = SafetensorsWriter::create(path, {{"a", DType::kI8, {3}}, {"e", DType::kI8, {0}}, {"b", DType::kI8, {1}}});
    EXPECT_TRUE(writer);
    const Result<void> result = body(*writer);
    EXPECT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::kInternal);
    EXPECT_EQ(writer->commit().error().code, Code::kInternal) << "an error must not be forgotten";
    return result.error().message;
  };
  using W = SafetensorsWriter;
  EXPECT_THAT(attempt([](W& w) { return w.write("a", "wxyz", 4); }), HasSubstr("4 bytes for \"a\""));
  EXPECT_THAT(attempt([](W& w) { return w.write("b", "x", 1); }), AllOf(HasSubstr("\"a\" is the next"), HasSubstr("0 of 3")));
  EXPECT_THAT(attempt([](W& w) { return w.commit(); }), HasSubstr("tensor \"a\" has 0 of 3 bytes"));
  EXPECT_THAT(attempt([](W& w) -> Result<void> {
                TRY(w.write("a", "xy", 2));
                return w.commit();
              }),
              HasSubstr("tensor \"a\" has 2 of 3 bytes"));
  EXPECT_THAT(attempt([](W& w) -> Result<void> {
                TRY(w.write("a", "xyz", 3));
                return w.commit();
              }),
              HasSubstr("tensor \"b\" has 0 of 1 bytes"));
  EXPECT_THAT(attempt([](W& w) -> Result<void> {
                TRY(w.write("a", "xyz", 3));
                TRY(w.write("b", "x", 1));
                return w.write("b", "x", 1);
              }),
              HasSubstr("complete"));
  EXPECT_EQ(entries_in(folder.path()), 0u);
}

TEST(SafetensorsWriter, impossible_declarations) {
  const TestFolder folder;
  const std::string path = folder / "m.safetensors";
  const auto refused = [&](std::vector<TensorSpec> specs) {
    const auto writer = SafetensorsWriter::create(path, std::move(specs));
    return !writer && writer.error().code == Code::kInternal && entries_in(folder.path()) == 0;
  };
  EXPECT_TRUE(refused({{"a", DType::kI8, {1}}, {"a", DType::kI8, {1}}}));
  EXPECT_TRUE(refused({{"__metadata__", DType::kI8, {1}}}));
  EXPECT_TRUE(refused({{"a", DType::kI8, {-1}}}));
  EXPECT_TRUE(refused({{"a", DType::kI8, {std::int64_t{1} << 62}}}));
  EXPECT_TRUE(refused({{"a", DType::kI8, {std::int64_t{1} << 32, std::int64_t{1} << 32}}}));
  EXPECT_TRUE(refused({{"a", DType::kF4, {3}}}));
  EXPECT_TRUE(refused({{"\xff", DType::kI8, {1}}}));
}

TEST(SafetensorsWriter, an_uncommitted_file_and_its_predecessor) {
  const TestFolder folder;
  const std::string path = folder.write("m.safetensors", "what was there before");
  {
    auto writer = SafetensorsWriter::create(path, {{"a", DType::kI8, {3}}});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->write("a", "xy", 2));
  }
  EXPECT_EQ(*read_file(path), "what was there before");
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

// Writes 8 MB of one tensor to `path` in pieces; the error, or none.
Result<void> write_8_mb(const std::string& path) {
  constexpr std::int64_t kBytes = 8 << 20, kPiece = 1 << 16;
  auto writer = SafetensorsWriter::create(path, {{"a", DType::kI8, {kBytes}}});
  if (!writer) return std::unexpected(writer.error());
  const std::string piece(kPiece, 'x');
  for (std::int64_t at = 0; at < kBytes; at += kPiece)
    if (auto wrote = writer->write("a", piece.data(), piece.size()); !wrote) return wrote;
  return writer->commit();
}

// A tiny file system where we may mount one, else a limit on the size of files: the writes fail half way.
TEST(SafetensorsWriter, a_full_disk_is_exhausted_and_leaves_nothing) {
  const TestFolder folder;
  const bool mounted = ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") == 0;
  rlimit before{};
  void (*handler)(int) = nullptr;
  if (!mounted) {
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 1 << 20;
    handler = ::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  const auto file = write_8_mb(folder / "m.safetensors");
  const std::size_t left_by_file = entries_in(folder.path());
  Result<void> in_folder;
  if (auto out = OutputFolder::create(folder / "out"); out) in_folder = write_8_mb(out->path() + "/m.safetensors");
  const std::size_t left_by_folder = entries_in(folder.path());
  if (mounted) {
    ::umount(folder.path().c_str());
  } else {
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, handler);
  }
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kExhausted) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr("m.safetensors"));
  EXPECT_EQ(left_by_file, 0u);
  ASSERT_FALSE(in_folder);
  EXPECT_EQ(in_folder.error().code, Code::kExhausted);
  EXPECT_EQ(left_by_folder, 0u);
}

TEST(OutputFolder, appears_complete_or_not_at_all) {
  const TestFolder folder;
  const std::string target = folder / "out";
  {
    auto out = OutputFolder::create(target + "/");
    ASSERT_TRUE(out) << out.error().message;
    std::ofstream(out->path() + "/config.json") << "{}";
    fs::create_directories(out->path() + "/sub/sub");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_EQ(entries_in(folder.path()), 0u);
  {
    auto out = OutputFolder::create(target);
    ASSERT_TRUE(out) << out.error().message;
    std::ofstream(out->path() + "/config.json") << "{}";
    ASSERT_TRUE(out->commit());
    EXPECT_EQ(out->commit().error().code, Code::kInternal);
  }
  EXPECT_EQ(*read_file(target + "/config.json"), "{}");
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

TEST(OutputFolder, refuses_what_it_would_have_to_overwrite) {
  const TestFolder folder;
  folder.write("full/x", "x");
  folder.write("file", "x");
  fs::create_directory(folder / "empty");
  fs::create_directory(folder / "stale.part");
  const auto problem = [&](const std::string& target, Code code) {
    const auto out = OutputFolder::create(target);
    if (out) return std::string();
    EXPECT_EQ(out.error().code, code);
    return out.error().message;
  };
  EXPECT_THAT(problem(folder / "full", Code::kInvalidArgument), AllOf(HasSubstr(folder / "full"), HasSubstr("not empty")));
  EXPECT_THAT(problem(folder / "file", Code::kInvalidArgument), HasSubstr("exists already"));
  EXPECT_THAT(problem(folder / "stale", Code::kInvalidArgument), HasSubstr("if none is running, remove that folder"));
  EXPECT_TRUE(fs::exists(folder / "stale.part"));
  EXPECT_THAT(problem(folder / "absent/out", Code::kNotFound), HasSubstr("No such file"));
  for (const char* odd : {"", "/", ".", ".."}) EXPECT_NE(problem(odd, Code::kInvalidArgument), "");
  auto out = OutputFolder::create(folder / "empty");
  ASSERT_TRUE(out) << out.error().message;
  std::ofstream(out->path() + "/x") << "x";
  ASSERT_TRUE(out->commit());
  EXPECT_TRUE(fs::exists(folder / "empty/x"));
}

TEST(OutputFolder, a_target_that_appeared_meanwhile_is_not_overwritten) {
  const TestFolder folder;
  auto out = OutputFolder::create(folder / "out");
  ASSERT_TRUE(out);
  folder.write("out/theirs", "x");
  EXPECT_FALSE(out->commit());
  EXPECT_TRUE(fs::exists(folder / "out/theirs"));
}

}  // namespace
}  // namespace inflight::checkpoint
