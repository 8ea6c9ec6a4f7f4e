#include "comm/notices.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace inflight::comm {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::kNone: return "nothing";
    case Collective::kAllReduceSum: return "all_reduce_sum";
    case Collective::kAllReduceMax: return "all_reduce_max";
    case Collective::kReduceScatterSum: return "reduce_scatter_sum";
    case Collective::kAllGather: return "all_gather";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kBarrier: return "barrier";
    case Collective::kSplit: return "split";
    case Collective::kFinish: return "the end";
  }
  return "an unknown collective";
}

void Activity::set(const char* text, std::int64_t first, std::int64_t second) {
  char copy[kTextBytes] = {};
  std::memcpy(copy, text, ::strnlen(text, kTextBytes - 1));
  const std::uint32_t odd = version.load(std::memory_order_relaxed) + 1;
  version.store(odd, std::memory_order_relaxed);
  for (std::size_t i = 0; i < std::size(what); ++i) {
    std::uint64_t word;
    std::memcpy(&word, copy + i * sizeof word, sizeof word);
    what[i].store(word, std::memory_order_release);  // after the odd version
  }
  numbers[0].store(first, std::memory_order_release);
  numbers[1].store(second, std::memory_order_release);
  version.store(odd + 1, std::memory_order_release);
  tick();
}

std::string Activity::text() const {
  char copy[kTextBytes] = {};
  std::int64_t values[2] = {};
  for (int attempt = 0; attempt < 1000; ++attempt) {  // a rank killed while it wrote leaves a mixture: better than nothing
    const std::uint32_t before = version.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < std::size(what); ++i) {
      const std::uint64_t word = what[i].load(std::memory_order_acquire);
      std::memcpy(copy + i * sizeof word, &word, sizeof word);
    }
    for (int i = 0; i < 2; ++i) values[i] = numbers[i].load(std::memory_order_acquire);
    if (before % 2 == 0 && version.load(std::memory_order_relaxed) == before) break;
  }
  copy[kTextBytes - 1] = 0;
  std::string text;
  int number = 0;
  for (const char* c = copy; *c != 0; ++c) {
    if (*c == '#' && number < 2) text += std::to_string(values[number++]);
    else text += *c;
  }
  if (text.empty()) text = "start";
  const auto within = static_cast<Collective>(collective.load(std::memory_order_relaxed));
  if (within != Collective::kNone) text += fmt::format(": {}", name_of(within));
  return text;
}

bool Failure::set(const Error& error, int lost) {
  std::uint32_t none = 0;
  if (!state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return false;
  code = static_cast<std::uint32_t>(error.code);
  lost_rank = lost;
  bytes = static_cast<std::uint32_t>(std::min(error.message.size(), sizeof text));
  std::memcpy(text, error.message.data(), bytes);
  state.store(2, std::memory_order_release);
  return true;
}

std::optional<Error> Failure::get() const {
  if (state.load(std::memory_order_acquire) == 0) return std::nullopt;
  for (int wait_ms = 0; state.load(std::memory_order_acquire) != 2; ++wait_ms) {
    if (wait_ms == 200) return Error{Code::kInternal, "a rank failed, and was killed before it could say why"};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Error{static_cast<Code>(code), std::string(text, bytes)};
}

}  // namespace inflight::comm
