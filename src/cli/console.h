// Standard output and standard error: text goes to the first, everything else to the second.
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace inflight::cli {

inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;

bool stdout_is_terminal();
bool stderr_is_terminal();

// Writes to standard output at once. false: nobody reads it any more (or the disk is full: then an error was printed);
// the caller should stop working. Later calls do nothing and return false.
bool print(std::string_view text);
bool output_closed();      // a print() failed
bool output_failed();      // ... for another reason than a reader that went away

// From now on this process is one of several that run a command. Of those above 0 every line on standard error says so, and no progress is shown.
void set_rank(int rank);

// One line on standard error; a progress bar on the way is wiped first.
void note(std::string_view line);
template <class... Args>
  requires(sizeof...(Args) > 0)
void note(fmt::format_string<Args...> format, Args&&... args) {
  note(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

// Prints "inflight: <message>" and returns the exit code of the error's kind.
int report(const Error& error);
int exit_code(Code code);

// SIGPIPE becomes a failed write. Standard streams that the caller closed get a descriptor on /dev/null, so that no file which is opened
// later takes their number and receives what is printed.
void prepare_standard_streams();

// A bar on standard error while something takes long; nothing at all when that is no terminal. One at a time.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();  // wipes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void bytes(std::int64_t done, std::int64_t total);   // with GB/s since the start
  void steps(std::int64_t done, std::int64_t total);   // with the time that is left
  void wipe();

 private:
  bool due(bool last);
  void draw(double share, const std::string& right);

  std::string title_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_at_;
  bool visible_ = false;
};

}  // namespace inflight::cli
