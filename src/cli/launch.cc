#include "cli/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/console.h"

namespace inflight::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostOutput = 16 << 10;            // of mpirun's own words that are kept
constexpr std::chrono::seconds kEnd{3};                  // from rank 0's end to that of mpirun; then it is ended
constexpr std::size_t kMostStreams = 16;                 // that a rank can get
constexpr int kAboveStreams = 256;                       // descriptors from here on are none of them
constexpr char kTerminal = 't', kTaken = 'T', kExit = 'x';  // messages of a rank: "t" wants the terminal and gets "T"; "x" and a byte: its exit code

// A descriptor with an owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  void close() { *this = Descriptor(); }

 private:
  int number_ = -1;
};

int& launcher() {
  static int descriptor = -1;
  return descriptor;
}

Error system_error(std::string_view what) { return Error{Code::kInternal, fmt::format("cannot {}: {}", what, std::strerror(errno))}; }

bool send_all(int descriptor, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int descriptor, void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(descriptor, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// What a rank gets first, beside the descriptors themselves; then come `bytes` of arguments.
struct Welcome {
  std::uint64_t bytes = 0;
  std::uint32_t streams = 0;
  std::int32_t numbers[kMostStreams] = {};  // of the descriptors here, and so there
};

// The standard streams, and what the shell hands over as an argument: generate MODEL --prompts <(program).
std::vector<int> streams_of(const std::vector<std::string>& arguments) {
  std::vector<int> numbers = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  for (const std::string& argument : arguments) {
    static constexpr std::string_view kFolder = "/dev/fd/";
    const std::size_t at = argument.rfind(kFolder);
    if (at == std::string::npos) continue;
    const int number = std::atoi(argument.c_str() + at + kFolder.size());
    if (number > STDERR_FILENO && number < kAboveStreams && numbers.size() < kMostStreams && ::fcntl(number, F_GETFD) != -1) numbers.push_back(number);
  }
  return numbers;
}

// Sockets by a name that is no file: nothing stays when everybody is killed.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof address.sun_path - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::min(name.size(), sizeof address.sun_path - 1));
}

std::optional<ucred> peer_of(int descriptor) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != ::getuid()) return std::nullopt;
  return peer;
}

std::string find_in_path(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    std::string candidate = fmt::format("{}/{}", rest.substr(0, colon), name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
  }
  return {};
}

std::vector<std::string> mpirun_arguments(const std::string& mpirun, int ranks, const std::string& address, const std::string& program) {
  std::vector<std::string> words = {mpirun};
  if (::geteuid() == 0) words.push_back("--allow-run-as-root");
  // Ranks deal the CPUs out among themselves; a second run must not meet the first one's ranks on the same cores while others idle.
  words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  // This host alone, whatever the environment says of hosts, and nothing to be reached from outside it.
  words.insert(words.end(), {"--mca", "ras", "^slurm,gridengine,tm,lsf,loadleveler", "--mca", "plm", "isolated", "--mca", "oob_tcp_if_include", "lo", "--mca", "btl", "self,vader"});
  words.insert(words.end(), {"-n", std::to_string(ranks), program, kLocalRank, address});
  return words;
}

class Launcher {
 public:
  Launcher(int ranks, const std::vector<std::string>& arguments) : ranks_(ranks), streams_(streams_of(arguments)) {
    for (const std::string& argument : arguments) {
      packed_ += argument;
      packed_ += '\0';
    }
  }
  ~Launcher() { ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  Result<int> run() {
    const std::string mpirun = find_in_path("mpirun");
    if (mpirun.empty())
      return fail(Code::kNotFound, "{} ranks need mpirun of Open MPI, which is not in PATH; install it (Debian, Ubuntu: apt-get install openmpi-bin; Fedora: dnf install openmpi and `module load mpi`)", ranks_);
    TRY(listen());
    TRY(take_signals());
    if (::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &modes_) == 0) has_modes_ = true;
    TRY(start(mpirun));
    while (!ended_) wait_once();
    return outcome();
  }

 private:
  struct Rank {
    Descriptor socket;
    pid_t process = 0;
    int rank = -1;  // not told yet
  };

  Result<void> listen() {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) return std::unexpected(system_error("draw a random number"));
    name_ = fmt::format("inflight-{}-{:016x}", ::getpid(), random);
    listener_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t bytes = abstract_address(name_, address);
    if (!listener_ || ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 || ::listen(listener_.get(), ranks_) != 0)
      return std::unexpected(system_error("make a socket for the ranks"));
    return {};
  }

  Result<void> take_signals() {
    sigset_t mask;
    ::sigemptyset(&mask);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGTSTP}) ::sigaddset(&mask, signal);
    ::sigprocmask(SIG_BLOCK, &mask, &old_mask_);
    ::signal(SIGTTOU, SIG_IGN);  // giving the terminal away and back from the background
    signals_ = Descriptor(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) return std::unexpected(system_error("receive signals"));
    return {};
  }

  Result<void> start(const std::string& mpirun) {
    char program[4096];
    const ssize_t length = ::readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return std::unexpected(system_error("find this program's file"));
    const std::vector<std::string> words = mpirun_arguments(mpirun, ranks_, name_, std::string(program, static_cast<std::size_t>(length)));
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) return std::unexpected(system_error("make a pipe"));
    output_ = Descriptor(pipe[0]);
    const Descriptor write_end(pipe[1]);
    const pid_t parent = ::getpid();
    mpirun_ = ::fork();
    if (mpirun_ < 0) return std::unexpected(system_error("start mpirun"));
    if (mpirun_ == 0) {
      ::setpgid(0, 0);  // Ctrl-C is rank 0's to deal with
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(127);
      ::signal(SIGPIPE, SIG_DFL);
      ::signal(SIGTTOU, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
      const int null = ::open("/dev/null", O_RDONLY);
      if (null >= 0) ::dup2(null, STDIN_FILENO);
      ::dup2(pipe[1], STDOUT_FILENO);
      ::dup2(pipe[1], STDERR_FILENO);
      ::execv(mpirun.c_str(), arguments.data());
      ::_exit(127);
    }
    return {};
  }

  void wait_once() {
    std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}, {output_.get(), POLLIN, 0}};
    for (const Rank& rank : joined_) waits.push_back({rank.socket.get(), POLLIN, 0});
    int timeout = -1;
    if (zero_left_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*zero_left_ + kEnd - Clock::now()).count();
      timeout = static_cast<int>(std::max<std::int64_t>(left, 0)) + 1;
    }
    if (::poll(waits.data(), waits.size(), timeout) < 0) return;
    for (std::size_t i = 3; i < waits.size(); ++i)
      if (waits[i].revents) listen_to(joined_[i - 3]);
    std::erase_if(joined_, [](const Rank& rank) { return !rank.socket; });
    if (waits[2].revents) read_output();
    if (waits[1].revents) accept();
    if (waits[0].revents) read_signals();
    if (zero_left_ && Clock::now() >= *zero_left_ + kEnd) end_all();
  }

  void accept() {
    Rank rank;
    rank.socket = Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::optional<ucred> peer = rank.socket ? peer_of(rank.socket.get()) : std::nullopt;
    if (!peer) return;
    rank.process = peer->pid;
    joined_.push_back(std::move(rank));
  }

  // A rank's first message is its number; then those of rank 0.
  void listen_to(Rank& rank) {
    if (rank.rank < 0) {
      std::int32_t number = -1;
      if (!receive_all(rank.socket.get(), &number, sizeof number) || number < 0 || !welcome(rank.socket.get(), number)) return rank.socket.close();
      rank.rank = number;
      if (number == 0) {
        zero_ = rank.process;
        for (const int signal : std::exchange(early_signals_, {})) pass_on(signal);
      }
      return;
    }
    char message = 0;
    if (!receive_all(rank.socket.get(), &message, 1)) {
      if (rank.rank == 0) {
        zero_ = 0;
        zero_left_ = Clock::now();
        terminal_back();
      }
      return rank.socket.close();
    }
    unsigned char code = 0;
    if (message == kTerminal) {
      const int terminal = ::isatty(STDIN_FILENO) == 1 ? STDIN_FILENO : -1;
      if (terminal >= 0 && ::tcgetpgrp(terminal) == ::getpgrp()) given_ = ::tcsetpgrp(terminal, ::getpgid(rank.process)) == 0;
      send_all(rank.socket.get(), &kTaken, 1);
    } else if (message == kExit && receive_all(rank.socket.get(), &code, 1) && rank.rank == 0) {
      exit_code_ = code;
    }
  }

  bool welcome(int socket, int number) {
    const std::vector<int> streams = number == 0 ? streams_ : std::vector<int>{STDERR_FILENO};
    Welcome welcome{packed_.size(), static_cast<std::uint32_t>(streams.size()), {}};
    std::ranges::copy(streams, welcome.numbers);
    iovec part{&welcome, sizeof welcome};
    alignas(cmsghdr) char control[CMSG_SPACE(kMostStreams * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(streams.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(streams.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), streams.data(), streams.size() * sizeof(int));
    return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof welcome) && send_all(socket, packed_.data(), packed_.size());
  }

  void read_output() {
    char text[4096];
    const ssize_t count = ::read(output_.get(), text, sizeof text);
    if (count > 0) said_.append(text, std::min(static_cast<std::size_t>(count), kMostOutput - std::min(kMostOutput, said_.size())));
    else if (count == 0) output_.close();
  }

  void read_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) {
        if (::waitpid(mpirun_, &status_, WNOHANG) == mpirun_) ended_ = true;
      } else if (signal != SIGTSTP) {  // a run that stands still would look hung to itself
        if (zero_ > 0) pass_on(signal);
        else if (zero_left_) end_all();
        else early_signals_.push_back(signal);
        if (!zero_seen() && early_signals_.size() > 1) end_all();
      }
    }
  }

  void pass_on(int signal) {
    ::kill(zero_, signal);
    if (signal != SIGINT) ::kill(zero_, SIGCONT);  // one that was stopped could not end
  }

  bool zero_seen() const { return zero_ > 0 || zero_left_; }

  // What is still there is not wanted any more.
  void end_all() {
    for (const Rank& rank : joined_) ::kill(rank.process, SIGKILL);
    ::kill(mpirun_, zero_left_ && Clock::now() >= *zero_left_ + 2 * kEnd ? SIGKILL : SIGTERM);
    if (zero_left_) *zero_left_ += std::chrono::seconds(1);
  }

  void terminal_back() {
    if (given_) ::tcsetpgrp(STDIN_FILENO, ::getpgrp());
    if (has_modes_ && given_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &modes_);
    given_ = false;
  }

  Result<int> outcome() {
    while (output_ && !said_done()) read_output();
    if (exit_code_ && *exit_code_ != 128 + SIGINT) return *exit_code_;
    const int code = exit_code_ ? *exit_code_ : WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      if (code == 128 + signal || (!early_signals_.empty() && early_signals_[0] == signal)) {
        ::signal(signal, SIG_DFL);
        ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
        ::raise(signal);
      }
    if (!zero_seen()) {
      note(said_);
      return fail(Code::kInternal, "mpirun did not start the ranks (its exit code is {}); what it says is above", code);
    }
    return fail(Code::kInternal, "rank 0 has ended without a result (exit code {} of mpirun)", code);
  }

  bool said_done() const {
    pollfd wait{output_.get(), POLLIN, 0};
    return ::poll(&wait, 1, 0) <= 0;
  }

  const int ranks_;
  const std::vector<int> streams_;  // what rank 0 gets
  std::string packed_;  // the arguments, each with a zero after it
  std::string name_;
  Descriptor listener_, signals_, output_;
  sigset_t old_mask_{};
  termios modes_{};
  bool has_modes_ = false, given_ = false, ended_ = false;
  pid_t mpirun_ = 0, zero_ = 0;
  int status_ = 0;
  std::optional<Clock::time_point> zero_left_;
  std::vector<int> early_signals_;  // before rank 0 was there
  std::vector<Rank> joined_;
  std::optional<int> exit_code_;
  std::string said_;  // by mpirun
};

}  // namespace

Result<int> launch_local_ranks(int ranks, const std::vector<std::string>& arguments) { return Launcher(ranks, arguments).run(); }

Result<std::vector<std::string>> join_launcher(const std::string& address_name) {
  const char* number = std::getenv("OMPI_COMM_WORLD_RANK");
  if (!number) return fail(Code::kInvalidArgument, "{} is for inflight's own use: it starts its ranks with it", kLocalRank);
  const std::int32_t rank = std::atoi(number);
  const Descriptor low(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Descriptor socket(::fcntl(low.get(), F_DUPFD_CLOEXEC, kAboveStreams));
  sockaddr_un address;
  const socklen_t length = abstract_address(address_name, address);
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 || !peer_of(socket.get()) || !send_all(socket.get(), &rank, sizeof rank))
    return std::unexpected(system_error("reach the process that started this rank"));

  Welcome welcome;
  iovec part{&welcome, sizeof welcome};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostStreams * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  while ((got = ::recvmsg(socket.get(), &message, MSG_WAITALL)) < 0 && errno == EINTR) {}
  const cmsghdr* header = got == static_cast<ssize_t>(sizeof welcome) ? CMSG_FIRSTHDR(&message) : nullptr;
  std::string packed(welcome.bytes, '\0');
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(welcome.streams * sizeof(int)) || !receive_all(socket.get(), packed.data(), packed.size()))
    return fail(Code::kInternal, "the process that started this rank has gone");
  std::vector<Descriptor> above;  // first all out of the way of each other
  for (std::uint32_t i = 0; i < welcome.streams; ++i) {
    int stream;
    std::memcpy(&stream, CMSG_DATA(header) + i * sizeof(int), sizeof stream);
    above.emplace_back(::fcntl(stream, F_DUPFD_CLOEXEC, kAboveStreams));
    ::close(stream);
  }
  for (std::uint32_t i = 0; i < welcome.streams; ++i) ::dup2(above[i].get(), welcome.numbers[i]);
  launcher() = socket.release();
  ::signal(SIGTSTP, SIG_IGN);  // a rank that stands still would look hung to the others
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < packed.size(); at += arguments.back().size() + 1) arguments.emplace_back(packed.c_str() + at);
  return arguments;
}

void report_exit_code(int code) {
  const char message[2] = {kExit, static_cast<char>(code)};
  if (launcher() >= 0) send_all(launcher(), message, sizeof message);
}

void take_terminal() {
  static bool taken = false;
  if (launcher() < 0 || taken || ::isatty(STDIN_FILENO) != 1) return;
  taken = true;
  char answer = 0;
  if (send_all(launcher(), &kTerminal, 1)) receive_all(launcher(), &answer, 1);
}

}  // namespace inflight::cli
