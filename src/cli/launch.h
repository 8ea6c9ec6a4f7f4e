// The ranks of one host, started through mpirun in such a way that rank 0 is what the user started: it has the user's standard streams and terminal, and its exit code.
//
// mpirun passes streams on through pipes of its own and reads some arguments itself. So every rank is started as `inflight local-rank ADDRESS` and gets from the first
// process, over a Unix socket, the arguments and the standard streams: rank 0 all three, the others standard error.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace inflight::cli {

inline constexpr const char* kLocalRank = "local-rank";  // the hidden command

// Runs `inflight ARGUMENTS...` on `ranks` processes and returns rank 0's exit code. A signal that ends rank 0 ends this process in the same way.
Result<int> launch_local_ranks(int ranks, const std::vector<std::string>& arguments);

// In a process that launch_local_ranks started: takes the standard streams and returns the arguments.
Result<std::vector<std::string>> join_launcher(const std::string& address);

// A rank's last word to the launcher, which listens to that of rank 0; nothing where there is none.
void report_exit_code(int code);

// Before rank 0 reads from the terminal: its process group becomes the one that may, and that Ctrl-C reaches.
void take_terminal();

}  // namespace inflight::cli
