#include "engine/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace inflight::engine {
namespace {

// cgroup v1 writes "no limit" as 2^63 - 1 rounded down to a page; no machine has this much.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// The leading decimal number; nullopt for words ("max", "unlimited"). Values past int64 are no limit.
std::optional<std::int64_t> leading_number(std::string_view text) {
  text = trimmed(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return kNoLimit;
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

// The number that a file holds, alone.
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return leading_number(line);
}

// The number after `key` at the start of a line, as in "MemAvailable:  12 kB" or "inactive_file 4096".
std::optional<std::int64_t> number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return leading_number(std::string_view(line).substr(key.size()));
  return std::nullopt;
}

void lower(MemoryLimit& limit, std::int64_t bytes, std::string source) {
  bytes = std::max<std::int64_t>(bytes, 0);
  if (bytes >= limit.bytes) return;
  limit = {bytes, std::move(source)};
}

struct CgroupFiles {
  std::string_view limits[2];
  std::string_view usage, inactive_file, active_file;
};
constexpr CgroupFiles kV2{{"memory.max", "memory.high"}, "memory.current", "inactive_file ", "active_file "};
constexpr CgroupFiles kV1{{"memory.limit_in_bytes", ""}, "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "};

void lower_by_cgroup(MemoryLimit& limit, const std::string& mount, std::string path, const CgroupFiles& files) {
  for (;;) {  // a limit may sit on any ancestor; folders that a container does not see are skipped
    while (path.ends_with('/')) path.pop_back();
    const std::string folder = mount + path + "/";
    for (const std::string_view name : files.limits) {
      if (name.empty()) continue;
      const std::string file = folder + std::string(name);
      const auto most = number_in(file);
      const auto used = number_in(folder + std::string(files.usage));
      if (!most || !used || *most >= kNoLimit) continue;
      const std::string stat = folder + "memory.stat";
      const std::int64_t cache = number_after(stat, files.inactive_file).value_or(0) + number_after(stat, files.active_file).value_or(0);
      lower(limit, *most - std::max<std::int64_t>(*used - cache, 0), "cgroup " + file);
    }
    if (path.empty()) return;
    path.resize(path.find_last_of('/'));
  }
}

void lower_by_cgroups(MemoryLimit& limit, const SystemRoots& roots) {
  std::ifstream self(roots.proc + "/self/cgroup");
  for (std::string line; std::getline(self, line);) {  // "4:memory:/a/b" (v1) or "0::/a/b" (v2)
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers == ",,") {
      lower_by_cgroup(limit, roots.cgroup, path, kV2);
      lower_by_cgroup(limit, roots.cgroup + "/unified", path, kV2);  // where v1 and v2 are mounted side by side
    } else if (controllers.find(",memory,") != std::string::npos) {
      lower_by_cgroup(limit, roots.cgroup + "/memory", path, kV1);
    }
  }
}

void lower_by_rlimits(MemoryLimit& limit, const SystemRoots& roots) {
  const std::string limits = roots.proc + "/self/limits", status = roots.proc + "/self/status";
  const struct {
    std::string_view row, used, name;
  } kinds[] = {{"Max address space", "VmSize:", "RLIMIT_AS"}, {"Max data size", "VmData:", "RLIMIT_DATA"}};
  for (const auto& kind : kinds) {
    const auto most = number_after(limits, kind.row);  // the soft limit is the first column, in bytes
    const auto used = number_after(status, kind.used);  // kB
    if (!most || !used || *most >= kNoLimit) continue;
    lower(limit, *most - *used * 1024, std::string(kind.name));
  }
}

}  // namespace

Result<MemoryLimit> available_memory(const SystemRoots& roots) {
  const std::string meminfo = roots.proc + "/meminfo";
  const auto available = number_after(meminfo, "MemAvailable:");
  if (!available)
    return fail(Code::kUnsupported, "{}: no MemAvailable line, so free memory is unknown; give the KV cache a size with kv_cache_bytes", meminfo);
  MemoryLimit limit{*available * 1024, "MemAvailable"};
  lower_by_cgroups(limit, roots);
  lower_by_rlimits(limit, roots);
  return limit;
}

std::string format_bytes(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= (std::int64_t{1} << 30)) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (bytes >= (std::int64_t{1} << 20)) return fmt::format("{:.1f} MiB", value / 0x1p20);
  if (bytes >= 1024) return fmt::format("{:.1f} KiB", value / 1024);
  return fmt::format("{} B", bytes);
}

}  // namespace inflight::engine
