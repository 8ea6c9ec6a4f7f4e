// Reading ahead of the threads that quantize: a ring of buffers that a few threads of their own keep full, so that the disk never waits for
// quantization or for fresh pages. Chunks come out in the order in which they were asked for.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "tensor/buffer.h"

namespace inflight::loader {

class ReadAhead {
 public:
  // Reads item i into the buffer; called from the reading threads.
  using Read = std::function<Result<void>(std::size_t item, std::byte* buffer)>;
  struct Item {
    std::size_t index = 0;
    std::byte* data = nullptr;  // the reader's until release()
    Result<void> read;
  };

  // slots >= 1 buffers of `bytes` for items 0 .. items - 1. kExhausted: no memory.
  static Result<std::unique_ptr<ReadAhead>> create(std::size_t items, int slots, std::size_t bytes, Read read);
  ~ReadAhead();  // stops and joins the readers

  // Starts one more reading thread. It runs on the CPUs of the calling thread, so that pinned callers spread the readers. kExhausted: refused.
  Result<void> add_reader();
  std::optional<Item> take();          // waits for the next item; nullopt after the last one or after stop(). Needs a reader
  void release(std::size_t index);     // its buffer may be filled again
  void stop();

 private:
  struct Slot {
    Buffer buffer;
    std::size_t free_for = 0;  // the item that may be read into it
    bool filled = false;
    Result<void> read;
  };
  void work();

  std::size_t items_ = 0, next_read_ = 0, next_take_ = 0;
  Read read_;
  std::vector<Slot> slots_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable freed_, filled_;
  bool stopped_ = false;
};

}  // namespace inflight::loader
