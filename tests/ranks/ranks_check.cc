// A program of several ranks, for run_ranks.py: checks the collectives, or works in steps until something happens to it.
//
//     mpirun -n 4 ranks_check collectives
//     mpirun -n 2 ranks_check steps [fail RANK | silent MS | busy RANK SECONDS | early RANK]
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/check_for_test.h"
#include "comm/mpi.h"

namespace {

using namespace inflight;

std::string option(int argc, char** argv, const char* name, int value = 1) {
  for (int i = 1; i + value < argc; ++i)
    if (std::string(argv[i]) == name) return argv[i + value];
  return "";
}

int collectives(comm::Comm& comm) {
  // Hosts as INFLIGHT_HOST_NAME names them.
  char mine[64] = {};
  const char* name = std::getenv("INFLIGHT_HOST_NAME");
  std::snprintf(mine, sizeof mine, "%s", name == nullptr ? "" : name);
  std::vector<char> all(static_cast<std::size_t>(comm.size()) * sizeof mine);
  comm.all_gather(mine, sizeof mine, all.data());
  std::vector<std::vector<int>> hosts;
  std::vector<std::string> names;
  std::vector<int> host_of;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::string host = all.data() + static_cast<std::size_t>(rank) * sizeof mine;
    std::size_t h = 0;
    while (h < names.size() && names[h] != host) ++h;
    if (h == names.size()) {
      names.push_back(host);
      hosts.emplace_back();
    }
    hosts[h].push_back(rank);
    host_of.push_back(static_cast<int>(h));
  }
  std::string wrong = comm::check::collectives(comm, 3, hosts);
  if (wrong.empty()) wrong = comm::check::splits(comm, host_of);
  if (!wrong.empty()) comm.fail(Error{Code::kInternal, wrong});
  comm.barrier();
  if (comm.error()) return 1;
  if (comm.rank() == 0) std::printf("%d ranks on %zu hosts: good\n", comm.size(), hosts.size());
  return 0;
}

int steps(comm::Comm& comm, int argc, char** argv) {
  const std::string failing = option(argc, argv, "fail"), busy = option(argc, argv, "busy"), early = option(argc, argv, "early"), last = option(argc, argv, "last");
  std::vector<float> values(1000, 1.0f);
  for (int step = 0; !comm.error(); ++step) {
    if (!last.empty() && step == std::stoi(last)) return 0;
    for (int layer = 0; layer < 4; ++layer) {
      comm.state("step #, layer #", step, layer);
      comm.all_reduce_sum(values.data(), static_cast<std::int64_t>(values.size()));
      std::fill(values.begin(), values.end(), 1.0f);
    }
    if (step != 20) continue;
    if (comm.rank() == 0) {
      std::printf("working\n");
      std::fflush(stdout);
    }
    if (failing == std::to_string(comm.rank())) comm.fail(Error{Code::kCorrupt, "\"model.safetensors\" is too short"});
    if (early == std::to_string(comm.rank())) return 0;
    if (busy == std::to_string(comm.rank())) std::this_thread::sleep_for(std::chrono::seconds(std::stoi(option(argc, argv, "busy", 2))));
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  comm::MpiOptions options;
  options.on_failure = [](const Error& error, bool speaks) {
    if (speaks) std::fprintf(stderr, "error: %s\n", error.message.c_str());
  };
  options.end = [] { ::_exit(1); };
  if (const std::string stuck = option(argc, argv, "stuck"); !stuck.empty()) options.stuck = std::chrono::seconds(std::stoi(stuck));
  auto comm = comm::mpi_ranks(options);
  if (!comm) {
    if (comm::launched_rank() == 0) std::fprintf(stderr, "error: %s\n", comm.error().message.c_str());
    return 1;
  }
  std::fprintf(stderr, "rank %d is process %d\n", (*comm)->rank(), static_cast<int>(::getpid()));
  int code = 2;
  if (mode == "collectives") code = collectives(**comm);
  if (mode == "steps") code = steps(**comm, argc, argv);
  return code;
}
