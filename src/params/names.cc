#include "params/names.h"

namespace inflight::params {

std::vector<NameMapping> names_to_trainer(const ParamTable& table) {
  std::vector<NameMapping> mappings;
  for (const ParamSpec& row : table.rows) {
    if (row.derivation) continue;
    NameMapping mapping{row.full_name(), {}};
    for (std::size_t p = 0; p < row.pieces.size(); ++p)
      if (const std::string name = row.piece_name(p); mapping.trainer.empty() || mapping.trainer.back() != name) mapping.trainer.push_back(name);
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

std::map<std::string, std::vector<std::string>> names_to_runtime(const ParamTable& table) {
  std::map<std::string, std::vector<std::string>> names;
  for (const NameMapping& mapping : names_to_trainer(table))
    for (const std::string& tensor : mapping.trainer) names[tensor].push_back(mapping.runtime);
  return names;
}

}  // namespace inflight::params
