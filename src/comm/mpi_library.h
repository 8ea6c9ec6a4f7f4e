// The plugin libinflight_mpi.so, opened.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "comm/links.h"
#include "comm/mpi/table.h"

namespace inflight::comm {

// MPI's messages. One thread at a time is let into the plugin.
class MpiLinks final : public Links {
 public:
  // Looks beside the executable, in ../lib/inflight from there, then where the system's loader looks; starts MPI. The library stays open until the process ends.
  static Result<std::shared_ptr<MpiLinks>> start();

  int rank() const { return table_.rank(); }
  int size() const { return table_.size(); }
  Result<void> finish();

  Ticket send(int rank, int tag, const void* data, std::int64_t bytes) override;
  Ticket receive(int rank, int tag, void* data, std::int64_t bytes) override;
  State state(Ticket ticket) override;
  std::string problem() const override;

 private:
  explicit MpiLinks(const InflightMpiTable& table) : table_(table) {}
  const InflightMpiTable& table_;
  mutable std::mutex mutex_;
};

}  // namespace inflight::comm
