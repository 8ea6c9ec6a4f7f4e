#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "checkpoint/gguf_model.h"
#include "checkpoint/json_events.h"
#include "checkpoint/weight_files.h"

namespace inflight::checkpoint {
namespace {

constexpr std::size_t kNamesShown = 20;

// The headers against the index: each tensor where the index says, and none besides.
Result<void> check_against_index(const WeightIndex& index, const std::vector<InputFile>& shards, const std::vector<Tensor>& tensors) {
  std::vector<char> found(index.tensors.size(), 0);
  for (const Tensor& tensor : tensors) {
    const auto at = std::ranges::lower_bound(index.tensors, tensor.info.name, {}, [](const auto& entry) -> const std::string& { return entry.first; });
    const std::string& path = shards[static_cast<std::size_t>(tensor.shard)].path();
    if (at == index.tensors.end() || at->first != tensor.info.name)
      return fail(Code::kCorrupt, "{}: holds tensor {}, which {} does not list; do index and shards belong to the same checkpoint?", path,
                  show(tensor.info.name), kIndexName);
    if (at->second != tensor.shard) {
      return fail(Code::kCorrupt, "{}: holds tensor {}, but {} says it is in {}: a duplicate, or an index of another checkpoint", path, show(tensor.info.name),
                  kIndexName, show(index.files[static_cast<std::size_t>(at->second)]));
    }
    found[static_cast<std::size_t>(at - index.tensors.begin())] = 1;
  }
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i])
      missing.push_back(fmt::format("{} ({})", show(index.tensors[i].first), show(index.files[static_cast<std::size_t>(index.tensors[i].second)])));
  if (missing.empty()) return {};
  return fail(Code::kCorrupt, "{} of the {} tensors that {} lists are not in the files it names: {}; incomplete download, or shards of another checkpoint?",
              missing.size(), index.tensors.size(), kIndexName, name_list(missing, kNamesShown));
}

}  // namespace

Result<void> Checkpoint::open_folder() {
  config_path_ = folder_ + "/config.json";
  const WeightFiles files = TRY(find_weight_files(folder_));
  if (!is_regular_file(config_path_))
    return fail(Code::kNotFound, "\"{}\" has weights but no config.json, which says what model they are; incomplete download?", folder_);
  config_ = TRY(read_json_object(config_path_));

  for (const std::string& path : files.paths) {
    InputFile file = TRY(InputFile::open(path));
    SafetensorsHeader header = TRY(read_header(file));
    const int shard = static_cast<int>(shards_.size());
    for (TensorInfo& info : header.tensors) tensors_.push_back({std::move(info), shard});
    shards_.push_back(std::move(file));
  }
  if (files.index) TRY(check_against_index(*files.index, shards_, tensors_));
  return {};
}

Result<void> Checkpoint::open_gguf_file() {
  config_path_ = folder_;
  GgufModel model = TRY(open_gguf(folder_));
  config_ = std::move(model.config);
  generation_config_ = std::move(model.generation_config);
  shards_ = std::move(model.shards);
  tensors_.reserve(model.tensors.size());
  for (GgufTensor& tensor : model.tensors) tensors_.push_back({std::move(tensor.info), tensor.shard});
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  TRY(is_gguf_path(folder) && !is_directory(folder) ? checkpoint.open_gguf_file() : checkpoint.open_folder());
  if (checkpoint.tensors_.empty()) return fail(Code::kCorrupt, "\"{}\" holds no tensors", checkpoint.shards_.front().path());
  for (const Tensor& tensor : checkpoint.tensors_)
    if (__builtin_add_overflow(checkpoint.data_bytes_, tensor.info.bytes(), &checkpoint.data_bytes_))
      return fail(Code::kCorrupt, "{}: the files together are beyond 2^63 bytes", folder);

  checkpoint.by_name_.resize(checkpoint.tensors_.size());
  for (std::size_t i = 0; i < checkpoint.by_name_.size(); ++i) checkpoint.by_name_[i] = static_cast<int>(i);
  std::ranges::sort(checkpoint.by_name_, {}, [&](int i) -> const std::string& { return checkpoint.tensors_[static_cast<std::size_t>(i)].info.name; });
  return checkpoint;
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto name_of = [&](int i) { return std::string_view(tensors_[static_cast<std::size_t>(i)].info.name); };
  const auto at = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return at != by_name_.end() && name_of(*at) == name ? &tensors_[static_cast<std::size_t>(*at)] : nullptr;
}

Result<std::optional<Json>> Checkpoint::generation_config() const {
  if (config_path_ == folder_) return generation_config_;
  const std::string path = folder_ + "/generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return std::nullopt;
  return TRY(read_json_object(path));
}

Result<void> Checkpoint::verify_unchanged(int shard) const {
  if (shard < 0 || static_cast<std::size_t>(shard) >= shards_.size()) return fail(Code::kInternal, "shard {} of {}", shard, shards_.size());
  const InputFile& file = shards_[static_cast<std::size_t>(shard)];
  struct stat status;
  if (::fstat(file.descriptor(), &status) != 0) return fail(Code::kInternal, "cannot inspect \"{}\": {}", file.path(), std::strerror(errno));
  if (status.st_size == file.size()) return {};
  return fail(Code::kCorrupt, "\"{}\" was {} bytes long when its header was checked and is {} now; was it replaced or truncated while it was read?",
              file.path(), file.size(), static_cast<std::int64_t>(status.st_size));
}

}  // namespace inflight::checkpoint
