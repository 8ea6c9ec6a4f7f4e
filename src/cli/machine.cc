#include "cli/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/memory_limit.h"

namespace inflight::cli {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A "Key:   123 kB" line of /proc/self/status, in bytes; 0 when it is not there.
std::int64_t status_bytes(const char* key) {
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[4096];
  const ssize_t count = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (count <= 0) return 0;
  text[count] = '\0';
  const char* line = std::strstr(text, key);
  return line ? std::strtoll(line + std::strlen(key), nullptr, 10) * 1024 : 0;
}

// Thread `worker` reads its part of [0, bytes): whole multiples of 1 KiB.
std::pair<std::int64_t, std::int64_t> part(std::int64_t bytes, int worker, int threads) {
  const std::int64_t units = bytes / 1024;
  return {units * worker / threads * 1024, units * (worker + 1) / threads * 1024};
}

}  // namespace

std::int64_t peak_resident_bytes() { return status_bytes("\nVmHWM:"); }
std::int64_t anonymous_bytes() { return status_bytes("\nRssAnon:"); }

AnonWatch::AnonWatch()
    : thread_([this] {
        while (!stopping_.load(std::memory_order_relaxed)) {
          peak_.store(std::max(peak_.load(), anonymous_bytes()));
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      }) {}

std::int64_t AnonWatch::stop() {
  if (thread_.joinable()) {
    peak_.store(std::max(peak_.load(), anonymous_bytes()));
    stopping_.store(true);
    thread_.join();
  }
  return peak_.load();
}

Result<ReadProbe> ReadProbe::create(ThreadPool& pool, std::int64_t bytes) {
  ReadProbe probe(TRY(Buffer::map(static_cast<std::size_t>(bytes))));
  pool.run([&](int worker) {  // every page its own: the zero page would sit in the cache
    const auto [begin, end] = part(bytes, worker, pool.threads());
    std::memset(probe.memory_.data() + begin, 1 + worker, static_cast<std::size_t>(end - begin));
  });
  return probe;
}

double ReadProbe::sample(const kernels::Kernels& kernels, ThreadPool& pool, int passes) const {
  std::atomic<std::uint64_t> sink{0};
  const Clock::time_point start = Clock::now();
  for (int pass = 0; pass < passes; ++pass)
    pool.run([&](int worker) {
      const auto [begin, end] = part(bytes(), worker, pool.threads());
      sink.fetch_xor(kernels.roofline->read(memory_.data() + begin, static_cast<std::size_t>(end - begin)), std::memory_order_relaxed);
    });
  return static_cast<double>(bytes()) * passes / since(start);
}

double read_bandwidth(const engine::OpenedModel& opened) {
  const Result<engine::MemoryLimit> available = engine::available_memory();
  if (!available || available->bytes < (std::int64_t{1} << 30)) return 0;
  const Result<ReadProbe> probe = ReadProbe::create(*opened.pool, std::int64_t{256} << 20);
  if (!probe) return 0;
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) best = std::max(best, probe->sample(*opened.runtime->kernels, *opened.pool, 1));
  return best;
}

double arithmetic_peak(PeakKernel kernel, ThreadPool& pool, double seconds) {
  const auto rate = [&](std::int64_t iterations) {
    std::atomic<double> operations{0};
    const Clock::time_point start = Clock::now();
    pool.run([&](int) { operations.fetch_add(kernel(iterations)); });
    const double spent = since(start);
    return std::pair(operations.load() / spent, spent);
  };
  std::int64_t iterations = 1000;
  for (;;) {
    const auto [operations, spent] = rate(iterations);
    if (spent >= seconds / 2) return operations;
    const double scale = spent > 0 ? seconds / spent : 100;
    iterations = static_cast<std::int64_t>(static_cast<double>(iterations) * std::clamp(scale, 1.5, 100.0));
  }
}

}  // namespace inflight::cli
