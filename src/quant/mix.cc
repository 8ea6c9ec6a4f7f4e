#include "quant/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "quant/integer_formats.h"

namespace inflight::quant {
namespace {

using params::ParamSpec;
using params::Role;

std::string name_of(const ParamSpec& row) { return row.scope.empty() ? row.name : row.scope + "." + row.name; }

// The layer of "model.layers.3.mlp.down_proj", -1 without one.
int layer_of(const std::string& name) {
  constexpr std::string_view kLayers = ".layers.";
  const std::size_t at = name.find(kLayers);
  return at == std::string::npos ? -1 : std::atoi(name.c_str() + at + kLayers.size());
}

double bits_of(const params::ParamTable& table, const FormatPolicy& policy) {
  double bits = 0, weights = 0;
  for (const ParamSpec& row : table.rows) {
    if (row.role != Role::kLinear && row.role != Role::kExpert) continue;
    const Format& format = *policy.of(row);
    const PackedBytes bytes = format.bytes(row.outputs(), row.inputs, format.group);
    bits += 8 * static_cast<double>(bytes.codes + bytes.scales);
    weights += static_cast<double>(row.outputs()) * static_cast<double>(row.inputs);
  }
  return weights == 0 ? 0 : bits / weights;
}

}  // namespace

std::vector<FormatPolicy::Override> mix_overrides(const params::ParamTable& table) {
  int layers = 0;
  for (const ParamSpec& row : table.rows) layers = std::max(layers, layer_of(name_of(row)) + 1);
  const auto found = [&](int layer, std::string_view part) {
    std::string suffix = fmt::format(".layers.{}.{}", layer, part);
    return std::ranges::any_of(table.rows, [&](const ParamSpec& row) { return row.role == Role::kLinear && name_of(row).ends_with(suffix); }) ? "*" + suffix : std::string();
  };
  std::vector<std::string> first, middle;
  for (const std::string_view part : {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.down_proj"})
    if (std::string pattern = found(0, part); !pattern.empty()) first.push_back(std::move(pattern));
  std::vector<int> order;
  for (int layer = 1; layer < layers - 1; ++layer) order.push_back(layer);
  std::ranges::sort(order, {}, [&](int layer) { return std::pair(std::abs(2 * layer - layers + 1), layer); });
  for (const int layer : order)
    if (std::string pattern = found(layer, "mlp.up_gate_proj"); !pattern.empty()) middle.push_back(std::move(pattern));

  for (std::size_t kept = first.size(); kept > 0; --kept)
    for (std::size_t paid = 0; paid <= middle.size(); ++paid) {
      FormatPolicy policy{.linear = &wlut4_format(), .expert = &wlut4_format()};
      for (std::size_t i = 0; i < kept; ++i) policy.overrides.push_back({first[i], &wint8_format()});
      for (std::size_t i = 0; i < paid; ++i) policy.overrides.push_back({middle[i], &wint4_g128_format()});
      if (bits_of(table, policy) <= kMixBits) return policy.overrides;
    }
  return {};
}

}  // namespace inflight::quant
