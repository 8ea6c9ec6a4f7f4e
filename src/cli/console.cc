#include "cli/console.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/format.h"

namespace inflight::cli {
namespace {

bool closed = false;
bool failed = false;
int rank = 0;
ProgressBar* bar = nullptr;

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && !(term && std::strcmp(term, "dumb") == 0);
}

bool print(std::string_view text) {
  if (closed) return false;
  if (write_all(STDOUT_FILENO, text)) return true;
  closed = true;
  if (errno != EPIPE) {
    failed = true;
    note("inflight: cannot write to standard output: {}", std::strerror(errno));
  }
  return false;
}

bool output_closed() { return closed; }
bool output_failed() { return failed; }

void set_rank(int rank_) { rank = rank_; }

void note(std::string_view line) {
  if (bar) bar->wipe();
  std::string text = rank > 0 ? fmt::format("rank {}: {}", rank, line) : std::string(line);
  text += '\n';
  write_all(STDERR_FILENO, text);
}

int exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kCorrupt:
    case Code::kUnsupported: return kUsage;
    case Code::kExhausted:
    case Code::kCancelled:
    case Code::kInternal: return kFailed;
  }
  return kFailed;
}

int report(const Error& error) {
  note("inflight: {}", error.message);
  return exit_code(error.code);
}

void prepare_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free number is this one. Reading the first and writing the second still fail, as they do on a closed descriptor.
    if (::open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY) < 0) return;
  }
}

ProgressBar::ProgressBar(std::string title) : title_(std::move(title)), start_(std::chrono::steady_clock::now()), drawn_at_(start_) {
  if (stderr_is_terminal() && rank == 0) bar = this;
}

ProgressBar::~ProgressBar() {
  wipe();
  if (bar == this) bar = nullptr;
}

// At most ten times a second, and not in the first fifth of a second: short work shows no bar.
bool ProgressBar::due(bool last) {
  if (bar != this || last) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_at_ < std::chrono::milliseconds(visible_ ? 100 : 200)) return false;
  drawn_at_ = now;
  return true;
}

void ProgressBar::bytes(std::int64_t done, std::int64_t total) {
  if (!due(done >= total)) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  draw(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0,
       fmt::format("{} of {}  {}", human_bytes(done), human_bytes(total), gigabytes_per_second(static_cast<double>(done), seconds)));
}

void ProgressBar::steps(std::int64_t done, std::int64_t total) {
  if (!due(done >= total)) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
  draw(share, fmt::format("{} of {}  {} left", done, total, done > 0 ? human_seconds(seconds / share - seconds) : "?"));
}

void ProgressBar::draw(double share, const std::string& right) {
  const int columns = terminal_columns() - 1;  // the last column would wrap on some terminals
  const int room = columns - static_cast<int>(title_.size() + right.size()) - 4;
  std::string line = title_;
  if (room >= 8) {
    const int width = std::min(room, 40);
    const int filled = std::clamp(static_cast<int>(share * width + 0.5), 0, width);
    line += " [" + std::string(static_cast<std::size_t>(filled), '#') + std::string(static_cast<std::size_t>(width - filled), '.') + "]";
  }
  line += " " + right;
  if (static_cast<int>(line.size()) > columns) line.resize(static_cast<std::size_t>(std::max(columns, 0)));
  write_all(STDERR_FILENO, "\r" + line + "\x1b[K");
  visible_ = true;
}

void ProgressBar::wipe() {
  if (visible_) write_all(STDERR_FILENO, "\r\x1b[K");
  visible_ = false;
}

}  // namespace inflight::cli
