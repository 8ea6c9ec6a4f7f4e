#include "comm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace inflight::comm {
namespace {

std::shared_ptr<std::byte> unmapped_at_end(void* memory, std::int64_t bytes) {
  return {static_cast<std::byte*>(memory), [bytes](std::byte* begin) { (void)::munmap(begin, static_cast<std::size_t>(bytes)); }};
}

class MemoryOfThreads final : public SharedMemory {
 public:
  Result<std::shared_ptr<std::byte>> create(std::int64_t bytes, std::string& name) override {
    std::shared_ptr<std::byte> memory = private_memory(bytes);
    const std::lock_guard lock(mutex_);
    name = std::to_string(++last_);
    memories_[name] = memory;
    return memory;
  }
  Result<std::shared_ptr<std::byte>> attach(const std::string& name, std::int64_t) override {
    const std::lock_guard lock(mutex_);
    const auto found = memories_.find(name);
    if (found == memories_.end()) return fail(Code::kInternal, "there is no shared memory \"{}\"", name);
    return found->second;
  }
  void forget(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    memories_.erase(name);
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::string, std::shared_ptr<std::byte>> memories_;
};

// A memory file without a name, which others open through its creator's folder in /proc while that holds it open: the last of them to end frees it.
class MemoryOfProcesses final : public SharedMemory {
 public:
  Result<std::shared_ptr<std::byte>> create(std::int64_t bytes, std::string& name) override {
    const int descriptor = ::memfd_create("inflight-ranks", MFD_CLOEXEC);
    if (descriptor < 0) return fail(Code::kExhausted, "cannot make memory that the ranks of this host share: {}", std::strerror(errno));
    // Taken now: a full host is an error here, and not a bus error later.
    if (const int error = ::ftruncate(descriptor, bytes) != 0 ? errno : ::posix_fallocate(descriptor, 0, bytes); error != 0) {
      ::close(descriptor);
      return fail(Code::kExhausted, "no {} bytes of memory that the ranks of this host share: {}", bytes, std::strerror(error));
    }
    name = std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor);
    auto memory = map(descriptor, bytes);
    if (!memory) ::close(descriptor);
    return memory;
  }
  Result<std::shared_ptr<std::byte>> attach(const std::string& name, std::int64_t bytes) override {
    const std::string path = "/proc/" + name;
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
      return fail(Code::kUnsupported, "cannot open memory of another rank on this host, \"{}\": {}; the ranks of a host must run as one user and see each other in /proc", path, std::strerror(errno));
    auto memory = map(descriptor, bytes);
    ::close(descriptor);
    return memory;
  }
  void forget(const std::string& name) override {
    if (const auto slash = name.rfind('/'); slash != std::string::npos) ::close(std::atoi(name.c_str() + slash + 1));
  }

 private:
  static Result<std::shared_ptr<std::byte>> map(int descriptor, std::int64_t bytes) {
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return fail(Code::kExhausted, "cannot map {} bytes of memory that the ranks of this host share: {}", bytes, std::strerror(errno));
    return unmapped_at_end(memory, bytes);
  }
};

}  // namespace

std::shared_ptr<std::byte> private_memory(std::int64_t bytes) {
  void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) return unmapped_at_end(memory, bytes);
  constexpr std::align_val_t kAlign{64};
  memory = ::operator new(static_cast<std::size_t>(bytes), kAlign);  // where no more mappings are allowed
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  return {static_cast<std::byte*>(memory), [](std::byte* begin) { ::operator delete(begin, kAlign); }};
}

std::shared_ptr<SharedMemory> memory_of_threads() { return std::make_shared<MemoryOfThreads>(); }

std::shared_ptr<SharedMemory> memory_of_processes() { return std::make_shared<MemoryOfProcesses>(); }

}  // namespace inflight::comm
