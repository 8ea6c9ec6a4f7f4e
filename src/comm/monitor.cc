#include "comm/monitor.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace inflight::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRound{100};
constexpr milliseconds kBeat{200};
constexpr milliseconds kPaused{2000};     // between two rounds: this process itself was stopped, and what it did not hear means nothing
constexpr milliseconds kTermPatience{500};  // from SIGTERM, for news of a rank that died; the launcher kills after a second
constexpr milliseconds kTermGrace{300};   // then, for the main thread to put its things in order
constexpr milliseconds kFinish{15000};    // for all ranks to leave MPI at the end
constexpr milliseconds kLater{1000};      // others than rank 1 leave it to that to say that rank 0 is lost

sigset_t term_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

struct Beat {
  std::uint64_t progress;
  std::uint32_t waits, bytes;
};

struct News {
  std::uint32_t code;
  std::int32_t lost;
};

std::string seconds(milliseconds time) { return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000); }

}  // namespace

TermBlocked::TermBlocked() {
  const sigset_t set = term_set();
  sigset_t old;
  pthread_sigmask(SIG_BLOCK, &set, &old);
  was_blocked_ = sigismember(&old, SIGTERM) == 1;
}

TermBlocked::~TermBlocked() {
  const sigset_t set = term_set();
  if (!was_blocked_) pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Monitor::Monitor(std::shared_ptr<World> world, std::vector<RankName> names, std::vector<Channel> channels, MpiOptions options)
    : world_(std::move(world)), names_(std::move(names)), peers_(channels.size()), options_(std::move(options)) {
  const auto now = Clock::now();
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    peers_[rank].channel = std::move(channels[rank]);
    peers_[rank].heard = peers_[rank].moved = now;
  }
  last_round_ = now;
  last_beat_ = now - kBeat;
  const sigset_t set = term_set();
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  term_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  thread_ = std::thread([this] { loop(); });
}

Monitor::~Monitor() {
  stopping_ = true;
  wake();
  thread_.join();
  ::close(wake_);
  ::close(term_);
}

void Monitor::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void Monitor::say_goodbye() {
  goodbye_ = true;
  wake();
}

void Monitor::loop() {
  for (;;) {
    const bool last = stopping_;  // one more round: what was noted before is still told
    if (!last) wait_for_news();
    const auto now = Clock::now();
    if (now - last_round_ > kPaused)
      for (Peer& peer : peers_) peer.heard = peer.moved = now;
    last_round_ = now;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank)
      if (peers_[rank].channel.open()) hear(static_cast<int>(rank));
    if (!world_->notices.failure().failed()) {
      look_for_silence(now);
      look_for_stuck(now);
      look_for_end(now);
    }
    if (world_->notices.failure().failed()) tell(now);
    if (goodbye_ && !said_goodbye_) {
      said_goodbye_ = true;
      goodbye_at_ = now;
      for (Peer& peer : peers_) peer.channel.send(FrameKind::kBye, "");
    }
    if (now - last_beat_ >= kBeat) {
      last_beat_ = now;
      beat();
    }
    for (Peer& peer : peers_) peer.channel.flush(last ? milliseconds(200) : milliseconds(0));
    if (last) return;
  }
}

void Monitor::wait_for_news() {
  std::vector<pollfd> descriptors = {{.fd = wake_, .events = POLLIN, .revents = 0}, {.fd = term_, .events = POLLIN, .revents = 0}};
  for (const Peer& peer : peers_)
    if (peer.channel.open()) descriptors.push_back({.fd = peer.channel.descriptor(), .events = POLLIN, .revents = 0});
  (void)::poll(descriptors.data(), descriptors.size(), static_cast<int>(kRound.count()));
  std::uint64_t count = 0;
  (void)!::read(wake_, &count, sizeof count);
  signalfd_siginfo signal;
  if (::read(term_, &signal, sizeof signal) == sizeof signal && !termed_) {
    termed_ = true;
    term_at_ = Clock::now();
  }
}

void Monitor::beat() {
  const Activity& mine = world_->activity();
  const std::string doing = mine.text();
  const Beat head{.progress = mine.progress.load(std::memory_order_relaxed),
                  .waits = mine.collective.load(std::memory_order_relaxed) != 0,
                  .bytes = static_cast<std::uint32_t>(doing.size())};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += doing;
  for (Peer& peer : peers_) peer.channel.send(FrameKind::kBeat, bytes);
}

void Monitor::hear(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::vector<Frame> frames;
  const bool good = peer.channel.receive(frames);
  for (const Frame& frame : frames) take(rank, frame);
  if (!frames.empty()) peer.heard = Clock::now();
  if (good) return;
  peer.channel.close();
  if (!peer.gone) lose(rank, fmt::format("ended unexpectedly while: {}", doing(rank)));
}

void Monitor::take(int rank, const Frame& frame) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (frame.kind == FrameKind::kBye) peer.gone = true;
  if (News head; frame.kind == FrameKind::kFail && frame.bytes.size() >= sizeof head) {
    std::memcpy(&head, frame.bytes.data(), sizeof head);
    note(Error{static_cast<Code>(head.code), frame.bytes.substr(sizeof head)}, head.lost);
  }
  if (Beat head; frame.kind == FrameKind::kBeat && frame.bytes.size() >= sizeof head) {
    std::memcpy(&head, frame.bytes.data(), sizeof head);
    if (head.progress != peer.progress) peer.moved = Clock::now();
    peer.progress = head.progress;
    peer.waits = head.waits != 0;
    peer.doing = frame.bytes.substr(sizeof head);
  }
}

void Monitor::look_for_silence(Clock::time_point now) {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (!peer.channel.open() || peer.gone) continue;
    const milliseconds patience = options_.silent + (world_->rank > 1 ? kLater : milliseconds(0));
    if (now - peer.heard > patience)
      lose(static_cast<int>(rank), fmt::format("gives no sign of life for {} (stopped, or its host is gone), last state: {}", seconds(options_.silent), doing(static_cast<int>(rank))));
  }
}

// On rank 0: somebody waits, and the one that keeps it waiting lives but does nothing.
void Monitor::look_for_stuck(Clock::time_point now) {
  if (world_->rank != 0 || goodbye_) return;
  Peer& self = peers_[0];
  const Activity& mine = world_->activity();
  if (const std::uint64_t progress = mine.progress.load(std::memory_order_relaxed); progress != self.progress) {
    self.progress = progress;
    self.moved = now;
  }
  self.waits = mine.collective.load(std::memory_order_relaxed) != 0;
  bool somebody_waits = false, all_wait = true;
  int stuck = -1;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const bool still = now - peers_[rank].moved > options_.stuck;
    somebody_waits = somebody_waits || (still && peers_[rank].waits);
    all_wait = all_wait && still && peers_[rank].waits;
    if (rank > 0 && still && !peers_[rank].waits && stuck < 0) stuck = static_cast<int>(rank);
  }
  if (somebody_waits && stuck >= 0) {
    lose(stuck, fmt::format("hangs: others wait for it, and it has not moved for {}, last state: {}", seconds(options_.stuck), doing(stuck)));
  } else if (all_wait && peers_.size() > 1) {
    std::vector<std::string> states;
    for (std::size_t rank = 0; rank < peers_.size() && rank < 8; ++rank) states.push_back(fmt::format("rank {} in {}", rank, doing(static_cast<int>(rank))));
    note(Error{Code::kInternal, fmt::format("all ranks wait for each other, for {}: {}", seconds(options_.stuck), fmt::join(states, "; "))});
  }
}

void Monitor::look_for_end(Clock::time_point now) {
  if (said_goodbye_ && now - goodbye_at_ > kFinish)
    note(Error{Code::kInternal, fmt::format("rank {} waits for the others to leave MPI, for {}", world_->rank, seconds(kFinish))});
  if (!termed_ || now - term_at_ < kTermPatience) return;
  note(Error{Code::kCancelled, fmt::format("rank {} was asked to end (SIGTERM) while: {}", world_->rank, doing(world_->rank))});
}

// The others, then the user; and the end of a process that does not end by itself.
void Monitor::tell(Clock::time_point now) {
  if (!told_) {
    told_ = true;
    told_at_ = now;
    const Error error = *world_->notices.failure().get();
    const int lost = world_->notices.failure().lost_rank;
    const News head{.code = static_cast<std::uint32_t>(error.code), .lost = lost};
    const std::string bytes = std::string(reinterpret_cast<const char*>(&head), sizeof head) + error.message;
    for (Peer& peer : peers_) {
      peer.channel.send(FrameKind::kFail, bytes);
      peer.channel.flush(milliseconds(20));
    }
    if (options_.on_failure) options_.on_failure(error, world_->rank == (lost == 0 ? 1 : 0));
  }
  if (!ended_ && !stopping_ && now - told_at_ > (termed_ ? std::min(options_.grace, kTermGrace) : options_.grace)) {
    ended_ = true;
    if (options_.end) options_.end();
  }
}

void Monitor::lose(int rank, const std::string& how) {
  if (world_->notices.failure().failed()) return;
  note(Error{Code::kInternal, fmt::format("rank {} {}", name(rank), how)}, rank);
}

void Monitor::note(Error error, int lost) { (void)world_->notices.failure().set(error, lost); }

std::string Monitor::name(int rank) const {
  const RankName& name = names_[static_cast<std::size_t>(rank)];
  return fmt::format("{} on host {} (pid {})", rank, name.host, name.process);
}

// The host's own notices are newer than the last beat.
std::string Monitor::doing(int rank) const {
  const int local = names_[static_cast<std::size_t>(rank)].local_here;
  return local >= 0 ? world_->notices.activity(local).text() : peers_[static_cast<std::size_t>(rank)].doing;
}

}  // namespace inflight::comm
