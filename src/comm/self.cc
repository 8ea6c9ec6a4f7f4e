#include "comm/self.h"

#include "comm/threads.h"

namespace inflight::comm {

std::unique_ptr<Comm> self() { return std::move(thread_ranks(1).front()); }

}  // namespace inflight::comm
