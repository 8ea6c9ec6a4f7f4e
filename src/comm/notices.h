// What the ranks of one host know of each other without a collective: what each does now, and the first failure. It lies in memory that they share
// (zeros are its beginning), so it can still be read when a rank has been killed.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace inflight::comm {

enum class Collective : std::uint32_t { kNone, kAllReduceSum, kAllReduceMax, kReduceScatterSum, kAllGather, kAllToAll, kBroadcast, kBarrier, kSplit, kFinish };
const char* name_of(Collective collective);

// What a rank does. Written by that rank alone.
struct alignas(64) Activity {
  static constexpr int kTextBytes = 96;

  // As Comm::state.
  void set(const char* what, std::int64_t first, std::int64_t second);
  void enter(Collective which) {
    collective.store(static_cast<std::uint32_t>(which), std::memory_order_relaxed);
    tick();
  }
  void leave() { enter(Collective::kNone); }
  void tick() { progress.fetch_add(1, std::memory_order_relaxed); }
  // "step 17, layer 3: all_reduce_sum"; any rank, at any time.
  std::string text() const;

  std::atomic<std::uint32_t> version{0};  // odd while the state is being written
  std::atomic<std::uint32_t> collective{0};
  std::atomic<std::uint64_t> progress{0};
  std::atomic<std::int64_t> numbers[2]{};
  std::atomic<std::uint64_t> what[kTextBytes / 8]{};
};

// The first failure. Whoever claims it writes it; everybody reads.
struct alignas(64) Failure {
  bool failed() const { return state.load(std::memory_order_acquire) != 0; }
  // lost: the rank that others found dead, -1: none. False: another failure was first.
  bool set(const Error& error, int lost = -1);
  std::optional<Error> get() const;

  std::atomic<std::uint32_t> state{0};  // 0 none, 1 being written, 2 written
  std::uint32_t code = 0;
  std::int32_t lost_rank = 0;  // valid with get()'s error
  std::uint32_t bytes = 0;
  char text[4096 - 64]{};
};

// A view of that memory.
struct Notices {
  static std::int64_t bytes(int ranks) { return static_cast<std::int64_t>(sizeof(Failure)) + ranks * static_cast<std::int64_t>(sizeof(Activity)); }
  Failure& failure() const { return *reinterpret_cast<Failure*>(memory); }
  Activity& activity(int rank) const { return reinterpret_cast<Activity*>(memory + sizeof(Failure))[rank]; }

  std::byte* memory = nullptr;
};

}  // namespace inflight::comm
