// The files of a folder that is written: weights, perhaps by several ranks, and what lies beside them.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/safetensors_writer.h"
#include "comm/comm.h"

namespace inflight::loader {

// Files that belong to a model besides weights and configuration: tokenizer, template, generation defaults, licence.
Result<void> copy_companions(const std::string& from, const std::string& to);
Result<void> write_text(const std::string& path, const std::string& text);
Result<void> write_json(const std::string& path, const Json& json);

// Items in a row, dealt out over ranks by their bytes: each rank's lie together. The rank of each.
std::vector<int> deal_out(std::span<const std::int64_t> bytes, int ranks);

// Items [begin, end) make one file, which `rank` writes.
struct FileCut {
  int rank = 0;
  std::size_t begin = 0, end = 0;
  std::int64_t bytes = 0;
};
// ranks: of each item; empty: 0. A file holds at most max_bytes, or one item.
std::vector<FileCut> cut_files(std::span<const std::int64_t> bytes, std::span<const int> ranks, std::int64_t max_bytes);

// Whether `done` holds on all ranks: any rank's error, or this one's where ranks is nullptr. A collective.
Result<void> together(comm::Comm* ranks, const Result<void>& done);

// Makes a folder that appears complete or not at all, on one rank or, with `ranks`, on all of them together: `write` puts this rank's files into it; once all are there, `finish` on rank 0
// alone puts in what is left. An error of any rank is every rank's result, and nothing stays. `write` should give up when ranks->error() says something.
Result<void> make_folder(const std::string& target, comm::Comm* ranks, const std::function<Result<void>(const std::string& path)>& write,
                         const std::function<Result<void>(const std::string& path)>& finish);

}  // namespace inflight::loader
