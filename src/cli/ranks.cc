#include "cli/ranks.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/thread_pool.h"
#include "checkpoint/model_folder.h"
#include "cli/agreement.h"
#include "cli/console.h"
#include "cli/launch.h"
#include "comm/mpi.h"
#include "comm/neighbours.h"
#include "engine/ranks.h"
#include "kernels/dispatch.h"

namespace inflight::cli {
namespace {

// What rank 0 tells the others between models.
struct Order {
  enum Kind : std::int32_t { kOpen, kShare, kEnd };
  std::int32_t kind = kEnd;
  std::int32_t number = 0;  // of the model; of kEnd: the exit code
};

std::int64_t ranks_of(const engine::EngineOptions& options) { return std::int64_t{options.tensor_parallel_size} * options.data_parallel_size; }

// "--tensor-parallel-size 2 --data-parallel-size 4 (8 ranks)"
std::string sizes_of(const engine::EngineOptions& options) {
  std::string text = fmt::format("--tensor-parallel-size {}", options.tensor_parallel_size);
  if (options.data_parallel_size > 1) text += fmt::format(" by --data-parallel-size {}", options.data_parallel_size);
  return text;
}

// A failure of the group is told once by this process, by whichever thread sees it first.
std::atomic<bool> told{false};
void tell_once(const Error& error) {
  if (!told.exchange(true)) note("inflight: {}", error.message);
}

Error wrong_size(const engine::EngineOptions& options, int started) {
  const std::int64_t wanted = ranks_of(options);
  if (wanted == 1)
    return {Code::kInvalidArgument, fmt::format("{} ranks were started, but {} asks for one; add --tensor-parallel-size {} (or --data-parallel-size), or start it without mpirun", started, sizes_of(options), started)};
  return {Code::kInvalidArgument, fmt::format("{} needs {} rank{}, but {} {} started; the line is: mpirun -n {} inflight ...", sizes_of(options), wanted, wanted == 1 ? "" : "s", started,
                                              started == 1 ? "was" : "were", wanted)};
}

// Ranks that may use the same CPUs of the same machine take a share of them each. A launcher that has dealt them out already is obeyed.
void share_cpus(comm::Comm& ranks, int threads) {
  const comm::Neighbours neighbours = comm::neighbours(ranks);
  if (!ranks.error()) take_cpu_share(neighbours.before, neighbours.same_cpus, threads);
}

Facts facts_of_program(std::string_view command, const engine::EngineOptions& options) {
  const auto kernels = kernels::choose();
  Facts facts = {{"version", INFLIGHT_VERSION}, {"instruction set", kernels ? (*kernels)->isa : "none"}, {"command", std::string(command)}};
  const Facts more = facts_of(options);
  facts.insert(facts.end(), more.begin(), more.end());
  return facts;
}

Result<std::unique_ptr<engine::OpenedModel>> open_agreed(const ModelArguments& arguments, const std::string& folder, const engine::LoadProgress& progress) {
  TRY(agree_on_checkpoint(arguments, folder));
  if (arguments.by_shares) return engine::open_share(folder, arguments.engine, progress, arguments.ranks);
  return engine::open_model(folder, arguments.engine, progress, arguments.ranks);
}

// Ranks other than 0, until rank 0 says that it is over. Returns its exit code.
Result<int> follow_rank_zero(comm::Comm& ranks, const Action& action, const std::vector<ModelArguments>& models) {
  for (;;) {
    std::vector<std::unique_ptr<engine::OpenedModel>> opened;
    while (opened.size() < models.size()) {
      Order order;
      ranks.state("waits for rank 0");
      ranks.broadcast(&order, sizeof order, 0);
      if (const auto error = ranks.error()) return std::unexpected(*error);
      if (order.kind == Order::kEnd) return order.number;
      if (order.kind == Order::kShare) {
        (void)action.share();  // rank 0 says what was wrong, and ends
        if (const auto error = ranks.error()) return std::unexpected(*error);
        continue;
      }
      const ModelArguments& model = models[static_cast<std::size_t>(order.number)];
      const Result<std::string> folder = checkpoint::resolve_model_folder(model.model);
      if (!folder) ranks.fail(folder.error());
      auto one = open_agreed(model, folder.value_or(model.model), [&ranks](std::int64_t, std::int64_t) { return ranks.tick(), true; });
      if (const auto error = ranks.error()) return std::unexpected(*error);
      if (one) opened.push_back(*std::move(one));  // otherwise rank 0 says why, and ends
    }
    std::vector<engine::OpenedModel*> all;
    for (const auto& model : opened) all.push_back(model.get());
    TRY(engine::follow(all));
  }
}

// Rank 0's end is everybody's, however it comes.
class EndOfRanks {
 public:
  explicit EndOfRanks(comm::Comm& ranks) : ranks_(ranks) {}
  ~EndOfRanks() {
    Order order{Order::kEnd, code};
    ranks_.broadcast(&order, sizeof order, 0);
  }
  int code = kFailed;

 private:
  comm::Comm& ranks_;
};

// All is said before the others hear of the end: the launcher ends the rest of a job whose first rank has ended with a failure.
int lead(const Action& action, comm::Comm& ranks) {
  EndOfRanks end(ranks);
  const Result<int> outcome = action.run();
  const std::optional<Error> failure = ranks.error();
  // Where rank 0 itself gave up loading, the command knows why.
  if (failure && (failure->code != Code::kCancelled || outcome || outcome.error().code == Code::kCancelled)) {
    tell_once(*failure);
    end.code = exit_code(failure->code);
  } else if (!outcome) {
    tell_once(outcome.error());
    end.code = exit_code(outcome.error().code);
  } else {
    end.code = output_failed() ? kFailed : *outcome;
  }
  report_exit_code(end.code);
  return end.code;
}

int interrupt_door = -1;

// Ctrl-C while rank 0 has no work that ends at its next step: all ranks end, and nobody calls it a failure.
class EndOnInterrupt {
 public:
  explicit EndOnInterrupt(std::shared_ptr<comm::Comm> ranks) : door_(::eventfd(0, EFD_CLOEXEC)) {
    interrupt_door = door_;
    std::signal(SIGINT, [](int) {
      const std::uint64_t one = 1;
      (void)!::write(interrupt_door, &one, sizeof one);
    });
    thread_ = std::thread([this, ranks = std::move(ranks)] {
      std::uint64_t count = 0;
      while (::read(door_, &count, sizeof count) < 0 && errno == EINTR) {}
      if (over_) return;
      told.store(true);
      ranks->fail({Code::kCancelled, "interrupted"});
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others hear of it
      report_exit_code(128 + SIGINT);
      ::_exit(128 + SIGINT);
    });
  }
  ~EndOnInterrupt() {
    std::signal(SIGINT, SIG_DFL);
    over_ = true;
    const std::uint64_t one = 1;
    (void)!::write(door_, &one, sizeof one);
    thread_.join();
    ::close(door_);
  }
  EndOnInterrupt(const EndOnInterrupt&) = delete;
  EndOnInterrupt& operator=(const EndOnInterrupt&) = delete;

 private:
  const int door_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

std::optional<Error> cancelled;  // what the watch over the ranks says if rank 0's command cannot any more

comm::MpiOptions mpi_options() {
  comm::MpiOptions options;
  options.on_failure = [](const Error& error, bool speaks) {
    if (speaks && error.code != Code::kCancelled) tell_once(error);
    if (speaks && error.code == Code::kCancelled) cancelled = error;
  };
  options.end = [] {
    if (cancelled) tell_once(*cancelled);
    report_exit_code(kFailed);
    ::_exit(kFailed);
  };
  return options;
}

}  // namespace

Result<void> agree_on_checkpoint(const ModelArguments& arguments, const std::string& folder, const Facts& facts) {
  comm::Comm& ranks = *arguments.ranks;
  ranks.state("reads the headers of the checkpoint");
  const auto checkpoint = checkpoint::Checkpoint::open(folder);
  if (!checkpoint) ranks.fail(checkpoint.error());
  Facts all = checkpoint ? facts_of(*checkpoint) : Facts();
  all.insert(all.end(), facts.begin(), facts.end());
  return comm::agree(ranks, all);
}

Result<int> run_on_ranks(const Action& action, std::string_view command, const std::vector<std::string>& words) {
  ModelArguments& model = *action.model;
  const bool launched = comm::launched_by_mpi();
  if (!launched && ranks_of(model.engine) == 1) return action.run();
  if (!launched) {
    TRY(check(model));
    if (std::getenv("OMPI_COMM_WORLD_SIZE")) return std::unexpected(wrong_size(model.engine, 1));  // mpirun -n 1
    TRY(comm::find_mpi());
    return launch_local_ranks(static_cast<int>(ranks_of(model.engine)), words);
  }

  set_rank(comm::launched_rank());
  std::shared_ptr<comm::Comm> ranks = TRY(comm::mpi_ranks(mpi_options()));
  set_rank(ranks->rank());
  const bool first = ranks->rank() == 0;
  if (ranks->size() != ranks_of(model.engine) || !check(model)) {
    const Error error = ranks->size() != ranks_of(model.engine) ? wrong_size(model.engine, ranks->size()) : check(model).error();
    if (first) tell_once(error);
    return exit_code(error.code);
  }
  if (const auto agreed = comm::agree(*ranks, facts_of_program(command, model.engine)); !agreed) {
    if (first) tell_once(agreed.error());
    return exit_code(agreed.error().code);
  }
  share_cpus(*ranks, model.engine.threads);

  model.ranks = ranks;
  std::vector<ModelArguments> models = action.models ? action.models() : std::vector<ModelArguments>{model};
  int code = kFailed;
  if (first) {
    const EndOnInterrupt guard(ranks);
    code = lead(action, *ranks);
  } else {
    std::signal(SIGINT, SIG_IGN);  // rank 0 decides
    const Result<int> outcome = follow_rank_zero(*ranks, action, models);
    code = outcome ? *outcome : exit_code(outcome.error().code);  // rank 0 says why, or, without it, the watch over the ranks
  }
  models.clear();
  model.ranks.reset();
  ranks.reset();
  return code;
}

Result<std::unique_ptr<engine::OpenedModel>> open_on_ranks(const ModelArguments& arguments, const std::string& folder, const engine::LoadProgress& progress) {
  if (!arguments.ranks) return engine::open_model(folder, arguments.engine, progress);
  if (!arguments.by_shares) {  // all are there otherwise
    Order order{Order::kOpen, arguments.number};
    arguments.ranks->broadcast(&order, sizeof order, 0);
  }
  return open_agreed(arguments, folder, [&](std::int64_t done, std::int64_t total) {
    arguments.ranks->tick();
    return !progress || progress(done, total);
  });
}

void share_work(const ModelArguments& arguments) {
  if (!arguments.ranks) return;
  Order order{Order::kShare, 0};
  arguments.ranks->broadcast(&order, sizeof order, 0);
}

}  // namespace inflight::cli
