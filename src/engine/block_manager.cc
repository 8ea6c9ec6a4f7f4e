#include "engine/block_manager.h"

#include <algorithm>
#include <numeric>

namespace inflight::engine {

BlockPool::BlockPool(std::int64_t blocks, std::int64_t block_size)
    : block_size_(block_size), references_(static_cast<std::size_t>(blocks), 0), free_(static_cast<std::size_t>(blocks)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::int32_t BlockPool::take() {
  const std::int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(block)] = 1;
  return block;
}

void BlockPool::release(std::int32_t block) {
  if (--references_[static_cast<std::size_t>(block)] == 0) free_.push_back(block);
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  clear();
  pool_ = other.pool_;
  blocks_ = std::move(other.blocks_);
  other.blocks_.clear();
  return *this;
}

bool BlockTable::reserve(std::int64_t tokens) {
  const std::int64_t missing = pool_->blocks_for(tokens) - size();
  if (missing > pool_->free_blocks()) return false;
  for (std::int64_t i = 0; i < missing; ++i) blocks_.push_back(pool_->take());
  return true;
}

void BlockTable::clear() {
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) pool_->release(*block);
  blocks_.clear();
}

BlockTable BlockTable::share(std::int64_t blocks) const {
  BlockTable other(*pool_);
  other.blocks_.assign(blocks_.begin(), blocks_.begin() + std::min(blocks, size()));
  for (const std::int32_t block : other.blocks_) pool_->retain(block);
  return other;
}

}  // namespace inflight::engine
