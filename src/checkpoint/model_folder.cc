#include "checkpoint/model_folder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/file.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/weight_files.h"

namespace inflight::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string expand_home(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return variable("HOME") + path.substr(1);
}

std::string cache_root() {
  if (const std::string set = variable("HF_HUB_CACHE"); !set.empty()) return expand_home(set);
  if (const std::string set = variable("HF_HOME"); !set.empty()) return expand_home(set) + "/hub";
  if (const std::string set = variable("XDG_CACHE_HOME"); !set.empty()) return expand_home(set) + "/huggingface/hub";
  return expand_home("~/.cache/huggingface/hub");
}

// One half of a hub id: what the hub allows, which also keeps it a plain folder name.
bool is_hub_word(std::string_view word) {
  if (word.empty() || word.size() > 96 || word.front() == '.' || word.front() == '-' || word.find("--") != std::string_view::npos ||
      word.find("..") != std::string_view::npos)
    return false;
  return std::ranges::all_of(word, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.'; });
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

Result<std::string> find_snapshot(const std::string& name) {
  const std::size_t slash = name.find('/');
  const std::string root = cache_root();
  const std::string repository = fmt::format("{}/models--{}--{}", root, name.substr(0, slash), name.substr(slash + 1));
  if (!is_directory(repository))
    return fail(Code::kNotFound, "\"{}\" is neither a folder nor a model in the local Hugging Face cache ({}); get it with: hf download {}", name, root, name);

  const std::string reference = repository + "/refs/main";
  if (!is_regular_file(reference))
    return fail(Code::kNotFound, "\"{}\" is in the cache, but \"{}\" is missing; fetch it again with: hf download {}", name, reference, name);
  const std::string commit = trimmed(TRY(read_file(reference, 4096)));
  if (commit.empty() || !std::ranges::all_of(commit, [](char c) { return std::isalnum(static_cast<unsigned char>(c)); }))
    return fail(Code::kCorrupt, "\"{}\" does not hold a commit id; fetch the model again with: hf download {}", reference, name);

  const std::string snapshot = repository + "/snapshots/" + commit;
  const auto incomplete = [&](std::string_view what) {
    return fail(Code::kNotFound, "\"{}\" is in the cache, but its snapshot is not complete ({}); finish it with: hf download {}", name, what, name);
  };
  if (!is_directory(snapshot)) return incomplete(fmt::format("\"{}\" is missing", snapshot));
  if (!is_regular_file(snapshot + "/config.json")) return incomplete(fmt::format("\"{}/config.json\" is missing", snapshot));
  if (auto files = find_weight_files(snapshot); !files) {
    if (files.error().code != Code::kNotFound) return std::unexpected(files.error());
    return incomplete(files.error().message);
  }
  return snapshot;
}

}  // namespace

Result<std::string> resolve_model_folder(const std::string& name) {
  if (name.empty()) return fail(Code::kInvalidArgument, "no model given; give a checkpoint folder, a .gguf file, or a hub id such as Qwen/Qwen3-0.6B");
  if (is_directory(name)) return name;
  std::error_code error;
  if (is_gguf_path(name)) {
    if (is_regular_file(name)) return name;
    return fail(Code::kNotFound, "\"{}\" does not exist or is not a regular file", name);
  }
  if (fs::exists(name, error)) {
    const std::string parent = fs::path(name).parent_path().string();
    if (name.ends_with(".safetensors") || name.ends_with(".json"))
      return fail(Code::kInvalidArgument, "\"{}\" is a single file; give its folder, which holds config.json and all weights: {}", name,
                  parent.empty() ? "." : parent);
    return fail(Code::kInvalidArgument, "\"{}\" is not a folder; give a checkpoint folder, a .gguf file, or a hub id such as Qwen/Qwen3-0.6B", name);
  }
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos && is_hub_word(std::string_view(name).substr(0, slash)) && is_hub_word(std::string_view(name).substr(slash + 1)))
    return find_snapshot(name);
  return fail(Code::kNotFound, "folder \"{}\" does not exist (nor is it a hub id of the form org/name)", name);
}

}  // namespace inflight::checkpoint
