#include "kernels/dispatch.h"

#include <cstdlib>

#include "base/nearest.h"

namespace inflight::kernels {

#define ISA(name, flags, supported) extern const Kernels table_##name;
#include "kernels/isa.def"
#undef ISA

namespace {

struct Entry {
  std::string_view name;
  const Kernels* table;
  bool supported;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
#define ISA(name, flags, supported) {#name, &table_##name, (supported) != 0},
#include "kernels/isa.def"
#undef ISA
  };
  return all;
}

}  // namespace

std::vector<std::string_view> available() {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries())
    if (entry.supported) names.push_back(entry.name);
  return names;
}

Result<const Kernels*> find(std::string_view isa) {
  for (const Entry& entry : entries())
    if (entry.name == isa && entry.supported) return entry.table;
  return fail(Code::kUnsupported, "instruction set \"{}\" is not available on this CPU; {}", isa, known_names_hint(isa, available()));
}

Result<const Kernels*> choose() {
  const char* forced = std::getenv("INFLIGHT_ISA");
  if (forced && *forced) {
    auto table = find(forced);
    if (!table) return fail_at("INFLIGHT_ISA", std::move(table).error());
    return *table;
  }
  const Kernels* best = nullptr;
  for (const Entry& entry : entries())
    if (entry.supported) best = entry.table;
  return best;
}

}  // namespace inflight::kernels
