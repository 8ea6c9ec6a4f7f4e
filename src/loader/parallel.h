// Work on every item of a list by all threads of a pool, until one fails.
#pragma once
#include <atomic>
#include <vector>

#include "base/thread_pool.h"
#include "loader/first_error.h"

namespace inflight::loader {

// work(item, worker) -> Result<void>, called from all threads; the error is that of the first item in the list among those that were met.
template <class Item, class Work>
Result<void> each(ThreadPool& pool, const std::vector<Item>& items, const Work& work) {
  FirstError error;
  std::atomic<std::size_t> next{0};
  pool.run([&](int worker) {
    for (std::size_t i; !error.failed() && (i = next.fetch_add(1, std::memory_order_relaxed)) < items.size();)
      if (auto done = work(items[i], worker); !done) error.report(i, std::move(done).error());
  });
  if (error.failed()) return std::unexpected(error.take());
  return {};
}

}  // namespace inflight::loader
