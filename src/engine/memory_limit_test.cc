#include "engine/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace inflight::engine {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class FakeSystem : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / (std::string("inflight_memory_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    write("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:          1000 kB\nMemAvailable:    8388608 kB\nSwapFree: 5 kB\n");  // 8192 MiB
    write("proc/self/cgroup", "0::/\n");
    write("proc/self/status", "Name:\tx\nVmPeak:\t  300000 kB\nVmSize:\t  204800 kB\nVmData:\t  102400 kB\n");  // 200 and 100 MiB
    limits("unlimited", "unlimited");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void limits(const std::string& data, const std::string& address_space) {
    write("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units     \n"
                              "Max data size             " + data + "            unlimited            bytes     \n"
                              "Max address space         " + address_space + "            unlimited            bytes     \n");
  }
  // A v2 folder; `limit` and `high` in MiB or "max".
  void v2(const std::string& folder, const std::string& limit, std::int64_t used_mib, std::int64_t inactive_mib, std::int64_t active_mib) {
    write("cgroup" + folder + "/memory.max", limit + "\n");
    write("cgroup" + folder + "/memory.current", fmt::format("{}\n", used_mib * kMiB));
    write("cgroup" + folder + "/memory.stat", fmt::format("anon 1\nfile 99\ninactive_anon 7\ninactive_file {}\nactive_file {}\n", inactive_mib * kMiB, active_mib * kMiB));
  }
  MemoryLimit limit() {
    const auto result = available_memory({(root_ / "proc").string(), (root_ / "cgroup").string()});
    EXPECT_TRUE(result);
    return result.value_or(MemoryLimit{});
  }

  std::filesystem::path root_;
};

TEST_F(FakeSystem, without_limits_it_is_what_the_machine_has_free) {
  EXPECT_EQ(limit().bytes, 8192 * kMiB);
  EXPECT_EQ(limit().source, "MemAvailable");
}

TEST_F(FakeSystem, cgroup_v2_page_cache_does_not_count_as_used) {
  v2("", fmt::format("{}", 1024 * kMiB), 900, 300, 200);
  EXPECT_EQ(limit().bytes, (1024 - (900 - 500)) * kMiB);
  EXPECT_THAT(limit().source, testing::HasSubstr("cgroup/memory.max"));
}

TEST_F(FakeSystem, the_tightest_ancestor_binds) {
  write("proc/self/cgroup", "0::/a/b\n");
  v2("/a/b", "max", 100, 0, 0);
  v2("/a", fmt::format("{}", 500 * kMiB), 100, 0, 0);
  v2("", fmt::format("{}", 2000 * kMiB), 700, 0, 0);
  EXPECT_EQ(limit().bytes, 400 * kMiB);
  EXPECT_THAT(limit().source, testing::HasSubstr("/a/memory.max"));
  write("cgroup/a/b/memory.high", fmt::format("{}\n", 250 * kMiB));
  EXPECT_EQ(limit().bytes, 150 * kMiB);
  EXPECT_THAT(limit().source, testing::HasSubstr("/a/b/memory.high"));
}

TEST_F(FakeSystem, a_full_cgroup_leaves_nothing_rather_than_less) {
  v2("", fmt::format("{}", 100 * kMiB), 130, 10, 5);
  EXPECT_EQ(limit().bytes, 0);
}

TEST_F(FakeSystem, cgroup_v1_is_read_and_its_no_limit_is_none) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/x\n1:name=systemd:/\n0::/\n");
  write("cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/memory/docker/x/memory.usage_in_bytes", fmt::format("{}\n", 50 * kMiB));
  EXPECT_EQ(limit().source, "MemAvailable");
  write("cgroup/memory/memory.limit_in_bytes", fmt::format("{}\n", 600 * kMiB));  // as seen from inside a container: its own limit at the root
  write("cgroup/memory/memory.usage_in_bytes", fmt::format("{}\n", 100 * kMiB));
  write("cgroup/memory/memory.stat", fmt::format("inactive_file 0\ntotal_inactive_file {}\ntotal_active_file {}\n", 10 * kMiB, 20 * kMiB));
  EXPECT_EQ(limit().bytes, 530 * kMiB);
}

TEST_F(FakeSystem, v2_beside_v1_is_found_under_unified) {
  v2("/unified", fmt::format("{}", 300 * kMiB), 100, 0, 0);
  EXPECT_EQ(limit().bytes, 200 * kMiB);
}

TEST_F(FakeSystem, process_limits_bind_less_what_the_process_has) {
  limits("unlimited", fmt::format("{}", 1000 * kMiB));
  EXPECT_EQ(limit().bytes, 800 * kMiB);
  EXPECT_EQ(limit().source, "RLIMIT_AS");
  limits(fmt::format("{}", 300 * kMiB), fmt::format("{}", 1000 * kMiB));
  EXPECT_EQ(limit().bytes, 200 * kMiB);
  EXPECT_EQ(limit().source, "RLIMIT_DATA");
}

TEST_F(FakeSystem, nonsense_sets_no_limit_and_no_meminfo_is_an_error_that_says_what_to_do) {
  write("proc/self/cgroup", "nonsense\n0::relative\n:::\n0::/\n");
  write("cgroup/memory.max", "-5\n");
  write("cgroup/memory.current", "x\n");
  EXPECT_EQ(limit().bytes, 8192 * kMiB);
  write("proc/meminfo", "MemTotal: 5 kB\n");
  const auto result = available_memory({(root_ / "proc").string(), (root_ / "cgroup").string()});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, testing::AllOf(testing::HasSubstr("meminfo"), testing::HasSubstr("kv_cache_bytes")));
}

TEST(AvailableMemory, this_machine_has_some) {
  const auto result = available_memory();
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_GT(result->bytes, 0);
}

TEST(FormatBytes, picks_the_unit) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(12 * kMiB), "12.0 MiB");
  EXPECT_EQ(format_bytes(3584 * kMiB), "3.50 GiB");
}

}  // namespace
}  // namespace inflight::engine
