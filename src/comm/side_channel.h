// Connections beside the collectives, over which ranks tell of their life: TCP, from every rank to rank 0.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace inflight::comm {

enum class FrameKind : std::uint32_t { kHello = 1, kWelcome, kBeat, kFail, kBye };

struct Frame {
  FrameKind kind{};
  std::string bytes;
};

// One end of a connection; move-only. Neither sending nor receiving waits.
class Channel {
 public:
  Channel() = default;
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void send(FrameKind kind, std::string_view bytes);
  // Sends on what did not fit before; for at most `wait`.
  void flush(std::chrono::milliseconds wait = std::chrono::milliseconds(0));
  // Adds what has come. False: the other end is closed, or sends what is no frame.
  bool receive(std::vector<Frame>& frames);
  void close();

 private:
  int descriptor_ = -1;
  std::string in_, out_;
};

// Where rank 0 can be reached, and how it knows its own.
struct Meeting {
  std::vector<std::string> addresses;  // numeric, IPv4 and IPv6
  std::uint16_t port = 0;
  std::uint64_t token = 0;  // a stranger does not know it

  std::string text() const;  // "port token address address..."
  static Meeting parse(const std::string& text);
};

class Listener {
 public:
  // loopback: all ranks are on this host.
  static Result<Listener> open(bool loopback);
  Listener(Listener&& other) noexcept : descriptor_(other.descriptor_), meeting_(std::move(other.meeting_)) { other.descriptor_ = -1; }
  Listener& operator=(Listener&&) = delete;
  ~Listener();
  const Meeting& meeting() const { return meeting_; }
  // A connection from each rank 1 .. ranks - 1; channels[0] stays closed. Waits for all.
  Result<std::vector<Channel>> accept(int ranks, std::chrono::seconds wait);

 private:
  Listener(int descriptor, Meeting meeting) : descriptor_(descriptor), meeting_(std::move(meeting)) {}
  int descriptor_;
  Meeting meeting_;
};

// Tries every address until rank 0 answers.
Result<Channel> connect_to(const Meeting& meeting, int rank, std::chrono::seconds wait);

}  // namespace inflight::comm
