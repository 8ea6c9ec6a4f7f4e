#include "comm/mpi_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <vector>

#include "comm/mpi.h"

namespace inflight::comm {
namespace {

constexpr const char* kName = "libinflight_mpi.so";
constexpr const char* kInstall = "install Open MPI (Debian: apt-get install openmpi-bin libopenmpi3)";

std::vector<std::string> places() {
  std::array<char, 4096> path{};
  std::vector<std::string> found;
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) {
    const std::filesystem::path folder = std::filesystem::path(path.data()).parent_path();
    found = {folder / kName, folder.parent_path() / "lib" / "inflight" / kName};
  }
  found.emplace_back(kName);
  return found;
}

// Its symbols, and those of the MPI behind it, are for all: that MPI's own plugins look for them.
Result<void*> open_plugin() {
  std::string tried;
  for (const std::string& place : places()) {
    const bool by_name = place == kName;
    std::error_code ignored;
    if (!by_name && !std::filesystem::exists(place, ignored)) {
      tried += fmt::format("\n  {}: no such file", place);
      continue;
    }
    if (void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    const char* reason = ::dlerror();
    // It is there; what it needs is not.
    if (!by_name) return fail(Code::kUnsupported, "several ranks need MPI, and {} cannot be opened: {}; {}", place, reason, kInstall);
    tried += fmt::format("\n  {}", reason);
  }
  return fail(Code::kUnsupported,
              "several ranks need {}, which is not here. It is built with the program where Open MPI's headers are (Debian: apt-get install libopenmpi-dev openmpi-bin, then "
              "build again). Looked for:{}",
              kName, tried);
}

}  // namespace

Result<void> find_mpi() {
  TRY(open_plugin());
  return {};
}

Result<std::shared_ptr<MpiLinks>> MpiLinks::start() {
  void* library = TRY(open_plugin());
  const auto* table = static_cast<const InflightMpiTable*>(::dlsym(library, "inflight_mpi_table"));
  if (table == nullptr) return fail(Code::kUnsupported, "{} has no inflight_mpi_table: it is not this program's", kName);
  if (table->version != INFLIGHT_MPI_VERSION)
    return fail(Code::kUnsupported, "{} is of version {}, this program needs {}: they come from different builds; install both from one", kName, table->version, INFLIGHT_MPI_VERSION);
  if (const char* problem = table->start()) return fail(Code::kInternal, "MPI does not start: {}", problem);
  return std::shared_ptr<MpiLinks>(new MpiLinks(*table));
}

Result<void> MpiLinks::finish() {
  const std::lock_guard lock(mutex_);
  if (const char* problem = table_.finish()) return fail(Code::kInternal, "MPI does not end: {}", problem);
  return {};
}

Links::Ticket MpiLinks::send(int rank, int tag, const void* data, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return table_.send(rank, tag, data, bytes);
}

Links::Ticket MpiLinks::receive(int rank, int tag, void* data, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return table_.receive(rank, tag, data, bytes);
}

Links::State MpiLinks::state(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const int done = table_.done(ticket);
  return done == 0 ? State::kMoving : done > 0 ? State::kDone : State::kBroken;
}

std::string MpiLinks::problem() const {
  const std::lock_guard lock(mutex_);
  return table_.problem();
}

}  // namespace inflight::comm
