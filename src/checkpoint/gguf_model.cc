#include "checkpoint/gguf_model.h"

#include <algorithm>
#include <charconv>

#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/json_events.h"
#include "checkpoint/read_tensor.h"
#include "checkpoint/weight_files.h"

namespace inflight::checkpoint {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr std::int64_t kMaxFiles = 10000;
constexpr std::int64_t kMaxRopeFactors = 1 << 16;

// "<stem>-00002-of-00003.gguf"
struct SplitName {
  std::string stem;
  std::int64_t number = 0, count = 0;
  std::string path_of(std::int64_t i) const { return fmt::format("{}-{:05}-of-{:05}{}", stem, i, count, kSuffix); }
};

std::optional<std::int64_t> five_digits(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return text.size() == 5 && error == std::errc{} && end == text.data() + 5 && value >= 0 ? std::optional(value) : std::nullopt;
}

std::optional<SplitName> split_name(std::string_view path) {
  if (!path.ends_with(kSuffix)) return std::nullopt;
  path.remove_suffix(kSuffix.size());
  constexpr std::size_t kTail = 15;  // "-00002-of-00003"
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  const auto number = five_digits(tail.substr(1, 5)), count = five_digits(tail.substr(10));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number || !count || *number < 1 || *number > *count || *count > kMaxFiles) return std::nullopt;
  return SplitName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

Result<std::vector<std::string>> files_of(const std::string& path) {
  if (!is_regular_file(path)) return fail(Code::kNotFound, "\"{}\" does not exist or is not a regular file", path);
  const auto split = split_name(path);
  if (!split || split->count == 1) return std::vector<std::string>{path};
  std::vector<std::string> paths, missing;
  for (std::int64_t i = 1; i <= split->count; ++i) {
    paths.push_back(split->path_of(i));
    if (!is_regular_file(paths.back())) missing.push_back(show(paths.back()));
  }
  if (!missing.empty())
    return fail(Code::kNotFound, "{} of the {} files that \"{}\" belongs to are missing: {}; incomplete download?", missing.size(), split->count, path, name_list(missing, 8));
  return paths;
}

Result<void> check_split(const std::vector<GgufHeader>& headers, std::size_t tensors) {
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const std::int64_t count = TRY(headers[i].integer("split.count")).value_or(0), number = TRY(headers[i].integer("split.no")).value_or(0);
    const bool alone = headers.size() == 1 && count <= 1;
    if (!alone && (count != static_cast<std::int64_t>(headers.size()) || number != static_cast<std::int64_t>(i)))
      return fail(Code::kCorrupt, "{}: says that it is file {} of {}, but is taken for {} of {}; files of a split model keep the names \"...-00001-of-00003.gguf\"", headers[i].where, number + 1, count,
                  i + 1, headers.size());
  }
  const auto total = TRY(headers[0].integer("split.tensors.count"));
  if (headers.size() > 1 && total && *total != static_cast<std::int64_t>(tensors))
    return fail(Code::kCorrupt, "{}: the model has {} tensors, but its files hold {}; files of different models?", headers[0].where, *total, tensors);
  return {};
}

Result<std::vector<float>> read_rope_factors(const std::vector<InputFile>& shards, const std::vector<GgufHeader>& headers) {
  for (std::size_t i = 0; i < headers.size(); ++i)
    for (const TensorInfo& tensor : headers[i].tensors) {
      if (tensor.name != kGgufRopeFactors) continue;
      if (tensor.elements() > kMaxRopeFactors) return fail(Code::kCorrupt, "{}: tensor {} has {} numbers", shards[i].path(), kGgufRopeFactors, tensor.elements());
      return read_as_f32(shards[i], tensor);
    }
  return std::vector<float>{};
}

}  // namespace

bool is_gguf_path(std::string_view path) { return path.ends_with(kSuffix); }

std::string first_gguf_file(const std::string& path) {
  const auto split = split_name(path);
  return split ? split->path_of(1) : path;
}

Result<GgufModel> open_gguf(const std::string& path) {
  GgufModel model;
  std::vector<GgufHeader> headers;
  for (const std::string& file_path : TRY(files_of(path))) {
    InputFile file = TRY(InputFile::open(file_path));
    headers.push_back(TRY(read_gguf_header(file)));
    model.shards.push_back(std::move(file));
  }
  const GgufHeader& first = headers.front();
  if (const auto kind = TRY(first.string("general.type")); kind && *kind != "model")
    return fail(Code::kUnsupported, "{}: holds {}, not a model", first.where, show(*kind));
  const auto architecture = TRY(first.string("general.architecture"));
  if (!architecture) return fail(Code::kCorrupt, "{}: metadata general.architecture is missing; is the file whole, and a model?", first.where);
  const GgufFamily& family = *TRY(find_gguf_family(*architecture, first.where));

  std::vector<TensorInfo> all;
  for (const GgufHeader& header : headers) all.insert(all.end(), header.tensors.begin(), header.tensors.end());
  TRY(check_split(headers, all.size()));
  model.config = TRY(gguf_config(family, first, all, TRY(read_rope_factors(model.shards, headers))));
  model.generation_config = TRY(gguf_generation_config(first));

  for (std::size_t i = 0; i < headers.size(); ++i)
    for (TensorInfo& tensor : headers[i].tensors)
      for (TensorInfo& renamed : TRY(rename_gguf_tensor(family, std::move(tensor), headers[i].where)))
        model.tensors.push_back({std::move(renamed), static_cast<int>(i)});
  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : model.tensors) names.push_back(tensor.info.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) return fail(Code::kCorrupt, "{}: two tensors stand for {}", first.where, show(*twice));
  return model;
}

}  // namespace inflight::checkpoint
