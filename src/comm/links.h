// Messages between the ranks of different hosts.
#pragma once
#include <cstdint>
#include <string>

namespace inflight::comm {

// Messages of one pair of ranks and one tag arrive in the order in which they were sent. Used by any thread.
class Links {
 public:
  using Ticket = std::int64_t;
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;  // of one message

  virtual ~Links() = default;
  // `rank` is the world's. Memory stays untouched until the ticket is done. Negative: refused; problem() says why.
  virtual Ticket send(int rank, int tag, const void* data, std::int64_t bytes) = 0;
  virtual Ticket receive(int rank, int tag, void* data, std::int64_t bytes) = 0;
  enum class State { kMoving, kDone, kBroken };
  virtual State state(Ticket ticket) = 0;  // kDone and kBroken once; the ticket is void then
  virtual std::string problem() const = 0;  // why something is kBroken
};

}  // namespace inflight::comm
