// Ctrl-C while something can be stopped: work ends at the next step instead of the program. Outside a guard signals kill, as usual.
#pragma once

namespace inflight::cli {

// While one lives, the first SIGINT only sets a flag; a second one within the same guard ends the program at once (as SIGINT does).
class InterruptGuard {
 public:
  // hard_second: false keeps the program alive whatever comes (an interactive chat).
  // termination: SIGTERM and SIGHUP count as well, for work that must clean up after itself.
  explicit InterruptGuard(bool hard_second = true, bool termination = false);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  bool termination_;
};

bool interrupted();
void clear_interrupt();

}  // namespace inflight::cli
