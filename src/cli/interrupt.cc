#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace inflight::cli {
namespace {

volatile std::sig_atomic_t seen = 0;
volatile std::sig_atomic_t second_kills = 0;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};  // the last two only where asked for
struct sigaction previous[3];

void on_interrupt(int signal) {
  if (seen && second_kills) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  seen = 1;
}

}  // namespace

InterruptGuard::InterruptGuard(bool hard_second, bool termination) : termination_(termination) {
  seen = 0;
  second_kills = hard_second ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read that waits for a line returns
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < (termination_ ? 3 : 1); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

InterruptGuard::~InterruptGuard() {
  for (int i = 0; i < (termination_ ? 3 : 1); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

bool interrupted() { return seen != 0; }
void clear_interrupt() { seen = 0; }

}  // namespace inflight::cli
