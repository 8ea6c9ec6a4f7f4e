// Ranks that are processes, started by mpirun, srun or another launcher of MPI jobs, on one host or several.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "comm/comm.h"

namespace inflight::comm {

// True in a process that such a launcher started as one of several; by environment variables alone.
bool launched_by_mpi();
// Its rank, likewise; 0 where there is none. For messages before there is a group.
int launched_rank();

// Whether mpi_ranks() would find what it needs here. Starts nothing.
Result<void> find_mpi();

struct MpiOptions {
  // Called once, on a thread of its own, when the group has failed. `speaks`: this rank is the one that tells the user (rank 0, unless it is the one that is lost).
  // The launcher may kill this process a second later, and the calling thread may hang: say it now.
  std::function<void(const Error& error, bool speaks)> on_failure;
  // Ends the process, with exit code 1: called when it lives on `grace` after on_failure.
  std::function<void()> end;
  std::chrono::milliseconds grace{2000};
  // A rank that neither enters a collective nor calls state() or tick() for so long while others wait for it is taken for hung; rank 0 may take any time.
  std::chrono::seconds stuck{120};
  // A rank that gives no sign of life for so long (stopped, its host gone) is taken for dead.
  std::chrono::milliseconds silent{6000};
};

// The group of all ranks of the job. Call it on the main thread, before other threads are started: SIGTERM, by which launchers end a job, is blocked from then on
// and watched by a thread, so that a rank that died can still be named. Letting go of the last reference ends the job in order, together with the other ranks;
// after a failure, at once.
// INFLIGHT_HOST_NAME: this process's host, where the real one's name is not what counts; ranks of unlike names share no memory.
Result<std::shared_ptr<Comm>> mpi_ranks(MpiOptions options);

}  // namespace inflight::comm
