#include "loader/output_files.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file.h"

namespace inflight::loader {

namespace fs = std::filesystem;

Result<void> copy_companions(const std::string& from, const std::string& to) {
  constexpr std::int64_t kLargest = 256 << 20;
  constexpr std::array<std::string_view, 5> kEndings = {".json", ".jinja", ".model", ".txt", ".tiktoken"};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    const std::string name = entry.path().filename().string();
    const bool wanted = std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); }) || name.starts_with("LICENSE") || name.starts_with("NOTICE");
    if (!wanted || name == "config.json" || name.ends_with(".index.json") || !is_regular_file(entry.path().string())) continue;
    const std::string text = TRY(read_file(entry.path().string(), kLargest));
    OutputFile file = TRY(OutputFile::create(to + "/" + name));
    TRY(file.write(text.data(), text.size()));
    TRY(file.commit());
  }
  if (error) return fail(Code::kNotFound, "cannot list \"{}\": {}", from, error.message());
  return {};
}

Result<void> write_text(const std::string& path, const std::string& text) {
  OutputFile file = TRY(OutputFile::create(path));
  TRY(file.write(text.data(), text.size()));
  return file.commit();
}

Result<void> write_json(const std::string& path, const Json& json) { return write_text(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

std::vector<int> deal_out(std::span<const std::int64_t> bytes, int ranks) {
  double total = 0, before = 0;
  for (const std::int64_t item : bytes) total += static_cast<double>(item);
  std::vector<int> result;
  for (const std::int64_t item : bytes) {  // to the rank whose part of the whole holds the item's middle
    const double middle = before + static_cast<double>(item) / 2;
    result.push_back(total == 0 ? 0 : std::min(ranks - 1, static_cast<int>(middle / total * ranks)));
    before += static_cast<double>(item);
  }
  return result;
}

std::vector<FileCut> cut_files(std::span<const std::int64_t> bytes, std::span<const int> ranks, std::int64_t max_bytes) {
  std::vector<FileCut> files;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int rank = ranks.empty() ? 0 : ranks[i];
    if (files.empty() || files.back().rank != rank || (files.back().bytes > 0 && files.back().bytes + bytes[i] > max_bytes)) files.push_back({rank, i, i, 0});
    files.back().end = i + 1;
    files.back().bytes += bytes[i];
  }
  return files;
}

Result<void> together(comm::Comm* ranks, const Result<void>& done) {
  if (!ranks) return done;
  if (!done) ranks->fail(done.error());
  ranks->barrier();
  if (auto error = ranks->error()) return std::unexpected(*std::move(error));
  return {};
}

Result<void> make_folder(const std::string& target, comm::Comm* ranks, const std::function<Result<void>(const std::string& path)>& write,
                         const std::function<Result<void>(const std::string& path)>& finish) {
  if (!ranks) {
    checkpoint::OutputFolder folder = TRY(checkpoint::OutputFolder::create(target));
    TRY(write(folder.path()));
    TRY(finish(folder.path()));
    return folder.commit();
  }
  const bool first = ranks->rank() == 0;
  std::optional<checkpoint::OutputFolder> folder;
  Result<void> created;
  if (first) {
    auto made = checkpoint::OutputFolder::create(target);
    if (made) folder.emplace(*std::move(made));
    else created = std::unexpected(made.error());
  }
  TRY(together(ranks, created));
  if (!first) {
    folder.emplace(checkpoint::OutputFolder::join(target));  // whichever rank ends last after a failure removes what is there
    if (!is_directory(folder->path())) created = fail(Code::kNotFound, "\"{}\", which rank 0 has made, is not there: the output folder must be one that all ranks share", folder->path());
  }
  TRY(together(ranks, created));
  // A rank may be in the middle of long work, or in the system, when the group fails, and has little time to live then.
  const std::jthread watch([&, path = folder->path()](const std::stop_token& stop) {
    std::error_code ignored;
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      if (ranks->error()) fs::remove_all(path, ignored);
  });
  ranks->state("writes weights");
  TRY(together(ranks, write(folder->path())));
  const Result<void> all = together(ranks, !first ? Result<void>() : [&]() -> Result<void> {
    TRY(finish(folder->path()));
    return folder->commit();
  }());
  if (!all) {  // also where only another rank did not live to see it
    std::error_code ignored;
    if (first && folder->path().empty()) fs::remove_all(target, ignored);
    return all;
  }
  folder->release();
  return {};
}

}  // namespace inflight::loader
