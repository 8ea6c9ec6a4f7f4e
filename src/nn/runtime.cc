#include "nn/runtime.h"

#include <algorithm>

namespace inflight::nn {

std::byte* Workspace::bytes(std::size_t count) {
  if (used_ == slots_.size()) slots_.emplace_back();
  Buffer& slot = slots_[used_++];
  if (slot.bytes() < count) {
    slot = Buffer();
    // Address space alone is asked for here. Where even that is refused, value() raises what operator new would, and the engine ends the step.
    slot = Buffer::map(std::max<std::size_t>(count, 4096)).value();
  }
  return slot.data();
}

}  // namespace inflight::nn
