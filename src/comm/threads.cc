#include "comm/threads.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "comm/group.h"

namespace inflight::comm {
namespace {

// Messages between threads, as MPI would move them: copied when sent, matched in order.
class Mailboxes {
 public:
  void put(std::array<int, 3> from_to_tag, std::vector<std::byte> message) {
    const std::lock_guard lock(mutex_);
    boxes_[from_to_tag].push_back(std::move(message));
  }
  bool take(std::array<int, 3> from_to_tag, std::vector<std::byte>& message) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[from_to_tag];
    if (box.empty()) return false;
    message = std::move(box.front());
    box.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<std::array<int, 3>, std::deque<std::vector<std::byte>>> boxes_;
};

class MailLinks final : public Links {
 public:
  MailLinks(std::shared_ptr<Mailboxes> mail, int rank) : mail_(std::move(mail)), rank_(rank) {}

  Ticket send(int rank, int tag, const void* data, std::int64_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(data);
    mail_->put({rank_, rank, tag}, std::vector<std::byte>(begin, begin + bytes));
    return 0;
  }
  Ticket receive(int rank, int tag, void* data, std::int64_t bytes) override {
    receives_[++last_] = Receive{{rank, rank_, tag}, data, bytes};
    return last_;
  }
  State state(Ticket ticket) override {
    if (ticket == 0) return State::kDone;
    const Receive receive = receives_[ticket];
    for (const auto& [other, earlier] : receives_) {
      if (other == ticket) break;
      if (earlier.box == receive.box) return State::kMoving;  // first come, first served
    }
    std::vector<std::byte> message;
    if (!mail_->take(receive.box, message)) return State::kMoving;
    receives_.erase(ticket);
    if (static_cast<std::int64_t>(message.size()) != receive.bytes) {
      problem_ = fmt::format("{} bytes came where {} were expected", message.size(), receive.bytes);
      return State::kBroken;
    }
    std::memcpy(receive.data, message.data(), message.size());
    return State::kDone;
  }
  std::string problem() const override { return problem_; }

 private:
  struct Receive {
    std::array<int, 3> box;
    void* data;
    std::int64_t bytes;
  };
  std::shared_ptr<Mailboxes> mail_;
  const int rank_;
  Ticket last_ = 0;
  std::map<Ticket, Receive> receives_;
  std::string problem_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> thread_ranks(int n) { return thread_ranks(std::vector<int>(static_cast<std::size_t>(std::max(1, n)), 0)); }

std::vector<std::unique_ptr<Comm>> thread_ranks(std::span<const int> hosts) {
  struct Host {
    int ranks = 0;
    std::shared_ptr<std::byte> segment;
  };
  const auto ranks = static_cast<int>(hosts.size());
  const auto memory = memory_of_threads();
  const auto mail = std::make_shared<Mailboxes>();
  std::map<int, Host> by_number;
  std::vector<Place> places;
  for (int rank = 0; rank < ranks; ++rank) {
    places.push_back({.world = rank, .host = hosts[static_cast<std::size_t>(rank)]});
    ++by_number[places.back().host].ranks;
  }
  const std::shared_ptr<std::byte> notices = private_memory(Notices::bytes(ranks));  // as if messages had brought news of a failure at once
  for (auto& [number, host] : by_number) host.segment = private_memory(Segment::bytes(host.ranks, by_number.size() == 1));
  std::vector<std::unique_ptr<Comm>> group;
  for (int rank = 0; rank < ranks; ++rank) {
    auto world = std::make_shared<World>();
    world->rank = world->local = rank;
    world->notices_memory = notices;
    world->notices.memory = notices.get();
    world->memory = memory;
    if (by_number.size() > 1) world->links = std::make_shared<MailLinks>(mail, rank);
    group.push_back(std::make_unique<Group>(std::move(world), places, rank, 0, by_number[places[static_cast<std::size_t>(rank)].host].segment));
  }
  return group;
}

}  // namespace inflight::comm
