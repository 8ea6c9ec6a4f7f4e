#include "loader/page_cache.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace inflight::loader {

bool is_cold(const InputFile& file) {
  constexpr int kSamples = 32;
  int absent = 0, seen = 0;
  for (int i = 0; i < kSamples; ++i) {
    char byte;
    const iovec view{&byte, 1};
    const ssize_t got = ::preadv2(file.descriptor(), &view, 1, file.size() / kSamples * i, RWF_NOWAIT);
    if (got == 1) ++seen;
    else if (errno == EAGAIN) ++absent;
    else return false;  // no such probe here: the page cache is the safe choice
  }
  return absent > seen;
}

void read_soon(const InputFile& file, FileRange range) {
  constexpr std::int64_t kStep = 512 << 10;  // that one call reads ahead at least
  for (std::int64_t at = range.begin; at < range.end; at += kStep) ::posix_fadvise(file.descriptor(), at, std::min(kStep, range.end - at), POSIX_FADV_WILLNEED);
}

}  // namespace inflight::loader
