// What this process and this machine do: resident memory, read bandwidth, arithmetic peaks.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/open_model.h"
#include "kernels/kernels.h"
#include "tensor/buffer.h"

namespace inflight::cli {

std::int64_t peak_resident_bytes();       // VmHWM; 0 where /proc does not say
std::int64_t anonymous_bytes();           // RssAnon now

// Samples RssAnon every 2 ms in a thread of its own, from construction to stop().
class AnonWatch {
 public:
  AnonWatch();
  ~AnonWatch() { stop(); }
  std::int64_t stop();  // the peak, in bytes; the first call ends the sampling

 private:
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> peak_{0};
  std::thread thread_;
};

// Repeated loads over huge pages by the pool's threads, each its own part.
class ReadProbe {
 public:
  static Result<ReadProbe> create(ThreadPool& pool, std::int64_t bytes);
  double sample(const kernels::Kernels& kernels, ThreadPool& pool, int passes) const;  // bytes per second over `passes`
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }

 private:
  explicit ReadProbe(Buffer memory) : memory_(std::move(memory)) {}
  Buffer memory_;
};

// Best of three reads of 256 MiB, in bytes per second, within about a tenth of a second; 0 when there is less than 1 GiB of free memory.
double read_bandwidth(const engine::OpenedModel& opened);

// Operations per second of register-resident dot products on all threads, over about `seconds`.
using PeakKernel = double (*)(std::int64_t iterations);
double arithmetic_peak(PeakKernel kernel, ThreadPool& pool, double seconds);

}  // namespace inflight::cli
