// Which KV blocks belong to which sequence. A BlockPool counts references; a BlockTable is one sequence's list and gives its blocks back when it
// dies, so a block can be neither leaked nor freed twice. The blocks' memory is nn::KvCache's.
//
//     BlockPool pool(/*blocks=*/128, /*block_size=*/64);
//     BlockTable table(pool);
//     if (!table.reserve(tokens)) ...preempt someone...
#pragma once
#include <cstdint>
#include <vector>

namespace inflight::engine {

class BlockPool {
 public:
  BlockPool(std::int64_t blocks, std::int64_t block_size);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  std::int64_t blocks() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t block_size() const { return block_size_; }
  std::int64_t blocks_for(std::int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

 private:
  friend class BlockTable;
  std::int32_t take();  // free_blocks() > 0; one reference
  void retain(std::int32_t block) { ++references_[static_cast<std::size_t>(block)]; }
  void release(std::int32_t block);

  std::int64_t block_size_;
  std::vector<std::int32_t> references_;  // [blocks] tables that hold the block
  std::vector<std::int32_t> free_;        // a stack, the lowest ids on top at first: memory becomes resident from the start of the cache on
};

class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept : pool_(other.pool_), blocks_(std::move(other.blocks_)) { other.blocks_.clear(); }
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { clear(); }

  // Makes room for `tokens` tokens in all. False, and nothing changed, when the pool has too few free blocks.
  bool reserve(std::int64_t tokens);
  void clear();
  // A table that holds the first `blocks` blocks of this one too. Both may read them; only full blocks may be shared, since neither may write them.
  BlockTable share(std::int64_t blocks) const;

  const std::int32_t* data() const { return blocks_.data(); }
  std::int64_t size() const { return static_cast<std::int64_t>(blocks_.size()); }

 private:
  BlockPool* pool_;
  std::vector<std::int32_t> blocks_;
};

}  // namespace inflight::engine
