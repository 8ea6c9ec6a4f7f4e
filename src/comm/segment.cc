#include "comm/segment.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <thread>

namespace inflight::comm {
namespace {

// Ranks that have a CPU each meet within some 50 us. Where spinning was in vain - the awaited rank needs this CPU, or has longer work - it is cut short for
// the next times, and lengthened when it pays again.
constexpr int kMostSpins = 2000, kFewestSpins = 20;
constexpr int kYields = 500;          // then a sleep, which costs the waker a system call and the sleeper some 50 us
constexpr long kSleepNs = 20'000'000;  // a failure, and a wake-up that got lost, are noticed after that

// Across processes too: not the private kind that std::atomic::wait uses.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  const timespec most = {.tv_sec = 0, .tv_nsec = kSleepNs};
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &most, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) { (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool reached(std::uint32_t arrived, std::uint32_t sequence) { return static_cast<std::int32_t>(arrived - sequence) >= 0; }

std::int64_t pages(std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

std::int64_t Segment::bytes(int ranks, bool one_host) {
  return pages(ranks * (static_cast<std::int64_t>(sizeof(Flag)) + 2 * counts_bytes(ranks))) + ranks * 2 * room_bytes(one_host);
}

Segment::Segment(std::shared_ptr<std::byte> memory, int rank, int ranks, bool one_host, Failure& failure)
    : memory_(std::move(memory)), room_bytes_(room_bytes(one_host)), rooms_(memory_.get() + bytes(ranks, one_host) - ranks * 2 * room_bytes_), rank_(rank), ranks_(ranks),
      spins_(kMostSpins), failure_(failure) {}

void Segment::arrive(std::uint64_t call) {
  Flag& mine = flag(rank_);
  ++sequence_;
  mine.call[sequence_ % 2].store(call, std::memory_order_relaxed);
  mine.arrived.store(sequence_, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) > 0) wake_all(mine.arrived);
}

bool Segment::wait(int rank) {
  Flag& awaited = flag(rank);
  for (int spins = 0; spins < spins_; ++spins) {
    if (reached(awaited.arrived.load(std::memory_order_acquire), sequence_)) {
      spins_ = std::min(kMostSpins, spins_ + spins_ / 8 + 1);
      return true;
    }
    __builtin_ia32_pause();
  }
  spins_ = std::max(kFewestSpins, spins_ / 2);
  for (int yields = 0;; ++yields) {
    std::uint32_t arrived = awaited.arrived.load(std::memory_order_acquire);
    if (reached(arrived, sequence_)) return true;
    if (failure_.failed()) return false;
    if (yields < kYields) {
      std::this_thread::yield();
      continue;
    }
    awaited.sleepers.fetch_add(1, std::memory_order_seq_cst);
    arrived = awaited.arrived.load(std::memory_order_seq_cst);
    if (!reached(arrived, sequence_)) sleep_while(awaited.arrived, arrived);
    awaited.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace inflight::comm
