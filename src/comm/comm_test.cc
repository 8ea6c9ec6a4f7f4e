#include "comm/comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "comm/agree.h"
#include "comm/check_for_test.h"
#include "comm/group.h"
#include "comm/self.h"
#include "comm/threads.h"

namespace inflight::comm {
namespace {

using ::testing::HasSubstr;

// body(comm) on a thread for each rank; what each returns.
std::vector<std::string> on_all(std::vector<std::unique_ptr<Comm>>& ranks, const std::function<std::string(Comm&)>& body) {
  std::vector<std::string> results(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) threads.emplace_back([&, r] { results[r] = body(*ranks[r]); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::vector<int>> by_host(const std::vector<int>& host_of) {
  std::vector<std::vector<int>> hosts(host_of.size());
  for (std::size_t r = 0; r < host_of.size(); ++r) hosts[static_cast<std::size_t>(host_of[r])].push_back(static_cast<int>(r));
  std::erase_if(hosts, [](const auto& host) { return host.empty(); });
  return hosts;
}

// Hosts of ranks; numbered by their first ranks.
class Ranks : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Ranks, collectives_equal_plain_loops) {
  auto ranks = thread_ranks(GetParam());
  for (const std::string& wrong : on_all(ranks, [&](Comm& comm) { return check::collectives(comm, 7, by_host(GetParam())); })) EXPECT_EQ(wrong, "");
}

TEST_P(Ranks, split_groups_work_and_fail_with_their_parent) {
  auto ranks = thread_ranks(GetParam());
  for (const std::string& wrong : on_all(ranks, [&](Comm& comm) { return check::splits(comm, GetParam()); })) EXPECT_EQ(wrong, "");
  const auto messages = on_all(ranks, [](Comm& comm) -> std::string {
    const auto pair = comm.split(comm.rank() / 2);
    if (!pair) return "no group";
    comm.barrier();  // all have their groups
    if (comm.rank() == 0) comm.fail(Error{Code::kCorrupt, "bad"});
    float x = 1;
    while (!pair->error()) pair->all_reduce_sum(&x, 1);
    return pair->error()->message;
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "rank 0 (start): bad");
}

TEST_P(Ranks, a_failure_ends_every_collective_everywhere) {
  const int size = static_cast<int>(GetParam().size());
  for (int which = 0; which < 7; ++which) {
    auto ranks = thread_ranks(GetParam());
    const auto messages = on_all(ranks, [&](Comm& comm) -> std::string {
      comm.state("loading, layer #", 3);
      if (comm.rank() == size - 1) {
        if (which % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others sleep by then
        comm.fail(Error{Code::kCorrupt, "\"a.safetensors\" is too short"});
        comm.fail(Error{Code::kInternal, "later errors do not count"});
      }
      std::vector<float> a(static_cast<std::size_t>(70000 * size)), b(a.size());
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), 1000);
      for (int again = 0; again < 2; ++again) {
        switch (which) {
          case 0: comm.all_reduce_sum(a.data(), 70000); break;
          case 1: comm.all_reduce_max(a.data(), 70000); break;
          case 2: comm.reduce_scatter_sum(a.data(), 70000, b.data()); break;
          case 3: comm.all_gather(a.data(), 70000, b.data()); break;
          case 4: comm.all_to_all(a.data(), counts, b.data(), counts); break;
          case 5: comm.broadcast(a.data(), 70000, 0); break;
          case 6: EXPECT_EQ(comm.split(0), nullptr); break;
        }
        comm.barrier();
      }
      EXPECT_EQ(comm.error()->code, Code::kCorrupt);
      return comm.error()->message;
    });
    for (const std::string& message : messages)
      EXPECT_EQ(message, fmt::format("rank {} (loading, layer 3): \"a.safetensors\" is too short", size - 1));
  }
}

INSTANTIATE_TEST_SUITE_P(one_host, Ranks,
                         testing::Values(std::vector<int>{0}, std::vector<int>{0, 0}, std::vector<int>{0, 0, 0}, std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 0, 0, 0, 0}));
INSTANTIATE_TEST_SUITE_P(hosts, Ranks,
                         testing::Values(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 1}, std::vector<int>{0, 1, 2}, std::vector<int>{0, 0, 0, 1, 1},
                                         std::vector<int>{0, 1, 1, 1, 2}));

TEST(Self, is_a_group_of_one) {
  const auto comm = self();
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(check::collectives(*comm, 1, {{0}}), "");
  EXPECT_EQ(check::splits(*comm, {0}), "");
  EXPECT_EQ(comm->traffic().bytes, 0);
  comm->state("saving", 0);
  comm->fail(Error{Code::kExhausted, "the disk is full"});
  EXPECT_EQ(comm->error()->message, "rank 0 (saving): the disk is full");
  EXPECT_EQ(comm->split(0), nullptr);
}

TEST(Threads, ranks_out_of_step_are_told) {
  auto ranks = thread_ranks(2);
  const auto messages = on_all(ranks, [](Comm& comm) {
    float x[2] = {};
    if (comm.rank() == 0) comm.all_reduce_sum(x, 2);
    else comm.broadcast(x, 8, 0);
    return comm.error() ? comm.error()->message : "";
  });
  for (const std::string& message : messages)
    EXPECT_THAT(message, testing::AllOf(HasSubstr("out of step"), HasSubstr("all_reduce_sum of 2"), HasSubstr("broadcast of 8")));
}

TEST(Threads, equal_hosts_counts_hosts_with_equal_runs_of_ranks) {
  const auto of = [](std::vector<int> hosts) { return thread_ranks(hosts)[0]->equal_hosts(); };
  EXPECT_EQ(of({0, 0, 0}), 1);
  EXPECT_EQ(of({0, 0, 1, 1}), 2);
  EXPECT_EQ(of({5, 2, 9}), 3);
  EXPECT_EQ(of({0, 1, 0, 1}), 1);
  EXPECT_EQ(of({0, 0, 1}), 1);
  EXPECT_EQ(of({0, 1, 1}), 1);
}

TEST(Threads, all_to_all_needs_the_same_counts_on_both_sides) {
  auto ranks = thread_ranks(2);
  const auto messages = on_all(ranks, [](Comm& comm) {
    const std::vector<std::int64_t> send = {4, 4};
    const std::vector<std::int64_t> receive = {comm.rank() == 1 ? 8 : 4, 4};
    char a[16] = {}, b[16] = {};
    comm.all_to_all(a, send, b, receive);
    comm.barrier();
    return comm.error() ? comm.error()->message : "";
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "rank 1 (start: all_to_all): rank 0 sends 4 bytes, this one expects 8");
}

TEST(Threads, traffic_is_that_of_rings) {
  auto ranks = thread_ranks(4);
  on_all(ranks, [](Comm& comm) {
    std::vector<float> a(4096), b(4096);
    comm.all_reduce_sum(a.data(), 1000);
    Traffic traffic = comm.traffic();
    EXPECT_EQ(traffic.collectives, 1);
    EXPECT_EQ(traffic.bytes, 6000);  // 2 x 3/4 x 4000
    EXPECT_EQ(traffic.messages, 6);
    comm.reduce_scatter_sum(a.data(), 1000, b.data());
    EXPECT_EQ(comm.traffic().bytes, 6000 + 12000);
    comm.all_gather(a.data(), 100, b.data());
    EXPECT_EQ(comm.traffic().bytes, 18000 + 300);
    comm.broadcast(a.data(), 100, 2);
    EXPECT_EQ(comm.traffic().bytes, 18300 + (comm.rank() == 2 ? 300 : 0));
    const std::vector<std::int64_t> counts = {1, 1, 1, 1};
    const std::int64_t before = comm.traffic().bytes;
    comm.all_to_all(a.data(), counts, b.data(), counts);
    EXPECT_EQ(comm.traffic().bytes, before + 3);
    comm.barrier();
    EXPECT_EQ(comm.traffic().collectives, 6);
    (void)comm.split(0);
    EXPECT_EQ(comm.traffic().collectives, 6);
    return "";
  });
}

TEST(Agree, names_the_rank_and_what_differs) {
  const auto said = [](const std::vector<std::vector<Fact>>& facts) {
    auto ranks = thread_ranks(static_cast<int>(facts.size()));
    const auto messages = on_all(ranks, [&](Comm& comm) {
      const auto agreed = agree(comm, facts[static_cast<std::size_t>(comm.rank())]);
      EXPECT_EQ(comm.error(), std::nullopt);
      return agreed ? "" : agreed.error().message;
    });
    for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
    return messages[0];
  };
  const std::vector<Fact> facts = {{"version", "0.1.0"}, {"isa", "avx2"}, {"tensors", std::string(3000, 'x')}}, none;
  EXPECT_EQ(said({facts}), "");
  EXPECT_EQ(said({facts, facts, facts}), "");
  EXPECT_EQ(said({none, none}), "");
  auto other = facts;
  other[1].second = "avx512";
  EXPECT_EQ(said({facts, facts, other}), "isa of rank 2 is \"avx512\", that of rank 0 \"avx2\"; all ranks need the same");
  EXPECT_EQ(said({other, facts, other}), "isa of rank 1 is \"avx2\", that of rank 0 \"avx512\"; all ranks need the same");
  EXPECT_EQ(said({facts, none}), "rank 1 knows no version; that of rank 0 is \"0.1.0\"");
  EXPECT_EQ(said({none, facts}), "version of rank 1 is \"0.1.0\"; rank 0 knows none");
}

// body(comm) in a process for each rank, over memory that they share; what each returns.
std::vector<std::string> on_processes(int size, const std::function<std::string(Comm&)>& body) {
  const auto memory = memory_of_processes();
  std::string notices_name, segment_name;
  const std::int64_t notices_bytes = Notices::bytes(size), segment_bytes = Segment::bytes(size, true);
  const auto notices = memory->create(notices_bytes, notices_name), segment = memory->create(segment_bytes, segment_name);
  EXPECT_TRUE(notices && segment);
  std::vector<Place> places;
  for (int rank = 0; rank < size; ++rank) places.push_back({.world = rank, .host = 0});
  std::vector<int> pipes, processes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    if (const int process = ::fork(); process != 0) {
      processes.push_back(process);
      pipes.push_back(ends[0]);
      ::close(ends[1]);
      continue;
    }
    std::string result = "cannot attach";
    const auto my_notices = memory->attach(notices_name, notices_bytes), my_segment = memory->attach(segment_name, segment_bytes);  // mapped elsewhere than in the others
    if (my_notices && my_segment) {
      auto world = std::make_shared<World>();
      world->rank = world->local = rank;
      world->notices_memory = *my_notices;
      world->notices.memory = my_notices->get();
      world->memory = memory_of_processes();
      Group group(world, places, rank, 1, *my_segment);
      result = body(group);
    }
    EXPECT_EQ(::write(ends[1], result.data(), result.size()), static_cast<ssize_t>(result.size()));
    ::_exit(0);
  }
  std::vector<std::string> results;
  for (const int end : pipes) {
    std::string& result = results.emplace_back();
    char buffer[4096];
    for (ssize_t n; (n = ::read(end, buffer, sizeof buffer)) > 0;) result.append(buffer, static_cast<std::size_t>(n));
    ::close(end);
  }
  for (const int process : processes) ::waitpid(process, nullptr, 0);
  memory->forget(notices_name);
  memory->forget(segment_name);
  return results;
}

TEST(Processes, collectives_equal_plain_loops_and_groups_split) {
  for (const int size : {1, 2, 3, 5}) {
    const std::vector<int> hosts(static_cast<std::size_t>(size), 0);
    for (const std::string& wrong : on_processes(size, [&](Comm& comm) {
           const std::string wrong = check::collectives(comm, 9, by_host(hosts));
           return wrong.empty() ? check::splits(comm, hosts) : wrong;
         }))
      EXPECT_EQ(wrong, "");
  }
}

TEST(Processes, a_failure_wakes_those_that_sleep) {
  const auto messages = on_processes(3, [](Comm& comm) {
    if (comm.rank() == 1) {
      comm.state("reading \"#\"", 5);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.fail(Error{Code::kCorrupt, "bad"});
    }
    comm.barrier();
    return comm.error() ? comm.error()->message : "no error";
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "rank 1 (reading \"5\"): bad");
}

TEST(Activity, says_what_was_set) {
  alignas(64) Activity activity;
  EXPECT_EQ(activity.text(), "start");
  activity.set("step #, layer #, #", 17, -3);
  EXPECT_EQ(activity.text(), "step 17, layer -3, #");
  activity.enter(Collective::kAllToAll);
  EXPECT_EQ(activity.text(), "step 17, layer -3, #: all_to_all");
  activity.leave();
  activity.set(std::string(200, 'x').c_str(), 0, 0);
  EXPECT_EQ(activity.text(), std::string(95, 'x'));
}

}  // namespace
}  // namespace inflight::comm
