#include "loader/read_ahead.h"

#include <system_error>

namespace inflight::loader {

Result<std::unique_ptr<ReadAhead>> ReadAhead::create(std::size_t items, int slots, std::size_t bytes, Read read) {
  auto ahead = std::make_unique<ReadAhead>();
  ahead->items_ = items;
  ahead->read_ = std::move(read);
  ahead->slots_.resize(static_cast<std::size_t>(slots));
  for (std::size_t i = 0; i < ahead->slots_.size(); ++i) {
    ahead->slots_[i].buffer = TRY(Buffer::map(bytes));
    ahead->slots_[i].free_for = i;
  }
  return ahead;
}

Result<void> ReadAhead::add_reader() {
  const std::lock_guard lock(mutex_);
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    return fail(Code::kExhausted, "cannot start a thread that reads the checkpoint: {}", error.what());
  }
  return {};
}

ReadAhead::~ReadAhead() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  while (!stopped_ && next_read_ < items_) {
    const std::size_t item = next_read_++;
    Slot& slot = slots_[item % slots_.size()];
    freed_.wait(lock, [&] { return stopped_ || slot.free_for == item; });
    if (stopped_) return;
    lock.unlock();
    Result<void> read = read_(item, slot.buffer.data());
    lock.lock();
    slot.read = std::move(read);
    slot.filled = true;
    filled_.notify_all();
  }
}

std::optional<ReadAhead::Item> ReadAhead::take() {
  std::unique_lock lock(mutex_);
  if (stopped_ || next_take_ >= items_) return std::nullopt;
  const std::size_t item = next_take_++;
  Slot& slot = slots_[item % slots_.size()];
  filled_.wait(lock, [&] { return stopped_ || (slot.filled && slot.free_for == item); });
  if (!slot.filled || slot.free_for != item) return std::nullopt;  // stopped
  slot.filled = false;
  return Item{item, slot.buffer.data(), std::move(slot.read)};
}

void ReadAhead::release(std::size_t index) {
  const std::lock_guard lock(mutex_);
  slots_[index % slots_.size()].free_for = index + slots_.size();
  freed_.notify_all();
}

void ReadAhead::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  freed_.notify_all();
  filled_.notify_all();
}

}  // namespace inflight::loader
