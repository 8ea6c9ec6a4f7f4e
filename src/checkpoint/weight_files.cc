#include "checkpoint/weight_files.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSupported = "supported: model.safetensors, or model.safetensors.index.json with the .safetensors files it names";

Result<std::vector<std::string>> file_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) names.push_back(at->path().filename().string());
  if (error) return fail(Code::kInvalidArgument, "cannot list \"{}\": {}", folder, error.message());
  std::ranges::sort(names);
  return names;
}

// The folder has neither index nor model.safetensors: say what it has instead.
std::unexpected<Error> no_weights(const std::string& folder) {
  const auto listed = file_names(folder);
  if (!listed) return std::unexpected(listed.error());
  if (listed->empty()) return fail(Code::kNotFound, "\"{}\" is empty; {}", folder, kSupported);
  std::vector<std::string> shards, foreign;
  for (const std::string& name : *listed) {
    if (name.ends_with(".safetensors")) shards.push_back(show(name));
    for (const std::string_view suffix : {".bin", ".pth", ".pt", ".ckpt", ".gguf", ".pdparams", ".h5", ".msgpack", ".onnx"})
      if (name.ends_with(suffix)) foreign.push_back(show(name));
  }
  if (!shards.empty()) {
    return fail(Code::kNotFound, "\"{}\" has {}, but neither {} that says which belong to the model nor {}; incomplete download?", folder, name_list(shards, 8),
                kIndexName, kSingleName);
  }
  const auto gguf = std::ranges::find_if(*listed, [](const std::string& name) { return name.ends_with(".gguf"); });
  if (gguf != listed->end())
    return fail(Code::kUnsupported, "\"{}\" holds weights as GGUF ({}); give the file itself: \"{}/{}\"", folder, name_list(foreign, 8), folder, *gguf);
  if (!foreign.empty()) {
    return fail(Code::kUnsupported,
                "\"{}\" holds weights only in forms that are not read: {}; {}. Most models are also published as safetensors, else save it once with "
                "safe_serialization",
                folder, name_list(foreign, 8), kSupported);
  }
  return fail(Code::kNotFound, "\"{}\" holds no weights; {}; incomplete download?", folder, kSupported);
}

}  // namespace

std::string name_list(const std::vector<std::string>& names, std::size_t most) {
  const std::size_t shown = std::min(names.size(), most);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

Result<Json> read_json_object(const std::string& path, std::int64_t max_bytes) {
  if (!is_regular_file(path)) return fail(Code::kNotFound, "\"{}\" does not exist or is not a regular file", path);
  const std::string text = TRY(read_file(path, max_bytes));
  // The JSON parser takes a NUL for the end of the text; what follows would go unseen.
  if (const auto at = text.find('\0'); at != std::string::npos) return fail(Code::kCorrupt, "{}: NUL byte at byte {}; incomplete download?", path, at);
  Json json = TRY(parse_json(text, path));
  if (!json.is_object()) return fail(Code::kCorrupt, "{}: must be a JSON object", path);
  return json;
}

Result<WeightFiles> find_weight_files(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return fail(Code::kNotFound, "folder \"{}\" does not exist", folder);
  if (!is_directory(folder))
    return fail(Code::kInvalidArgument, "\"{}\" is not a folder; give the folder that holds config.json and the .safetensors files", folder);

  WeightFiles files;
  const std::string index_path = fmt::format("{}/{}", folder, kIndexName);
  // symlink_status: a dangling link to the index still says that the checkpoint is a sharded one.
  if (fs::exists(fs::symlink_status(index_path, error))) {
    if (!is_regular_file(index_path)) return fail(Code::kNotFound, "\"{}\" is not a regular file, or a link to nothing; incomplete download?", index_path);
    const std::string text = TRY(read_file(index_path, kMaxIndexBytes));
    files.index = TRY(parse_index(text, index_path));
    std::vector<std::string> missing;
    for (const std::string& name : files.index->files) {
      files.paths.push_back(folder + "/" + name);
      if (!is_regular_file(files.paths.back())) missing.push_back(show(name));
    }
    if (!missing.empty()) {
      return fail(Code::kNotFound, "{} of the {} files that {} names are missing from \"{}\": {}; incomplete download?", missing.size(), files.paths.size(),
                  kIndexName, folder, name_list(missing));
    }
    return files;
  }
  const std::string single = fmt::format("{}/{}", folder, kSingleName);
  if (!fs::exists(fs::symlink_status(single, error))) return no_weights(folder);
  if (!is_regular_file(single)) return fail(Code::kNotFound, "\"{}\" is not a regular file, or a link to nothing; incomplete download?", single);
  files.paths.push_back(single);
  return files;
}

}  // namespace inflight::checkpoint
