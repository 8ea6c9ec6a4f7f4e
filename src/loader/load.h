// The two roads from disk to weights. Both give the same codes and scales, bit for bit.
#pragma once
#include <functional>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "loader/plan.h"
#include "loader/report.h"
#include "quant/store.h"

namespace inflight::loader {

// Bytes; called on the calling thread, a few times a second. false: nobody wants the model any more, loading ends with kCancelled.
using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

struct LoadContext {
  const checkpoint::Checkpoint& checkpoint;
  const LoadPlan& plan;
  const params::ParamTable& table;
  const quant::Kernels& kernels;
  ThreadPool& pool;
  quant::ParamStore& store;  // allocated for plan.params
  comm::Comm* ranks = nullptr;  // that load the same checkpoint with plans of their own and share scales; nullptr: one
};

// default_v1: every thread takes the next chunk in file order, reads only the range that is needed, and quantizes it while it is in
// cache. Cold shards are read past the page cache (O_DIRECT) where the file system allows.
Result<LoadReport> load_streaming(const LoadContext& context, const Progress& progress);

// default: the whole checkpoint is read into memory as it is, then quantized. The reference that the streaming road is tested against.
Result<LoadReport> load_whole(const LoadContext& context, const Progress& progress);

}  // namespace inflight::loader
