// Memory in which the ranks of one host meet: a barrier, and room for each rank's piece of a vector. The same code serves threads of a process and processes.
//
// Every exchange is: write to room(rank()), barrier (arrive() and wait()), read the others' rooms, turn(). Rooms alternate between two, so a rank may write
// its next piece while others still read the last one: nobody passes the next exchange's barrier before all have read.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/notices.h"

namespace inflight::comm {

class Segment {
 public:
  // Bytes of a room, which is those of a piece: few on one host, that the rooms of a few ranks stay in L2; many where each piece costs a message to other hosts.
  static std::int64_t room_bytes(bool one_host) { return std::int64_t{one_host ? 256 : 2048} << 10; }
  static std::int64_t bytes(int ranks, bool one_host);

  // `memory` begins as zeros, 64-byte aligned, bytes(...) long. Waiting ends early when `failure` has happened.
  Segment(std::shared_ptr<std::byte> memory, int rank, int ranks, bool one_host, Failure& failure);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  std::int64_t room_bytes() const { return room_bytes_; }

  std::byte* room(int rank) { return rooms_ + (rank * 2 + turn_) * room_bytes_; }
  // ranks() + 1 numbers beside a room.
  std::int64_t* counts(int rank) { return reinterpret_cast<std::int64_t*>(memory_.get() + ranks_ * static_cast<std::int64_t>(sizeof(Flag)) + (rank * 2 + turn_) * counts_bytes(ranks_)); }
  void turn() { turn_ ^= 1; }

  // This rank has come to the next barrier, in `call`: a number that must be the same on all ranks.
  void arrive(std::uint64_t call);
  // Until that rank has come there too. False: the group has failed.
  bool wait(int rank);
  // What it is in, once it has come.
  std::uint64_t call_of(int rank) const { return flag(rank).call[sequence_ % 2].load(std::memory_order_relaxed); }

 private:
  // The awaited rank's; alone on its cache line.
  struct alignas(64) Flag {
    std::atomic<std::uint32_t> arrived{0};
    std::atomic<std::uint32_t> sleepers{0};
    std::atomic<std::uint64_t> call[2]{};
  };
  static std::int64_t counts_bytes(int ranks) { return ((ranks + 1) * 8 + 63) / 64 * 64; }
  Flag& flag(int rank) const { return reinterpret_cast<Flag*>(memory_.get())[rank]; }

  std::shared_ptr<std::byte> memory_;
  const std::int64_t room_bytes_;
  std::byte* rooms_;
  const int rank_, ranks_;
  int spins_;
  std::uint32_t sequence_ = 0;
  int turn_ = 0;
  Failure& failure_;
};

}  // namespace inflight::comm
