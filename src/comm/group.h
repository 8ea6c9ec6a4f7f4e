// The collectives, over memory that a host's ranks share and messages between hosts.
//
// Inside a host: a rank copies its piece of a vector into the segment, a barrier, and reads those of the others. Two ranks, and short vectors of more, then
// sum everything themselves: one barrier. Otherwise each sums its slice, and a second barrier lets all take the slices.
// Between hosts: rank i of a host (its carrier of slice i) exchanges the host's sum of slice i with the carriers of the other hosts.
// A sum is that of the host's ranks in rank order, then of the hosts in host order: the same bits everywhere, whatever arrives first.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/links.h"
#include "comm/memory.h"
#include "comm/notices.h"
#include "comm/segment.h"

namespace inflight::comm {

// What one rank has in common with all groups that it is in.
struct World {
  int rank = 0;
  int local = 0;  // among the ranks of its host
  std::shared_ptr<std::byte> notices_memory;
  Notices notices{};
  std::shared_ptr<SharedMemory> memory;
  std::shared_ptr<Links> links;                // nullptr: one host
  std::function<void(const Error&)> on_fail;   // tells the ranks that do not share the notices
  std::int64_t next_tag = 1;

  Activity& activity() const { return notices.activity(local); }
  // A failure of this rank: "rank 2 (loading, layer 3): <message>".
  void fail(const Error& error);
};

// Where a rank of a group is.
struct Place {
  int world = 0;  // its rank there
  int host = 0;
};

class Group final : public Comm {
 public:
  // `places` by rank, this one's own at `rank`; hosts may be any numbers. `memory`: Segment::bytes(ranks of this host, all are), shared by them.
  Group(std::shared_ptr<World> world, std::vector<Place> places, int rank, int tag, std::shared_ptr<std::byte> memory);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(places_.size()); }
  int equal_hosts() const override;
  void all_reduce_sum(float* data, std::int64_t n) override;
  void all_reduce_max(float* data, std::int64_t n) override;
  void reduce_scatter_sum(const float* data, std::int64_t n, float* out) override;
  void all_gather(const void* mine, std::int64_t bytes, void* all) override;
  void all_to_all(const void* send, std::span<const std::int64_t> send_bytes, void* receive, std::span<const std::int64_t> receive_bytes) override;
  void broadcast(void* data, std::int64_t bytes, int root) override;
  void barrier() override { barrier(Collective::kBarrier); }
  std::unique_ptr<Comm> split(int color) override;
  void state(const char* what, std::int64_t first, std::int64_t second) override { world_->activity().set(what, first, second); }
  void tick() override { world_->activity().tick(); }
  void fail(Error error) override { world_->fail(error); }
  std::optional<Error> error() const override { return failure().get(); }
  Traffic traffic() const override { return traffic_; }

  // A barrier that nothing but another rank's finish() meets.
  void finish() { barrier(Collective::kFinish); }
  // Ranks of the group that share its rank's host.
  int local_size() const { return static_cast<int>(hosts_[host_].size()); }

 private:
  class Call;
  class Exchange;
  struct Sum;
  struct Max;

  Failure& failure() const { return world_->notices.failure(); }
  bool one_host() const { return hosts_.size() == 1; }
  float* floats(int local) { return reinterpret_cast<float*>(segment_.room(local)); }
  void barrier(Collective which);
  // A barrier of the host's ranks. False: the group has failed.
  bool meet();
  bool wait(int local);
  void out_of_step(int local);
  template <class Op>
  void all_reduce(Collective which, float* data, std::int64_t n);
  template <class Op>
  bool reduce_here(float* data, std::int64_t n);
  template <class Op>
  bool reduce_slices(float* data, std::int64_t n);
  template <class Op>
  bool reduce_with_hosts(std::int64_t begin, std::int64_t end);
  template <class SumHere>
  bool scatter_to_hosts(SumHere&& sum_here, std::int64_t n, float* out);
  bool relay(std::int64_t bytes, std::int64_t most);
  bool gather(const std::byte* mine, std::int64_t bytes, std::byte* all);
  bool exchange_here(const std::byte* send, std::span<const std::int64_t> from, std::byte* receive, std::span<const std::int64_t> into);
  bool misfit(int rank, std::int64_t sent, std::int64_t expected);
  std::byte* staging(std::int64_t bytes);

  std::shared_ptr<World> world_;
  std::vector<Place> places_;
  const int rank_;
  const int tag_;                         // of its messages
  std::vector<std::vector<int>> hosts_;   // ranks by host, hosts in the order of their first ranks
  std::vector<int> host_of_, local_of_;   // by rank: index into hosts_, and into that host's ranks
  std::size_t host_ = 0;                  // this rank's
  int local_ = 0;
  int carriers_ = 0;                      // of every host: ranks of the one that has fewest
  std::shared_ptr<std::byte> memory_;
  Segment segment_;
  std::shared_ptr<std::vector<std::byte>> staging_;  // what comes from and goes to other hosts
  std::uint64_t call_ = 0;
  Traffic traffic_;
};

}  // namespace inflight::comm
