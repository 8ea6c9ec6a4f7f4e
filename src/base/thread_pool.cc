#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace inflight {
namespace {

inline void pause_cpu() { __builtin_ia32_pause(); }

// CPUs that the cgroup (v2, then v1) grants, or a large number when there is no quota.
double cgroup_cpus() {
  double best = 1e9;
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  while (std::getline(self, line)) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("cpu") == std::string::npos) continue;
    for (;;) {  // a quota may sit on any ancestor
      if (v2) {
        std::ifstream max("/sys/fs/cgroup" + path + "/cpu.max");
        std::string quota;
        double period = 0;
        if (max >> quota >> period && quota != "max" && period > 0) best = std::min(best, std::stod(quota) / period);
      } else {
        const std::string base = "/sys/fs/cgroup/cpu" + path;
        double quota = -1, period = 0;
        std::ifstream(base + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(base + "/cpu.cfs_period_us") >> period;
        if (quota > 0 && period > 0) best = std::min(best, quota / period);
      }
      if (path.empty() || path == "/") break;
      path.resize(path.find_last_of('/'));
    }
  }
  return best;
}

// What this process may use, as it was before any pool pinned a thread.
struct Allowance {
  std::vector<int> cpus;
  double quota = 0;
};

Allowance& allowance() {
  static Allowance allowed = [] {
    Allowance found{{}, cgroup_cpus()};
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) found.cpus.push_back(cpu);
    return found;
  }();
  return allowed;
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)::sched_setaffinity(0, sizeof set, &set);  // a refusal costs speed only
}

}  // namespace

int usable_threads() {
  const double affinity = static_cast<double>(std::max<std::size_t>(allowance().cpus.size(), 1));
  return std::max(1, static_cast<int>(std::floor(std::min(affinity, allowance().quota))));
}

void take_cpu_share(int share, int shares, int threads) {
  Allowance& allowed = allowance();
  const auto cpus = static_cast<int>(allowed.cpus.size());
  if (shares <= 1 || cpus == 0 || threads * shares > cpus) return;
  const int begin = threads > 0 ? share * threads : cpus * share / shares;
  const int end = threads > 0 ? begin + threads : std::max(begin + 1, cpus * (share + 1) / shares);
  allowed.cpus = std::vector<int>(allowed.cpus.begin() + begin, allowed.cpus.begin() + end);
  allowed.quota /= shares;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : allowed.cpus) CPU_SET(cpu, &set);
  (void)::sched_setaffinity(0, sizeof set, &set);
}

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)), parts_(std::make_unique<Part[]>(static_cast<std::size_t>(threads_))) {
  const std::vector<int>& cpus = allowance().cpus;
  // One thread a CPU, the caller included, but only when every CPU gets one: with fewer threads than CPUs a second process would
  // pin its own to the same few.
  const bool pinned = threads_ > 1 && static_cast<int>(cpus.size()) == threads_;
  if (pinned) pin(cpus[0]);
  for (int worker = 1; worker < threads_; ++worker)
    workers_.emplace_back([this, worker, pinned, cpu = pinned ? cpus[static_cast<std::size_t>(worker)] : 0] {
      if (pinned) pin(cpu);
      worker_loop(worker);
    });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_seq_cst);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::int64_t ThreadPool::deal(std::int64_t n, std::int64_t grain) {
  constexpr std::int64_t kMostUnits = std::int64_t{1} << 31;
  const std::int64_t unit = ((n + grain - 1) / grain / kMostUnits + 1) * grain, units = (n + unit - 1) / unit;
  for (std::int64_t i = 0; i < threads_; ++i) {
    const auto begin = static_cast<std::uint64_t>(units * i / threads_), end = static_cast<std::uint64_t>(units * (i + 1) / threads_);
    parts_[static_cast<std::size_t>(i)].left.store(end << 32 | begin, std::memory_order_relaxed);
  }
  return unit;
}

// A third of what is left: long pieces first, short ones where the workers have to end together.
bool ThreadPool::cut(Part& part, bool front, Piece& piece) {
  std::uint64_t left = part.left.load(std::memory_order_relaxed);
  for (;;) {
    const auto begin = static_cast<std::int64_t>(left & 0xffffffff), end = static_cast<std::int64_t>(left >> 32);
    if (begin == end) return false;
    const std::int64_t count = (end - begin + 2) / 3;
    piece = front ? Piece{begin, begin + count} : Piece{end - count, end};
    const auto rest_begin = static_cast<std::uint64_t>(front ? begin + count : begin), rest_end = static_cast<std::uint64_t>(front ? end : end - count);
    if (part.left.compare_exchange_weak(left, rest_end << 32 | rest_begin, std::memory_order_relaxed)) return true;
  }
}

bool ThreadPool::take(int worker, Piece& piece) {
  if (cut(parts_[static_cast<std::size_t>(worker)], true, piece)) return true;
  for (int i = 1; i < threads_; ++i)
    if (cut(parts_[static_cast<std::size_t>((worker + i) % threads_)], false, piece)) return true;
  return false;
}

void ThreadPool::run_erased(Function function, void* context) {
  if (threads_ == 1) return function(context, 0);
  function_ = function;
  context_ = context;
  unfinished_.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
  function(context, 0);
  wait_until([&] { return unfinished_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::worker_loop(int worker) {
  std::uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen && ++spins < kSpins) pause_cpu();
    if (generation_.load(std::memory_order_acquire) == seen) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      generation_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      continue;  // a spurious wake-up finds the same generation again
    }
    ++seen;
    if (stopping_) return;
    function_(context_, worker);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace inflight
