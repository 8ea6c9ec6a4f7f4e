#include "checkpoint/index_json.h"

#include <algorithm>

#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

class IndexReader final : public JsonReader {
 public:
  std::vector<std::pair<std::string, std::string>> entries;  // tensor, file
  bool map_seen = false;

  bool on_key(std::string& key, int depth) override {
    if (depth == 1) {
      in_map_ = key == "weight_map";
      if (in_map_ && map_seen) return reject("\"weight_map\" appears twice");
      map_seen = map_seen || in_map_;
    } else if (in_map_) {
      tensor_ = std::move(key);
    }
    return true;
  }

  bool on_value(const JsonValue& value, int depth) override {
    if (depth == 0) return value.kind == JsonKind::kObject || reject("the index must be a JSON object, but is {}", json_kind_name(value.kind));
    if (!in_map_) return true;
    if (depth == 1) return value.kind == JsonKind::kObject || reject("\"weight_map\" must be an object, but is {}", json_kind_name(value.kind));
    if (value.kind != JsonKind::kString)
      return reject("\"weight_map\": the file of tensor {} must be a string, but is {}", show(tensor_), json_kind_name(value.kind));
    if (const std::string_view problem = file_name_problem(*value.text); !problem.empty())
      return reject("\"weight_map\": tensor {} is said to be in {}, but {}; only files in the folder itself are read", show(tensor_), show(*value.text),
                    problem);
    if (!value.text->ends_with(".safetensors")) {
      return reject_as(Code::kUnsupported, fmt::format("\"weight_map\": tensor {} is said to be in {}, which is no .safetensors file; only those are read",
                                                       show(tensor_), show(*value.text)));
    }
    entries.emplace_back(std::move(tensor_), std::move(*value.text));
    return true;
  }

  bool on_end(int) override { return true; }

 private:
  bool in_map_ = false;
  std::string tensor_;
};

}  // namespace

std::string_view file_name_problem(std::string_view name) {
  if (name.empty()) return "the name is empty";
  if (name == "." || name == "..") return "the name is a folder";
  if (name.find('/') != std::string_view::npos || name.find('\\') != std::string_view::npos) return "the name holds a path separator";
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) return "the name holds a control character";
  return "";
}

int WeightIndex::shard_of(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors, name, {}, [](const auto& entry) { return std::string_view(entry.first); });
  return at != tensors.end() && at->first == name ? at->second : -1;
}

Result<WeightIndex> parse_index(std::string_view text, std::string_view where) {
  IndexReader reader;
  if (auto read = read_json_events(text, reader); !read) return fail_at(where, read.error());
  if (!reader.map_seen) return fail(Code::kCorrupt, "{}: key \"weight_map\" is missing; is this the index of a sharded checkpoint?", where);
  if (reader.entries.empty()) return fail(Code::kCorrupt, "{}: \"weight_map\" is empty; incomplete download?", where);

  WeightIndex index;
  std::ranges::sort(reader.entries);
  for (auto& [tensor, file] : reader.entries) index.files.push_back(file);
  std::ranges::sort(index.files);
  index.files.erase(std::ranges::unique(index.files).begin(), index.files.end());
  index.tensors.reserve(reader.entries.size());
  for (auto& [tensor, file] : reader.entries) {
    if (!index.tensors.empty() && index.tensors.back().first == tensor)
      return fail(Code::kCorrupt, "{}: \"weight_map\" lists tensor {} twice", where, show(tensor));
    const auto at = std::ranges::lower_bound(index.files, file);
    index.tensors.emplace_back(std::move(tensor), static_cast<int>(at - index.files.begin()));
  }
  return index;
}

}  // namespace inflight::checkpoint
