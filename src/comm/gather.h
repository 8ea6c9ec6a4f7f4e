// A value of every rank.
#pragma once
#include <vector>

#include "comm/comm.h"

namespace inflight::comm {

// A collective: what each rank gives, in rank order. T has no pointers. After a failure of the group the values mean nothing.
template <class T>
std::vector<T> gather(Comm& ranks, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(&mine, sizeof mine, all.data());
  return all;
}

}  // namespace inflight::comm
