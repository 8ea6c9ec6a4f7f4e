#include "comm/side_channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

namespace inflight::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostBytes = 64 << 10;  // of a frame; and what may wait to be sent

struct Header {
  std::uint32_t kind, bytes;
};

struct Hello {
  std::uint64_t token;
  std::int64_t rank;
};

// False: not within `wait`.
bool wait_for(int descriptor, short events, milliseconds wait) {
  pollfd poll_for{.fd = descriptor, .events = events, .revents = 0};
  return ::poll(&poll_for, 1, static_cast<int>(std::max<std::int64_t>(0, wait.count()))) > 0;
}

milliseconds left(Clock::time_point deadline) { return std::chrono::duration_cast<milliseconds>(deadline - Clock::now()); }

void set_up(int descriptor) {
  const int on = 1;
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

// The first frame, if it is of this kind and comes in time.
bool receive_one(Channel& channel, FrameKind kind, Clock::time_point deadline, Frame& frame) {
  std::vector<Frame> frames;
  while (left(deadline).count() > 0) {
    if (!wait_for(channel.descriptor(), POLLIN, left(deadline))) return false;
    const bool good = channel.receive(frames);
    if (!frames.empty()) {
      frame = std::move(frames.front());
      return frame.kind == kind;
    }
    if (!good) return false;
  }
  return false;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (entry->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
      found.insert(found.begin() + std::count_if(found.begin(), found.end(), [](const std::string& a) { return a.find(':') == std::string::npos; }), text);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;  // useless without an interface's name
      ::inet_ntop(AF_INET6, &address, text, sizeof text);
      found.emplace_back(text);
    }
  }
  ::freeifaddrs(list);
  return found;
}

// Connected, or -1.
int connect_socket(const std::string& address, std::uint16_t port, milliseconds wait) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  if (auto& four = reinterpret_cast<sockaddr_in&>(storage); ::inet_pton(AF_INET, address.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    length = sizeof four;
  } else if (auto& six = reinterpret_cast<sockaddr_in6&>(storage); ::inet_pton(AF_INET6, address.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    length = sizeof six;
  } else {
    return -1;
  }
  const int descriptor = ::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return -1;
  int error = ::connect(descriptor, reinterpret_cast<const sockaddr*>(&storage), length) == 0 ? 0 : errno;
  if (error == EINPROGRESS && wait_for(descriptor, POLLOUT, wait)) {
    socklen_t size = sizeof error;
    (void)::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return descriptor;
  ::close(descriptor);
  return -1;
}

}  // namespace

Channel::Channel(Channel&& other) noexcept : descriptor_(other.descriptor_), in_(std::move(other.in_)), out_(std::move(other.out_)) { other.descriptor_ = -1; }

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  return *this;
}

Channel::~Channel() { close(); }

void Channel::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Channel::send(FrameKind kind, std::string_view bytes) {
  if (!open() || out_.size() > kMostBytes) return;  // a reader that has stopped: whoever watches it will notice
  const Header header{.kind = static_cast<std::uint32_t>(kind), .bytes = static_cast<std::uint32_t>(bytes.size())};
  out_.append(reinterpret_cast<const char*>(&header), sizeof header);
  out_.append(bytes);
  flush();
}

void Channel::flush(milliseconds wait) {
  const auto deadline = Clock::now() + wait;
  while (open() && !out_.empty()) {
    const ssize_t sent = ::send(descriptor_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN || left(deadline).count() <= 0) {
      return;  // a broken connection is found by receive()
    } else {
      wait_for(descriptor_, POLLOUT, left(deadline));
    }
  }
}

bool Channel::receive(std::vector<Frame>& frames) {
  bool good = true;
  for (char buffer[4096]; open();) {
    const ssize_t got = ::recv(descriptor_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    good = got > 0 || (got < 0 && errno == EAGAIN);
    if (got <= 0) break;
    in_.append(buffer, static_cast<std::size_t>(got));
  }
  for (Header header; in_.size() >= sizeof header;) {
    std::memcpy(&header, in_.data(), sizeof header);
    if (header.bytes > kMostBytes) return false;
    if (in_.size() < sizeof header + header.bytes) break;
    frames.push_back({.kind = static_cast<FrameKind>(header.kind), .bytes = in_.substr(sizeof header, header.bytes)});
    in_.erase(0, sizeof header + header.bytes);
  }
  return good;
}

std::string Meeting::text() const { return fmt::format("{} {} {}", port, token, fmt::join(addresses, " ")); }

Meeting Meeting::parse(const std::string& text) {
  Meeting meeting;
  std::istringstream in(text);
  in >> meeting.port >> meeting.token;
  for (std::string address; in >> address;) meeting.addresses.push_back(address);
  return meeting;
}

Result<Listener> Listener::open(bool loopback) {
  Meeting meeting{.addresses = loopback ? std::vector<std::string>{} : own_addresses()};
  meeting.addresses.insert(meeting.addresses.begin(), "127.0.0.1");  // a rank elsewhere finds nobody there who knows the token
  if (::getrandom(&meeting.token, sizeof meeting.token, 0) != sizeof meeting.token) return fail(Code::kInternal, "no random numbers: {}", std::strerror(errno));
  // IPv6 takes IPv4 too; where there is none, IPv4 alone.
  int descriptor = loopback ? -1 : ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_storage storage{};
  socklen_t length = 0;
  if (descriptor >= 0) {
    const int off = 0;
    (void)::setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto& six = reinterpret_cast<sockaddr_in6&>(storage);
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_any;
    length = sizeof six;
    if (::bind(descriptor, reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
      ::close(descriptor);
      descriptor = -1;
    }
  }
  if (descriptor < 0) {
    storage = {};
    auto& four = reinterpret_cast<sockaddr_in&>(storage);
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    length = sizeof four;
    descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0 || ::bind(descriptor, reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
      const int error = errno;
      if (descriptor >= 0) ::close(descriptor);
      return fail(Code::kInternal, "cannot open a TCP port on which the ranks watch each other: {}", std::strerror(error));
    }
  }
  if (::listen(descriptor, 1024) != 0 || ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    const int error = errno;
    ::close(descriptor);
    return fail(Code::kInternal, "cannot listen on a TCP port on which the ranks watch each other: {}", std::strerror(error));
  }
  meeting.port = ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  return Listener(descriptor, std::move(meeting));
}

Listener::~Listener() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<std::vector<Channel>> Listener::accept(int ranks, std::chrono::seconds wait) {
  std::vector<Channel> channels(static_cast<std::size_t>(ranks));
  const auto deadline = Clock::now() + wait;
  for (int missing = ranks - 1; missing > 0;) {
    if (left(deadline).count() <= 0 || !wait_for(descriptor_, POLLIN, left(deadline))) {
      std::vector<int> absent;
      for (int rank = 1; rank < ranks; ++rank)
        if (!channels[static_cast<std::size_t>(rank)].open()) absent.push_back(rank);
      return fail(Code::kUnsupported, "rank{} {} did not connect to rank 0 within {} s (tried {}, port {}); is TCP between the hosts blocked?", absent.size() > 1 ? "s" : "",
                  fmt::join(absent, ", "), wait.count(), fmt::join(meeting_.addresses, ", "), meeting_.port);
    }
    const int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) continue;
    set_up(descriptor);
    Channel channel(descriptor);
    Frame frame;
    Hello hello;
    if (!receive_one(channel, FrameKind::kHello, std::min(deadline, Clock::now() + std::chrono::seconds(2)), frame) || frame.bytes.size() != sizeof hello) continue;
    std::memcpy(&hello, frame.bytes.data(), sizeof hello);
    if (hello.token != meeting_.token || hello.rank < 1 || hello.rank >= ranks || channels[static_cast<std::size_t>(hello.rank)].open()) continue;
    channel.send(FrameKind::kWelcome, frame.bytes);
    channels[static_cast<std::size_t>(hello.rank)] = std::move(channel);
    --missing;
  }
  return channels;
}

Result<Channel> connect_to(const Meeting& meeting, int rank, std::chrono::seconds wait) {
  const Hello hello{.token = meeting.token, .rank = rank};
  const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  const auto deadline = Clock::now() + wait;
  do {
    for (const std::string& address : meeting.addresses) {
      const int descriptor = connect_socket(address, meeting.port, std::min(milliseconds(2000), left(deadline)));
      if (descriptor < 0) continue;
      set_up(descriptor);
      Channel channel(descriptor);
      channel.send(FrameKind::kHello, bytes);
      Frame frame;
      if (receive_one(channel, FrameKind::kWelcome, std::min(deadline, Clock::now() + std::chrono::seconds(5)), frame) && frame.bytes == bytes) return channel;
    }
    ::usleep(50'000);
  } while (left(deadline).count() > 0);
  return fail(Code::kUnsupported, "rank {} cannot reach rank 0 at any of {}, port {}; is TCP between the hosts blocked?", rank, fmt::join(meeting.addresses, ", "), meeting.port);
}

}  // namespace inflight::comm
