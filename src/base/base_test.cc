#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/bf16.h"
#include "base/file.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/thread_pool.h"

namespace inflight {
namespace {

TEST(Fp16, every_code_survives_the_round_trip) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    const float value = fp16_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value))));
    } else {
      EXPECT_EQ(float_to_fp16(value), half);
    }
  }
}

TEST(Fp16, rounds_halfway_cases_to_even) {
  EXPECT_EQ(float_to_fp16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(0x1p-25f), 0x0000);           // half of the smallest subnormal: to even, zero
  EXPECT_EQ(float_to_fp16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(float_to_fp16(1.0f + 0x1p-11f), 0x3c00);    // tie, even below
  EXPECT_EQ(float_to_fp16(1.0f + 0x3p-11f), 0x3c02);    // tie, even above
  EXPECT_EQ(float_to_fp16(1e-6f / 127), 0x0000);        // a channel maximum of 1e-6: its scale underflows
}

TEST(Bf16, every_code_survives_the_round_trip_and_ties_go_to_even) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    const float value = bf16_to_float(half);
    if (!std::isnan(value)) {
      EXPECT_EQ(float_to_bf16(value), half);
    }
  }
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Nearest, finds_the_name_one_slip_away_and_none_for_noise) {
  const std::string_view known[] = {"bf16", "wint8", "wint4", "wint4-g128"};
  EXPECT_EQ(nearest_name("wint6", known), "wint8");
  EXPECT_EQ(nearest_name("int8", known), "wint8");
  EXPECT_EQ(nearest_name("zzzzzzzzzz", known), "");
  EXPECT_THAT(known_names_hint("wnt8", known), testing::HasSubstr("Did you mean \"wint8\"?"));
}

TEST(Json, errors_name_the_file_and_the_key) {
  const auto json = parse_json(R"({"a": "x", "n": 3.0, "z": null})", "config.json");
  ASSERT_TRUE(json);
  const JsonView view{&*json, "config.json"};
  EXPECT_EQ(view.integer("n").value(), 3);
  EXPECT_FALSE(view.has("z"));
  EXPECT_THAT(view.integer("a").error().message, testing::AllOf(testing::HasSubstr("config.json"), testing::HasSubstr("\"a\""), testing::HasSubstr("\"x\"")));
  EXPECT_THAT(view.integer("z").error().message, testing::HasSubstr("missing"));
  EXPECT_FALSE(parse_json("{", "x"));
  EXPECT_THAT(parse_json(std::string("{}\0junk", 7), "x").error().message, testing::HasSubstr("NUL byte at byte 2"));
  EXPECT_FALSE(parse_json(std::string(100000, '['), "x"));
}

TEST(ThreadPool, covers_every_index_once_and_regions_follow_each_other) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> hits(1000);
    for (int round = 0; round < 200; ++round)
      pool.parallel_for(1000, 7, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin % 7, 0);
        for (std::int64_t i = begin; i < end; ++i) hits[static_cast<std::size_t>(i)].fetch_add(1);
      });
    for (const auto& hit : hits) EXPECT_EQ(hit.load(), 200);
  }
}

TEST(ThreadPool, a_worker_takes_its_own_part_in_order_and_the_ends_of_others) {
  for (const std::int64_t n : {8, 9, 100, 1001}) {
    ThreadPool pool(3);
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> pieces(3);
    std::atomic<bool> others_done{false};
    std::atomic<int> taken{0};
    pool.parallel_for(n, 2, [&](int worker, std::int64_t begin, std::int64_t end) {
      pieces[static_cast<std::size_t>(worker)].emplace_back(begin, end);
      const std::int64_t units = (n + 1) / 2;
      // Worker 2 stops in its first piece until all the rest is done by others.
      const auto mine = static_cast<int>((end - begin + 1) / 2);
      if (taken.fetch_add(mine) + mine == units) others_done = true;
      while (worker == 2 && !others_done) std::this_thread::yield();
    });
    std::vector<int> hits(static_cast<std::size_t>(n), 0);
    for (const auto& own : pieces)
      for (const auto& [begin, end] : own) {
        EXPECT_EQ(begin % 2, 0);
        EXPECT_LT(begin, end);
        for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
      }
    EXPECT_THAT(hits, testing::Each(1)) << n;
    EXPECT_LE(pieces[2].size(), 1u) << n;
  }
}

TEST(ThreadPool, a_region_with_a_first_part_starts_after_it_and_covers_every_index_once) {
  for (const int threads : {1, 2, 3, 5})
    for (const std::int64_t n : {0, 1, 7, 64, 1000})
      for (const std::int64_t grain : {1, 2, 16}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 20; ++round) {
          std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
          int made = 0;  // plain: what first() writes is visible to every body
          std::atomic<int> early{0}, outside{0};
          pool.parallel_for_after([&] { made = round + 1; }, n, grain,
                                  [&](std::int64_t begin, std::int64_t end, const auto& done) {
                                    if (begin < 0 || begin > end || end > n) ++outside;
                                    while (!done()) std::this_thread::yield();
                                  },
                                  [&](std::int64_t begin, std::int64_t end) {
                                    if (made != round + 1) ++early;
                                    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
                                  });
          EXPECT_EQ(made, round + 1);
          EXPECT_EQ(early, 0);
          EXPECT_EQ(outside, 0);
          for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(visits[static_cast<std::size_t>(i)], 1) << threads << " threads, n " << n << ", grain " << grain << ", index " << i;
        }
      }
}

// What a process may use after take_cpu_share, and how many threads it would start.
std::pair<cpu_set_t, int> after_share(int share, int shares, int threads) {
  std::pair<cpu_set_t, int> after{};
  int pipe[2];
  if (::pipe(pipe) != 0) return after;
  const pid_t child = ::fork();
  if (child == 0) {
    take_cpu_share(share, shares, threads);
    after.second = usable_threads();
    ::sched_getaffinity(0, sizeof after.first, &after.first);
    ::_exit(::write(pipe[1], &after, sizeof after) == sizeof after ? 0 : 1);
  }
  EXPECT_EQ(::read(pipe[0], &after, sizeof after), static_cast<ssize_t>(sizeof after));
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
  return after;
}

TEST(ThreadPool, processes_share_the_cpus_without_sharing_any) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(::getppid(), sizeof all, &all), 0);  // a pool of an earlier test may have pinned this thread
  const int cpus = CPU_COUNT(&all);
  for (const int shares : {2, 3, 2 * cpus}) {
    cpu_set_t seen;
    CPU_ZERO(&seen);
    int sum = 0;
    for (int share = 0; share < shares; ++share) {
      const auto [mine, threads] = after_share(share, shares, 0);
      EXPECT_GE(CPU_COUNT(&mine), 1);
      EXPECT_GE(threads, 1);
      EXPECT_LE(threads, CPU_COUNT(&mine));
      CPU_OR(&seen, &seen, &mine);
      sum += CPU_COUNT(&mine);
    }
    EXPECT_TRUE(CPU_EQUAL(&seen, &all)) << shares;
    EXPECT_EQ(sum, std::max(cpus, shares)) << "with more processes than CPUs each has one";
  }
  const cpu_set_t one = after_share(1, std::max(cpus, 2), 1).first;
  EXPECT_EQ(CPU_COUNT(&one), 1);
}

TEST(ThreadPool, wakes_sleeping_workers) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.run([&](int worker) { sum += worker + 1; });
  }
  EXPECT_EQ(sum.load(), 15);
}

TEST(OutputFile, leaves_nothing_behind_unless_committed) {
  const auto dir = std::filesystem::temp_directory_path() / "inflight_output_test";
  std::filesystem::create_directories(dir);
  const std::string path = dir / "x.bin";
  {
    auto file = OutputFile::create(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("abc", 3));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir));
  {
    auto file = OutputFile::create(path);
    ASSERT_TRUE(file->write("abc", 3));
    ASSERT_TRUE(file->commit());
  }
  EXPECT_EQ(read_file(path).value(), "abc");
  std::filesystem::remove_all(dir);
}

TEST(InputFile, a_short_file_is_an_error_with_both_numbers) {
  const std::string path = std::filesystem::temp_directory_path() / "inflight_short";
  std::ofstream(path) << "abcd";
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file);
  char buffer[8];
  const auto read = file->read_at(buffer, 8, 0);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, testing::AllOf(testing::HasSubstr("wanted 8 bytes"), testing::HasSubstr("got 4")));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace inflight
