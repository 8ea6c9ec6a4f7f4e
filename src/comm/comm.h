// One rank's end of a group of ranks: collectives, and how the group fails.
//
//     comm.all_reduce_sum(y, n);                       // every rank calls the same collectives in the same order
//     ...
//     if (auto error = comm.error()) return std::unexpected(*error);
//
// Collectives return nothing: after a failure anywhere they return at once on every rank with unspecified results, and error() says which rank failed and why.
// One thread at a time may call the collectives of a Comm; state(), tick(), fail() and error() any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace inflight::comm {

// What this rank has sent to others, counted per collective as an ideal ring or exchange of n ranks needs it, wherever the bytes really went:
//     collective           bytes                             messages
//     all_reduce           2 (n - 1) / n x vector            2 (n - 1)
//     reduce_scatter_sum   (n - 1) / n x vector              n - 1
//     all_gather           (n - 1) x own part                n - 1
//     all_to_all           what goes to other ranks          ranks it goes to
//     broadcast            (n - 1) x bytes at the root, else 0; messages likewise
//     barrier              0                                 0
struct Traffic {
  std::int64_t collectives = 0;
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Hosts, where each has equally many ranks of the group, one after another; else 1.
  virtual int equal_hosts() const { return 1; }

  // data [n] f32 on every rank becomes the sum over ranks, or the largest. Every rank gets the same bits; the sum's order does not depend on timing.
  virtual void all_reduce_sum(float* data, std::int64_t n) = 0;
  virtual void all_reduce_max(float* data, std::int64_t n) = 0;
  // data [size * n] f32: this rank's part [n] of the sum goes to out [n].
  virtual void reduce_scatter_sum(const float* data, std::int64_t n, float* out) = 0;
  // `bytes` of every rank, in rank order, to all [size * bytes]. `mine` may be its own place in `all`.
  virtual void all_gather(const void* mine, std::int64_t bytes, void* all) = 0;
  // send_bytes[r] bytes to rank r, from `send` where they lie one after another; receive_bytes[r] from rank r, to `receive` likewise. Both sides know the counts.
  virtual void all_to_all(const void* send, std::span<const std::int64_t> send_bytes, void* receive, std::span<const std::int64_t> receive_bytes) = 0;
  virtual void broadcast(void* data, std::int64_t bytes, int root) = 0;
  virtual void barrier() = 0;

  // The ranks that give the same color, in the order of this group. A collective. nullptr after a failure. The new group fails with this one.
  virtual std::unique_ptr<Comm> split(int color) = 0;

  // What this rank does now: what others are told when it dies or hangs. Cheap. The text is copied (95 bytes of it); each # is replaced by the next number:
  // state("step #, layer #", 17, 3). Shared with the groups split from this one.
  virtual void state(const char* what, std::int64_t first = 0, std::int64_t second = 0) = 0;
  // A sign of life from long work between collectives; state() is one too.
  virtual void tick() = 0;
  // This rank cannot go on: the group fails with its error, unless it has failed already.
  virtual void fail(Error error) = 0;
  virtual std::optional<Error> error() const = 0;

  virtual Traffic traffic() const = 0;
};

}  // namespace inflight::comm
