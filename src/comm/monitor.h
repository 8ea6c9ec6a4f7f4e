// A thread of each rank that watches the others: who was killed, stopped or hangs, and whose failure it is that all end with.
//
// Every rank has a connection to rank 0 and says five times a second that it lives and what it does. A connection that ends early is a rank that was killed; one that is
// silent is a rank that was stopped, or whose host is gone. Rank 0 tells the others; they watch rank 0 in the same way.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "comm/mpi.h"
#include "comm/side_channel.h"

namespace inflight::comm {

// What a message calls a rank.
struct RankName {
  int local_here = -1;  // its place in this host's notices; -1 elsewhere
  std::string host;
  std::int64_t process = 0;
};

// SIGTERM blocked in this thread and those it starts; as it was at the end.
class TermBlocked {
 public:
  TermBlocked();
  ~TermBlocked();
  TermBlocked(const TermBlocked&) = delete;
  TermBlocked& operator=(const TermBlocked&) = delete;

 private:
  bool was_blocked_;
};

class Monitor {
 public:
  // channels: by rank; rank 0 has those to all others, they theirs to rank 0.
  Monitor(std::shared_ptr<World> world, std::vector<RankName> names, std::vector<Channel> channels, MpiOptions options);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // A failure has been noted in the world's notices: the others are told soon.
  void wake();
  // This rank ends in order; those that have said so may go.
  void say_goodbye();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    Channel channel;
    Clock::time_point heard, moved;  // when it last said something; when that told of progress
    std::uint64_t progress = 0;
    bool waits = false;  // in a collective
    bool gone = false;   // has said goodbye
    std::string doing = "start";
  };

  void loop();
  void wait_for_news();
  void beat();
  void hear(int rank);
  void take(int rank, const Frame& frame);
  void look_for_silence(Clock::time_point now);
  void look_for_stuck(Clock::time_point now);
  void look_for_end(Clock::time_point now);
  void tell(Clock::time_point now);
  void lose(int rank, const std::string& how);
  void note(Error error, int lost = -1);
  std::string name(int rank) const;
  std::string doing(int rank) const;

  std::shared_ptr<World> world_;
  std::vector<RankName> names_;
  std::vector<Peer> peers_;  // by rank
  MpiOptions options_;
  int wake_ = -1, term_ = -1;
  std::atomic<bool> stopping_{false}, goodbye_{false};
  bool said_goodbye_ = false, told_ = false, ended_ = false;
  Clock::time_point last_round_, last_beat_, told_at_, term_at_, goodbye_at_;
  bool termed_ = false;
  std::thread thread_;
};

}  // namespace inflight::comm
