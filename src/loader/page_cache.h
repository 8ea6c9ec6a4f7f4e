// What the loaders ask of the page cache.
#pragma once
#include <cstdint>

#include "base/file.h"

namespace inflight::loader {

// Bytes of a file, from the first that is wanted to behind the last.
struct FileRange {
  std::int64_t begin = 0, end = 0;
};

// Whether the file's pages are mostly absent, from samples that do not block.
bool is_cold(const InputFile& file);

// The range is about to be read, perhaps in small runs and not all of it: the disk begins with all of it at once, and for the other ranks of this host too. Returns
// before it is there.
void read_soon(const InputFile& file, FileRange range);

}  // namespace inflight::loader
