#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace inflight::cli {
namespace {

volatile std::sig_atomic_t seen = 0;
volatile std::sig_atomic_t second_kills = 0;
struct sigaction previous;

void on_interrupt(int) {
  if (seen && second_kills) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  seen = 1;
}

}  // namespace

InterruptGuard::InterruptGuard(bool hard_second) {
  seen = 0;
  second_kills = hard_second ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read that waits for a line returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous, nullptr); }

bool interrupted() { return seen != 0; }
void clear_interrupt() { seen = 0; }

}  // namespace inflight::cli
