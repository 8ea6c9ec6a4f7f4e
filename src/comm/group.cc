#include "comm/group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

namespace inflight::comm {
namespace {

constexpr std::int64_t kDirectBytes = 48 << 10;  // others' bytes that a rank of three or more rather sums itself than passes a second barrier

constexpr std::int64_t kWholeBytes = 8 << 10;    // of a slice that three or more hosts rather send whole to each other than in two steps

template <class T>
std::size_t at(T i) {
  return static_cast<std::size_t>(i);
}

// Of nothing, from and to nowhere, too.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Piece `i` of `parts` of [0, n): whole cache lines, so that no two ranks write into one.
std::int64_t slice_begin(std::int64_t n, std::int64_t i, std::int64_t parts) { return std::min(n, (n + 16 * parts - 1) / (16 * parts) * 16 * i); }

// Memory that a message may still be written to when the group has failed: kept until the process ends.
void abandon(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

std::vector<std::vector<int>> by_host(const std::vector<Place>& places) {
  std::map<int, std::size_t> index;
  std::vector<std::vector<int>> hosts;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto [found, added] = index.emplace(places[rank].host, hosts.size());
    if (added) hosts.emplace_back();
    hosts[found->second].push_back(static_cast<int>(rank));
  }
  return hosts;
}

int local_index(const std::vector<Place>& places, int rank) {
  int local = 0;
  for (int other = 0; other < rank; ++other) local += places[at(other)].host == places[at(rank)].host;
  return local;
}

int ranks_beside(const std::vector<Place>& places, int rank) {
  return static_cast<int>(std::count_if(places.begin(), places.end(), [&](const Place& place) { return place.host == places[at(rank)].host; }));
}

// out [n] = op over source(0) .. source(count - 1) in this order; out may be one of them.
template <class Op, class Source>
void reduce(Source&& source, int count, std::int64_t n, float* out) {
  constexpr std::int64_t kBlock = 512;
  alignas(64) float sum[kBlock];
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, n - begin);
    if (count == 1) {
      std::memmove(out + begin, source(0) + begin, at(length) * sizeof(float));
      continue;
    }
    const float *a = source(0) + begin, *b = source(1) + begin;
    for (std::int64_t i = 0; i < length; ++i) sum[i] = Op::apply(a[i], b[i]);
    for (int s = 2; s < count; ++s) {
      const float* next = source(s) + begin;
      for (std::int64_t i = 0; i < length; ++i) sum[i] = Op::apply(sum[i], next[i]);
    }
    copy_bytes(out + begin, sum, at(length) * sizeof(float));
  }
}

}  // namespace

struct Group::Sum {
  static constexpr Collective kWhich = Collective::kAllReduceSum;
  static float apply(float a, float b) { return a + b; }
};

struct Group::Max {
  static constexpr Collective kWhich = Collective::kAllReduceMax;
  static float apply(float a, float b) { return a < b ? b : a; }
};

void World::fail(const Error& error) {
  const Error mine{error.code, fmt::format("rank {} ({}): {}", rank, activity().text(), error.message)};
  if (notices.failure().set(mine) && on_fail) on_fail(mine);
}

// One collective from its begin to its end.
class Group::Call {
 public:
  // `count` must be the same on all ranks.
  Call(Group& group, Collective which, std::int64_t count) : group_(group) {
    group.call_ = static_cast<std::uint64_t>(which) << 56 | (static_cast<std::uint64_t>(count) & 0xff'ffff'ffff'ffff);
    group.world_->activity().enter(which);
  }
  ~Call() { group_.world_->activity().leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  void sent(std::int64_t bytes, std::int64_t messages) {
    ++group_.traffic_.collectives;
    group_.traffic_.bytes += bytes;
    group_.traffic_.messages += messages;
  }
  bool failed() const { return group_.failure().failed(); }

 private:
  Group& group_;
};

// Messages that are under way together. Their memory is the segment's or staging()'s.
class Group::Exchange {
 public:
  explicit Exchange(Group& group) : group_(group) {}
  ~Exchange() {
    if (tickets_.empty()) return;
    abandon(group_.memory_);
    abandon(group_.staging_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void send(int rank, const void* data, std::int64_t bytes) { cut(bytes, [&](std::int64_t from, std::int64_t n) { return links().send(world(rank), group_.tag_, static_cast<const std::byte*>(data) + from, n); }); }
  void receive(int rank, void* data, std::int64_t bytes) { cut(bytes, [&](std::int64_t from, std::int64_t n) { return links().receive(world(rank), group_.tag_, static_cast<std::byte*>(data) + from, n); }); }

  // Until all have gone and come. False: the group has failed.
  bool finish() {
    using Clock = std::chrono::steady_clock;
    using std::chrono::microseconds;
    Clock::time_point began;
    for (int rounds = 0; !tickets_.empty(); ++rounds) {
      std::erase_if(tickets_, [&](Links::Ticket ticket) {
        const Links::State state = ticket < 0 ? Links::State::kBroken : links().state(ticket);
        if (state == Links::State::kBroken) group_.world_->fail(Error{Code::kInternal, fmt::format("a message between hosts did not get through: {}", links().problem())});
        return state != Links::State::kMoving;
      });
      if (group_.failure().failed()) return false;
      if (rounds < 200) __builtin_ia32_pause();
      else if (rounds < 20000) std::this_thread::yield();
      else if (began == Clock::time_point()) began = Clock::now();
      else std::this_thread::sleep_for(std::min<Clock::duration>(microseconds(1000), (Clock::now() - began) / 1000));  // between two requests the wait may be long
    }
    return true;
  }

 private:
  Links& links() const { return *group_.world_->links; }
  int world(int rank) const { return group_.places_[at(rank)].world; }
  template <class Start>
  void cut(std::int64_t bytes, Start&& start) {
    for (std::int64_t from = 0; from < bytes; from += Links::kMostBytes) tickets_.push_back(start(from, std::min(Links::kMostBytes, bytes - from)));
  }
  Group& group_;
  std::vector<Links::Ticket> tickets_;
};

Group::Group(std::shared_ptr<World> world, std::vector<Place> places, int rank, int tag, std::shared_ptr<std::byte> memory)
    : world_(std::move(world)), places_(std::move(places)), rank_(rank), tag_(tag), hosts_(by_host(places_)), host_of_(places_.size()), local_of_(places_.size()),
      local_(local_index(places_, rank)), memory_(std::move(memory)), segment_(memory_, local_, ranks_beside(places_, rank), one_host(), failure()) {
  carriers_ = size();
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    carriers_ = std::min(carriers_, static_cast<int>(hosts_[host].size()));
    for (std::size_t local = 0; local < hosts_[host].size(); ++local) {
      host_of_[at(hosts_[host][local])] = static_cast<int>(host);
      local_of_[at(hosts_[host][local])] = static_cast<int>(local);
    }
  }
  host_ = at(host_of_[at(rank)]);
}

std::byte* Group::staging(std::int64_t bytes) {
  if (!staging_) staging_ = std::make_shared<std::vector<std::byte>>();
  if (staging_->size() < at(bytes)) staging_->resize(at(bytes));
  return staging_->data();
}

bool Group::wait(int local) {
  if (!segment_.wait(local)) return false;
  if (segment_.call_of(local) == call_) [[likely]] return true;
  out_of_step(local);
  return false;
}

void Group::out_of_step(int local) {
  const auto text = [](std::uint64_t call) { return fmt::format("{} of {}", name_of(static_cast<Collective>(call >> 56)), call & 0xff'ffff'ffff'ffff); };
  const int world = places_[at(hosts_[host_][at(local)])].world;
  world_->fail(Error{Code::kInternal, fmt::format("ranks are out of step: this one is in {}, rank {} in {}", text(call_), world, text(segment_.call_of(local)))});
}

bool Group::meet() {
  segment_.arrive(call_);
  for (int local = 0; local < local_size(); ++local)
    if (local != local_ && !wait(local)) return false;
  return true;
}

template <class Op>
void Group::all_reduce(Collective which, float* data, std::int64_t n) {
  Call call(*this, which, n);
  call.sent(2 * (size() - 1) * n * 4 / size(), 2 * (size() - 1));
  if (size() == 1 || call.failed()) return;
  const bool direct = one_host() && (size() == 2 || std::min(n * 4, segment_.room_bytes()) * (size() - 1) <= kDirectBytes);
  const std::int64_t most = segment_.room_bytes() / 4;
  for (std::int64_t begin = 0; begin < n; begin += most) {
    const std::int64_t count = std::min(most, n - begin);
    copy_bytes(segment_.room(local_), data + begin, at(count) * sizeof(float));
    if (!(direct ? reduce_here<Op>(data + begin, count) : reduce_slices<Op>(data + begin, count))) return;
    segment_.turn();
  }
}

// One barrier: everybody sums everything.
template <class Op>
bool Group::reduce_here(float* data, std::int64_t n) {
  if (!meet()) return false;
  reduce<Op>([&](int local) { return floats(local); }, local_size(), n, data);
  return true;
}

// Two: the carriers sum a slice each and leave it where their own piece's slice was, which nobody else reads.
template <class Op>
bool Group::reduce_slices(float* data, std::int64_t n) {
  if (!meet()) return false;
  const int slices = one_host() ? local_size() : carriers_;
  if (local_ < slices) {
    const std::int64_t begin = slice_begin(n, local_, slices), end = slice_begin(n, local_ + 1, slices);
    float* sum = floats(local_) + begin;
    reduce<Op>([&](int local) { return floats(local) + begin; }, local_size(), end - begin, sum);
    if (!one_host() && !reduce_with_hosts<Op>(begin, end)) return false;
  }
  if (!meet()) return false;
  for (int i = 0; i < slices; ++i) {
    const std::int64_t begin = slice_begin(n, i, slices), end = slice_begin(n, i + 1, slices);
    copy_bytes(data + begin, segment_.room(i) + begin * 4, at(end - begin) * sizeof(float));
  }
  return true;
}

// This carrier's slice of its host's sum becomes that of all hosts. Of two hosts, or where latency counts, each sends all to all; otherwise each host sums its part.
template <class Op>
bool Group::reduce_with_hosts(std::int64_t begin, std::int64_t end) {
  const auto hosts = static_cast<std::int64_t>(hosts_.size());
  const std::int64_t n = end - begin;
  float* mine = floats(local_) + begin;
  const bool whole = hosts == 2 || n * 4 <= kWholeBytes;
  const auto part_begin = [&](std::int64_t host) { return whole ? 0 : slice_begin(n, host, hosts); };
  const auto part_size = [&](std::int64_t host) { return whole ? n : slice_begin(n, host + 1, hosts) - slice_begin(n, host, hosts); };
  const auto me = static_cast<std::int64_t>(host_), own = part_size(me);
  auto* received = reinterpret_cast<float*>(staging(hosts * own * 4));
  const auto with_others = [&](auto&& receive_and_send) {
    Exchange exchange(*this);
    for (std::int64_t host = 0; host < hosts; ++host)
      if (host != me) receive_and_send(exchange, host, hosts_[at(host)][at(local_)]);
    return exchange.finish();
  };
  const bool came = with_others([&](Exchange& exchange, std::int64_t host, int rank) {
    exchange.receive(rank, received + host * own, own * 4);
    exchange.send(rank, mine + part_begin(host), part_size(host) * 4);
  });
  if (!came) return false;
  float* sum = mine + part_begin(me);
  reduce<Op>([&](int host) { return host == me ? sum : received + host * own; }, static_cast<int>(hosts), own, sum);
  return whole || with_others([&](Exchange& exchange, std::int64_t host, int rank) {
           exchange.receive(rank, mine + part_begin(host), part_size(host) * 4);
           exchange.send(rank, sum, own * 4);
         });
}

void Group::all_reduce_sum(float* data, std::int64_t n) { all_reduce<Sum>(Collective::kAllReduceSum, data, n); }

void Group::all_reduce_max(float* data, std::int64_t n) { all_reduce<Max>(Collective::kAllReduceMax, data, n); }

void Group::reduce_scatter_sum(const float* data, std::int64_t n, float* out) {
  Call call(*this, Collective::kReduceScatterSum, n);
  call.sent((size() - 1) * n * 4, size() - 1);
  if (size() == 1) copy_bytes(out, data, at(n) * sizeof(float));
  if (size() == 1 || call.failed()) return;
  const std::int64_t most = segment_.room_bytes() / 4 / size() / 16 * 16;  // of every part at once
  for (std::int64_t begin = 0; begin < n; begin += most) {
    const std::int64_t count = std::min(most, n - begin);
    for (int part = 0; part < size(); ++part) copy_bytes(floats(local_) + part * most, data + part * n + begin, at(count) * sizeof(float));
    if (!meet()) return;
    const auto sum_here = [&](int part, float* sum) { reduce<Sum>([&](int local) { return floats(local) + part * most; }, local_size(), count, sum); };
    sum_here(rank_, out + begin);
    if (!one_host() && !scatter_to_hosts(sum_here, count, out + begin)) return;
    segment_.turn();
  }
}

// The host's sums of other hosts' parts go there, dealt out among its ranks; what comes is added in host order. `out` has this host's sum.
template <class SumHere>
bool Group::scatter_to_hosts(SumHere&& sum_here, std::int64_t n, float* out) {
  auto* room = reinterpret_cast<float*>(staging((static_cast<std::int64_t>(hosts_.size()) + size()) * n * 4));
  float* to_send = room + static_cast<std::int64_t>(hosts_.size()) * n;
  Exchange exchange(*this);
  for (std::size_t host = 0; host < hosts_.size(); ++host)
    if (host != host_) exchange.receive(hosts_[host][at(local_) % hosts_[host].size()], room + static_cast<std::int64_t>(host) * n, n * 4);
  for (int part = 0; part < size(); ++part) {
    if (at(host_of_[at(part)]) == host_ || local_of_[at(part)] % local_size() != local_) continue;
    sum_here(part, to_send);
    exchange.send(part, to_send, n * 4);
    to_send += n;
  }
  if (!exchange.finish()) return false;
  reduce<Sum>([&](int host) { return at(host) == host_ ? out : room + host * n; }, static_cast<int>(hosts_.size()), n, out);
  return true;
}

void Group::all_gather(const void* mine, std::int64_t bytes, void* all) {
  Call call(*this, Collective::kAllGather, bytes);
  call.sent((size() - 1) * bytes, size() - 1);
  gather(static_cast<const std::byte*>(mine), bytes, static_cast<std::byte*>(all));
}

// A rank's piece lies in its room, those of other hosts behind it in the rooms of the ranks that receive them.
bool Group::gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
  if (size() == 1 && all != mine) copy_bytes(all, mine, at(bytes));
  if (size() == 1) return true;
  if (failure().failed()) return false;
  std::size_t most_relayed = 0;  // by any rank of any host
  for (const auto& here : hosts_) {
    std::size_t relayed = 0;
    for (const auto& there : hosts_)
      if (&here != &there) relayed += (there.size() + here.size() - 1) / here.size();
    most_relayed = std::max(most_relayed, relayed);
  }
  const std::int64_t most = segment_.room_bytes() / static_cast<std::int64_t>(1 + most_relayed) / 64 * 64;
  for (std::int64_t begin = 0; begin < bytes; begin += most) {
    const std::int64_t count = std::min(most, bytes - begin);
    copy_bytes(segment_.room(local_), mine + begin, at(count));
    if (!one_host() && !relay(count, most)) return false;
    if (!meet()) return false;
    std::vector<std::int64_t> relayed(at(local_size()), 0);
    for (int rank = 0; rank < size(); ++rank) {
      const bool here = at(host_of_[at(rank)]) == host_;
      const int local = local_of_[at(rank)] % local_size();
      const std::byte* from = segment_.room(local) + (here ? 0 : ++relayed[at(local)] * most);
      copy_bytes(all + rank * bytes + begin, from, at(count));
    }
    segment_.turn();
  }
  return true;
}

// This rank's piece goes to one rank of every other host; what comes lies behind its own, in rank order.
bool Group::relay(std::int64_t bytes, std::int64_t most) {
  Exchange exchange(*this);
  for (std::size_t host = 0; host < hosts_.size(); ++host)
    if (host != host_) exchange.send(hosts_[host][at(local_) % hosts_[host].size()], segment_.room(local_), bytes);
  std::int64_t relayed = 0;
  for (int rank = 0; rank < size(); ++rank)
    if (at(host_of_[at(rank)]) != host_ && local_of_[at(rank)] % local_size() == local_) exchange.receive(rank, segment_.room(local_) + ++relayed * most, bytes);
  return exchange.finish();
}

void Group::all_to_all(const void* send, std::span<const std::int64_t> send_bytes, void* receive, std::span<const std::int64_t> receive_bytes) {
  Call call(*this, Collective::kAllToAll, 0);
  std::vector<std::int64_t> from(at(size()) + 1, 0), into(at(size()) + 1, 0);
  std::int64_t far_bytes = 0, sent = 0, messages = 0;
  for (int r = 0; r < size(); ++r) {
    from[at(r) + 1] = from[at(r)] + send_bytes[at(r)];
    into[at(r) + 1] = into[at(r)] + receive_bytes[at(r)];
    if (at(host_of_[at(r)]) != host_) far_bytes += send_bytes[at(r)] + receive_bytes[at(r)];
    if (r == rank_) continue;
    sent += send_bytes[at(r)];
    messages += send_bytes[at(r)] > 0;
  }
  call.sent(sent, messages);
  if (call.failed()) return;
  const auto* source = static_cast<const std::byte*>(send);
  auto* target = static_cast<std::byte*>(receive);
  std::byte* far = far_bytes > 0 ? staging(far_bytes) : nullptr;
  Exchange exchange(*this);
  for (int r = 0; r < size(); ++r) {
    if (at(host_of_[at(r)]) == host_) continue;
    exchange.receive(r, far, receive_bytes[at(r)]);
    far += receive_bytes[at(r)];
    copy_bytes(far, source + from[at(r)], at(send_bytes[at(r)]));
    exchange.send(r, far, send_bytes[at(r)]);
    far += send_bytes[at(r)];
  }
  if (!exchange_here(source, from, target, into) || !exchange.finish()) return;
  far = staging(far_bytes);
  for (int r = 0; r < size(); ++r) {
    if (at(host_of_[at(r)]) == host_) continue;
    copy_bytes(target + into[at(r)], far, at(receive_bytes[at(r)]));
    far += receive_bytes[at(r)] + send_bytes[at(r)];
  }
}

// Between the ranks of this host: each one's blocks pass through its room as one stream, at most a room of it a round. from, into: where ranks' blocks begin.
bool Group::exchange_here(const std::byte* send, std::span<const std::int64_t> from, std::byte* receive, std::span<const std::int64_t> into) {
  const std::vector<int>& here = hosts_[host_];
  const std::size_t ranks = here.size();
  const auto length = [](std::span<const std::int64_t> begins, int rank) { return begins[at(rank) + 1] - begins[at(rank)]; };
  if (length(from, rank_) != length(into, rank_)) return misfit(rank_, length(from, rank_), length(into, rank_));
  copy_bytes(receive + into[at(rank_)], send + from[at(rank_)], at(length(from, rank_)));
  const std::int64_t room = segment_.room_bytes();
  std::vector<std::vector<std::int64_t>> stream(ranks);  // of every sender: where the blocks of every receiver begin
  std::int64_t rounds = 1;
  for (std::int64_t round = 0; round < rounds; ++round) {
    // The part of block [begin, end) of a stream that passes in this round: pass(offset in the block, offset in the room, bytes).
    const auto window = [&](std::int64_t begin, std::int64_t end, auto&& pass) {
      const std::int64_t first = std::max(begin, round * room), last = std::min(end, (round + 1) * room);
      if (first < last) pass(first - begin, first - round * room, at(last - first));
    };
    std::int64_t begin = 0;
    for (std::size_t local = 0; local < ranks; ++local) {
      const std::int64_t bytes = at(local_) == local ? 0 : length(from, here[local]);
      if (round == 0) segment_.counts(local_)[local] = begin;
      window(begin, begin + bytes, [&](std::int64_t in_block, std::int64_t in_room, std::size_t n) {
        copy_bytes(segment_.room(local_) + in_room, send + from[at(here[local])] + in_block, n);
      });
      begin += bytes;
    }
    if (round == 0) segment_.counts(local_)[ranks] = begin;
    if (!meet()) return false;
    for (std::size_t local = 0; local < ranks; ++local) {
      if (round == 0) {
        const std::int64_t* counts = segment_.counts(static_cast<int>(local));
        stream[local].assign(counts, counts + ranks + 1);
        rounds = std::max(rounds, (counts[ranks] + room - 1) / room);
      }
      if (at(local_) == local) continue;
      const std::int64_t first = stream[local][at(local_)], last = stream[local][at(local_) + 1];
      if (last - first != length(into, here[local])) return misfit(here[local], last - first, length(into, here[local]));
      window(first, last, [&](std::int64_t in_block, std::int64_t in_room, std::size_t n) {
        copy_bytes(receive + into[at(here[local])] + in_block, segment_.room(static_cast<int>(local)) + in_room, n);
      });
    }
    segment_.turn();
  }
  return true;
}

bool Group::misfit(int rank, std::int64_t sent, std::int64_t expected) {
  world_->fail(Error{Code::kInternal, fmt::format("rank {} sends {} bytes, this one expects {}", places_[at(rank)].world, sent, expected)});
  return false;
}

void Group::broadcast(void* data, std::int64_t bytes, int root) {
  Call call(*this, Collective::kBroadcast, bytes);
  call.sent(rank_ == root ? (size() - 1) * bytes : 0, rank_ == root ? size() - 1 : 0);
  if (size() == 1 || call.failed()) return;
  const bool root_here = at(host_of_[at(root)]) == host_;
  const int source = root_here ? local_of_[at(root)] : 0;
  for (std::int64_t begin = 0; begin < bytes; begin += segment_.room_bytes()) {
    const std::int64_t count = std::min(segment_.room_bytes(), bytes - begin);
    auto* piece = static_cast<std::byte*>(data) + begin;
    Exchange exchange(*this);
    if (rank_ == root) {
      copy_bytes(segment_.room(local_), piece, at(count));
      for (std::size_t host = 0; host < hosts_.size(); ++host)
        if (host != host_) exchange.send(hosts_[host][0], segment_.room(local_), count);
    } else if (!root_here && local_ == 0) {
      exchange.receive(root, segment_.room(local_), count);
      if (!exchange.finish()) return;
    }
    if (!meet()) return;
    if (rank_ != root) copy_bytes(piece, segment_.room(source), at(count));
    if (!exchange.finish()) return;
    segment_.turn();
  }
}

void Group::barrier(Collective which) {
  Call call(*this, which, 0);
  call.sent(0, 0);
  if (size() == 1 || call.failed() || !meet() || one_host()) return;
  if (local_ == 0) {
    std::byte* room = staging(static_cast<std::int64_t>(hosts_.size()));
    room[host_] = {};
    Exchange exchange(*this);
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      if (host == host_) continue;
      exchange.receive(hosts_[host][0], room + host, 1);
      exchange.send(hosts_[host][0], room + host_, 1);
    }
    if (!exchange.finish()) return;
  }
  meet();
}

int Group::equal_hosts() const {
  const std::size_t each = hosts_[0].size();
  for (std::size_t rank = 0; rank < places_.size(); ++rank)
    if (hosts_.size() * each != places_.size() || host_of_[rank] != static_cast<int>(rank / each)) return 1;
  return static_cast<int>(hosts_.size());
}

std::unique_ptr<Comm> Group::split(int color) {
  struct Wish {
    std::int64_t color, next_tag;
  };
  using Name = std::array<char, SharedMemory::kNameBytes>;
  Call call(*this, Collective::kSplit, 0);
  const auto gathered = [&]<class T>(const T& mine, std::vector<T>& all) {
    all.resize(at(size()));
    return gather(reinterpret_cast<const std::byte*>(&mine), sizeof mine, reinterpret_cast<std::byte*>(all.data()));
  };
  std::vector<Wish> wishes;
  if (!gathered(Wish{color, world_->next_tag}, wishes)) return nullptr;
  std::vector<Place> places;
  std::vector<int> here;  // ranks of this group that are in the new one, on this host
  int rank = 0;
  for (int r = 0; r < size(); ++r) {
    world_->next_tag = std::max(world_->next_tag, wishes[at(r)].next_tag);
    if (wishes[at(r)].color != color) continue;
    if (r == rank_) rank = static_cast<int>(places.size());
    if (at(host_of_[at(r)]) == host_) here.push_back(r);
    places.push_back(places_[at(r)]);
  }
  const auto tag = static_cast<int>(world_->next_tag++);
  const std::int64_t bytes = Segment::bytes(static_cast<int>(here.size()), by_host(places).size() == 1);
  Result<std::shared_ptr<std::byte>> memory;
  std::string created;
  if (here[0] == rank_) memory = world_->memory->create(bytes, created);
  if (!memory) world_->fail(memory.error());
  Name name{};
  std::copy(created.begin(), created.end(), name.begin());
  std::vector<Name> names;
  bool good = gathered(name, names);
  if (good && here[0] != rank_) memory = world_->memory->attach(names[at(here[0])].data(), bytes);
  if (!memory) world_->fail(memory.error());
  good = good && meet();  // all have attached
  if (here[0] == rank_ && !created.empty()) world_->memory->forget(created);
  if (!good || call.failed()) return nullptr;
  return std::make_unique<Group>(world_, std::move(places), rank, tag, *std::move(memory));
}

}  // namespace inflight::comm
