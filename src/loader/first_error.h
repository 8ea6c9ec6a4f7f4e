// The error that several threads end with.
#pragma once
#include <atomic>
#include <cstddef>
#include <mutex>

#include "base/result.h"

namespace inflight::loader {

// The first in file order wins, whatever thread met it: the same file gives the same message.
class FirstError {
 public:
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void report(std::size_t chunk, Error error) {
    const std::lock_guard lock(mutex_);
    if (failed() && chunk > chunk_) return;
    chunk_ = chunk;
    error_ = std::move(error);
    failed_.store(true, std::memory_order_relaxed);
  }
  Error take() { return std::move(error_); }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::size_t chunk_ = 0;
  Error error_;
};

}  // namespace inflight::loader
