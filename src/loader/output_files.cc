#include "loader/output_files.h"

#include <algorithm>
#include <array>
#include <filesystem>

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

}  // namespace inflight::loader
