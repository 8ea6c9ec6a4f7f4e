#include "loader/param_reader.h"

#include <algorithm>
#include <map>

#include "loader/chunk.h"
#include "loader/load.h"

namespace inflight::loader {

ParamReader::ParamReader(const checkpoint::Checkpoint& checkpoint, const params::ParamTable& table, const LoadPlan& plan, const quant::Kernels& kernels, ThreadPool& pool)
    : checkpoint_(checkpoint), table_(table), plan_(plan), kernels_(kernels), pool_(pool), routes_(table.rows.size()), place_(table.rows.size(), kNowhere) {
  for (std::size_t r = 0; r < plan.routes.size(); ++r) routes_[plan.routes[r].param].push_back(r);
}

Result<void> ParamReader::load(std::span<const std::size_t> params) {
  for (const std::size_t param : loaded_) place_[param] = kNowhere;
  loaded_.assign(params.begin(), params.end());
  params::ParamTable table;
  LoadPlan plan;
  std::vector<std::size_t> routes;
  for (const std::size_t param : params) {
    place_[param] = table.rows.size();
    table.rows.push_back(table_.rows[param]);
    routes.insert(routes.end(), routes_[param].begin(), routes_[param].end());
  }
  std::ranges::sort(routes);  // in file order
  std::map<int, int> forms;
  for (const std::size_t r : routes) {
    Route route = plan_.routes[r];
    route.param = place_[route.param];
    if (route.form >= 0) {
      const auto [at, added] = forms.try_emplace(route.form, static_cast<int>(plan.forms.size()));
      if (added) plan.forms.push_back(plan_.forms[static_cast<std::size_t>(route.form)]);
      route.form = at->second;
    }
    plan.routes.push_back(route);
  }
  quant::FormatPolicy policy{.linear = &quant::f32_format(), .expert = &quant::f32_format(), .head = &quant::f32_format()};
  plan.params = TRY(quant::plan_params(table, {}, policy, std::vector<bool>(table.rows.size(), true), std::vector<const quant::Format*>(table.rows.size(), nullptr)));
  store_ = {};
  TRY(store_.allocate(plan.params));
  TRY(load_streaming({checkpoint_, plan, table, kernels_, pool_, store_}, {}));
  return {};
}

}  // namespace inflight::loader
