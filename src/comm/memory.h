// Memory that ranks of one host share, found by name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace inflight::comm {

// `bytes` of zeros, in pages that are taken when they are touched.
std::shared_ptr<std::byte> private_memory(std::int64_t bytes);

class SharedMemory {
 public:
  static constexpr int kNameBytes = 64;
  virtual ~SharedMemory() = default;

  // `bytes` of zeros. `name`, less than kNameBytes long, is what others attach with, until forget(name). The memory is freed with its last holder.
  virtual Result<std::shared_ptr<std::byte>> create(std::int64_t bytes, std::string& name) = 0;
  virtual Result<std::shared_ptr<std::byte>> attach(const std::string& name, std::int64_t bytes) = 0;
  virtual void forget(const std::string& name) = 0;
};

// For ranks that are threads: all of them hold the same object.
std::shared_ptr<SharedMemory> memory_of_threads();
// For processes. Nothing is left behind, whatever way they end.
std::shared_ptr<SharedMemory> memory_of_processes();

}  // namespace inflight::comm
