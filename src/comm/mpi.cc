#include "comm/mpi.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "comm/monitor.h"
#include "comm/mpi_library.h"
#include "comm/neighbours.h"
#include "comm/side_channel.h"

namespace inflight::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStartTag = 0, kWorldTag = 1;
constexpr std::chrono::seconds kStartPatience{60}, kConnectPatience{30};

int number_from(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? -1 : std::atoi(text);
}

// What a rank tells all others at the start.
struct Card {
  std::array<char, 256> problem{};  // why it cannot go on
  std::array<char, 128> host{};     // for people
  std::array<char, 256> identity{};  // equal: they can share memory
  std::array<char, 768> meeting{};  // rank 0's
  std::array<char, SharedMemory::kNameBytes> notices{}, segment{};  // of the first rank of a host
  std::int64_t process = 0;
};

template <std::size_t n>
void put(std::array<char, n>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), n - 1));
}

// Ranks share memory through /proc, so containers of one machine that do not see each other's processes count as hosts.
void put_host(Card& card) {
  std::array<char, 256> name{}, pids{};
  (void)::gethostname(name.data(), name.size() - 1);
  if (::readlink("/proc/self/ns/pid", pids.data(), pids.size() - 1) < 0) pids = {};
  const char* given = std::getenv("INFLIGHT_HOST_NAME");
  const std::string host = given != nullptr && *given != 0 ? given : name.data();
  put(card.host, host);
  put(card.identity, fmt::format("{} {} {}", host, boot_id(), pids.data()));
}

Result<void> finish_all(Links& links, std::vector<Links::Ticket> tickets) {
  const auto deadline = Clock::now() + kStartPatience;
  while (!tickets.empty()) {
    bool broken = false;
    std::erase_if(tickets, [&](Links::Ticket ticket) {
      const Links::State state = ticket < 0 ? Links::State::kBroken : links.state(ticket);
      broken = broken || state == Links::State::kBroken;
      return state != Links::State::kMoving;
    });
    if (broken) return fail(Code::kInternal, "the ranks cannot exchange messages over MPI: {}", links.problem());
    if (Clock::now() > deadline) return fail(Code::kInternal, "other ranks gave no answer at the start for {} s", kStartPatience.count());
    std::this_thread::yield();
  }
  return {};
}

// Every rank's card to all; an error that one of them has is everybody's.
Result<std::vector<Card>> exchange(MpiLinks& links, const Card& mine) {
  const int rank = links.rank(), size = links.size();
  std::vector<Card> cards(static_cast<std::size_t>(size));
  cards[static_cast<std::size_t>(rank)] = mine;
  const auto bytes = static_cast<std::int64_t>(cards.size() * sizeof(Card));
  std::vector<Links::Ticket> tickets;
  if (rank == 0) {
    for (int r = 1; r < size; ++r) tickets.push_back(links.receive(r, kStartTag, &cards[static_cast<std::size_t>(r)], sizeof(Card)));
    TRY(finish_all(links, std::move(tickets)));
    tickets.clear();
    for (int r = 1; r < size; ++r) tickets.push_back(links.send(r, kStartTag, cards.data(), bytes));
  } else {
    tickets.push_back(links.send(0, kStartTag, &mine, sizeof mine));
    tickets.push_back(links.receive(0, kStartTag, cards.data(), bytes));
  }
  TRY(finish_all(links, std::move(tickets)));
  for (int r = 0; r < size; ++r)
    if (const Card& card = cards[static_cast<std::size_t>(r)]; card.problem[0] != 0)
      return fail(Code::kInternal, "rank {} on host {} cannot start: {}", r, card.host.data(), card.problem.data());
  return cards;
}

// All that a rank of a job holds, in the order in which it is let go.
struct Job {
  std::unique_ptr<TermBlocked> term;
  std::shared_ptr<MpiLinks> links;
  std::shared_ptr<World> world;
  std::unique_ptr<Monitor> monitor;
  std::unique_ptr<Group> group;

  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    if (!group) return;
    group->finish();
    if (!world->notices.failure().failed()) {
      monitor->say_goodbye();
      (void)links->finish();  // the work is done, whatever it says
    }
    world->on_fail = nullptr;
    monitor.reset();
  }
};

// Memory of this host's ranks: the first of them makes it and puts the name on its card.
struct Shared {
  std::shared_ptr<std::byte> notices, segment;
};

Result<std::shared_ptr<Comm>> join(MpiOptions options) {
  auto job = std::make_shared<Job>();
  job->term = std::make_unique<TermBlocked>();
  job->links = TRY(MpiLinks::start());
  const int rank = job->links->rank(), size = job->links->size();
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const int launched = number_from(name); launched > 1 && size == 1)
      return fail(Code::kUnsupported, "the launcher started {} ranks ({}), but MPI sees only this one: they are of different MPIs; use Open MPI's mpirun", launched, name);

  Card mine;
  put_host(mine);
  mine.process = ::getpid();
  std::vector<Card> cards = TRY(exchange(*job->links, mine));
  std::map<std::string, int> numbers;
  std::vector<Place> places;
  std::vector<RankName> names;
  std::vector<int> here;
  for (int r = 0; r < size; ++r) {
    const Card& card = cards[static_cast<std::size_t>(r)];
    const bool same = card.identity == mine.identity;
    names.push_back({.local_here = same ? static_cast<int>(here.size()) : -1, .host = card.host.data(), .process = card.process});
    if (same) here.push_back(r);
    places.push_back({.world = r, .host = numbers.emplace(card.identity.data(), static_cast<int>(numbers.size())).first->second});
  }

  // Rank 0's door, and every host's memory.
  const std::int64_t notices_bytes = Notices::bytes(static_cast<int>(here.size())), segment_bytes = Segment::bytes(static_cast<int>(here.size()), numbers.size() == 1);
  const auto memory = memory_of_processes();
  Shared shared;
  std::string notices_name, segment_name;
  std::optional<Listener> listener;
  const auto prepare = [&]() -> Result<void> {
    if (rank == 0) {
      listener.emplace(TRY(Listener::open(numbers.size() == 1)));
      put(mine.meeting, listener->meeting().text());
    }
    if (here[0] == rank) {
      shared.notices = TRY(memory->create(notices_bytes, notices_name));
      shared.segment = TRY(memory->create(segment_bytes, segment_name));
      put(mine.notices, notices_name);
      put(mine.segment, segment_name);
    }
    return {};
  };
  if (const auto done = prepare(); !done) put(mine.problem, done.error().message);
  cards = TRY(exchange(*job->links, mine));

  const auto attach = [&]() -> Result<void> {
    const Card& first = cards[static_cast<std::size_t>(here[0])];
    if (here[0] == rank) return {};
    shared.notices = TRY(memory->attach(first.notices.data(), notices_bytes));
    shared.segment = TRY(memory->attach(first.segment.data(), segment_bytes));
    return {};
  };
  std::vector<Channel> channels(static_cast<std::size_t>(size));
  const auto connect = [&]() -> Result<void> {
    TRY(attach());
    if (rank == 0) channels = TRY(listener->accept(size, kConnectPatience));
    else channels[0] = TRY(connect_to(Meeting::parse(cards[0].meeting.data()), rank, kConnectPatience));
    return {};
  };
  if (const auto done = connect(); !done) put(mine.problem, done.error().message);
  cards = TRY(exchange(*job->links, mine));
  memory->forget(notices_name);
  memory->forget(segment_name);

  auto world = std::make_shared<World>();
  world->rank = rank;
  world->local = names[static_cast<std::size_t>(rank)].local_here;
  world->notices_memory = shared.notices;
  world->notices.memory = shared.notices.get();
  world->memory = memory;
  world->next_tag = kWorldTag + 1;
  if (numbers.size() > 1) world->links = job->links;
  job->world = world;
  job->monitor = std::make_unique<Monitor>(world, std::move(names), std::move(channels), std::move(options));
  world->on_fail = [monitor = job->monitor.get()](const Error&) { monitor->wake(); };
  job->group = std::make_unique<Group>(world, std::move(places), rank, kWorldTag, shared.segment);
  return std::shared_ptr<Comm>(job, job->group.get());
}

}  // namespace

bool launched_by_mpi() {
  if (const int size = number_from("OMPI_COMM_WORLD_SIZE"); size >= 0) return size > 1;
  if (const int size = number_from("PMI_SIZE"); size >= 0) return size > 1;
  if (number_from("SLURM_PROCID") >= 0) return number_from("SLURM_STEP_NUM_TASKS") > 1;  // a batch script's own step has no such number
  return number_from("PMIX_RANK") >= 0;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const int rank = number_from(name); rank >= 0) return rank;
  return 0;
}

Result<std::shared_ptr<Comm>> mpi_ranks(MpiOptions options) { return join(std::move(options)); }

}  // namespace inflight::comm
