#include "cli/bench_ranks.h"

#include <set>

#include "cli/format.h"
#include "kernels/kernels.h"

namespace inflight::cli {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kStepMessage = 4096;  // by which rank 0 tells each other rank of a step of up to some hundred tokens

double per(std::int64_t value, std::int64_t count) { return static_cast<double>(value) / static_cast<double>(count); }

// What products whose inputs are sorted by group (act-order) gather before they begin, at this rank.
struct GatheredInputs {
  std::int64_t collectives = 0;  // of a step whose tokens have one arithmetic
  std::int64_t numbers = 0;      // of a token that go to each other rank
};

// The experts of a layer gather once, the rows of all the experts that a token chose.
GatheredInputs gathered_inputs(const engine::OpenedModel& opened) {
  GatheredInputs gathered;
  std::set<std::int64_t> layers;
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) {
    const params::ParamSpec& row = opened.table.rows[i];
    const quant::Matrix& w = opened.store.matrix(i);
    if (!w.gathers_inputs || (row.expert >= 0 && !layers.insert(row.layer).second)) continue;
    ++gathered.collectives;
    gathered.numbers += (w.inputs - w.lead) * (row.expert >= 0 ? opened.model->info().experts_per_token : 1);
  }
  return gathered;
}

OrderedJson part_json(const engine::OpenedModel& opened, const SentInSteps& sent) {
  const models::ModelInfo& info = opened.model->info();
  OrderedJson json = {{"bytes_per_token", per(sent.traffic.bytes, sent.tokens)}, {"messages_per_token", per(sent.traffic.messages, sent.tokens)}, {"collectives_per_step", per(sent.traffic.collectives, sent.steps)}};
  if (const auto formula = formula_traffic(opened, sent)) {
    const double n = opened.ranks->size();
    json["formula_bytes_per_token"] = per(formula->bytes, sent.tokens);
    json["formula_messages_per_token"] = per(formula->messages, sent.tokens);
    // What is neither the embedding's sum, the head's gather nor the step's announcement.
    const double layer = 2 * 2 * (n - 1) / n * static_cast<double>(kFloat * info.hidden) + (n - 1) * static_cast<double>(kFloat * gathered_inputs(opened).numbers) / static_cast<double>(info.layers);
    json["bytes_per_token_per_layer"] = (per(sent.traffic.bytes - formula->bytes, sent.tokens) + layer * static_cast<double>(info.layers)) / static_cast<double>(info.layers);
    json["formula_bytes_per_token_per_layer"] = layer;
  }
  return json;
}

std::string part_text(const char* name, const OrderedJson& json) {
  const auto number = [&](const char* key) { return json[key].get<double>(); };
  std::string text = fmt::format("{:<10}a rank sends {:.0f} bytes and {:.1f} messages a token, {:.0f} collectives a step", name, number("bytes_per_token"), number("messages_per_token"), number("collectives_per_step"));
  if (json.contains("formula_bytes_per_token"))
    text += fmt::format("; by the formula {:.0f} bytes and {:.1f} messages; of a layer {:.0f}, by the formula {:.0f}", number("formula_bytes_per_token"), number("formula_messages_per_token"),
                        number("bytes_per_token_per_layer"), number("formula_bytes_per_token_per_layer"));
  return text + "\n";
}

}  // namespace

comm::Traffic traffic_so_far(const engine::OpenedModel& opened) {
  comm::Traffic sum;
  for (const comm::Comm* group : std::set<const comm::Comm*>{opened.ranks.get(), opened.runtime->tensor_ranks, opened.runtime->expert_ranks}) {
    if (!group) continue;
    const comm::Traffic traffic = group->traffic();
    sum.collectives += traffic.collectives;
    sum.messages += traffic.messages;
    sum.bytes += traffic.bytes;
  }
  return sum;
}

SentInSteps TrafficWatch::end(std::int64_t steps, std::int64_t tokens, std::int64_t logit_rows) const {
  const comm::Traffic now = traffic_so_far(opened_);
  return {steps, tokens, logit_rows, {now.collectives - before_.collectives, now.messages - before_.messages, now.bytes - before_.bytes}};
}

std::optional<comm::Traffic> formula_traffic(const engine::OpenedModel& opened, const SentInSteps& sent) {
  if (!opened.ranks || opened.runtime->expert_ranks) return std::nullopt;
  const models::ModelInfo& info = opened.model->info();
  const std::int64_t n = opened.ranks->size(), sums = 2 * info.layers + 1;
  const std::int64_t panels = (info.vocabulary + kernels::kPanelRows - 1) / kernels::kPanelRows, run = (panels + n - 1) / n * kernels::kPanelRows;
  const std::int64_t gathers = sent.logit_rows > 0 ? (sent.logit_rows < sent.steps ? sent.logit_rows : sent.steps) : 0;
  const GatheredInputs inputs = gathered_inputs(opened);
  comm::Traffic formula;
  formula.collectives = sent.steps * (sums + 1 + inputs.collectives) + gathers;
  formula.messages = sent.steps * (sums * 2 * (n - 1) + (n - 1) * (1 + inputs.collectives)) + gathers * (n - 1);
  formula.bytes = (n - 1) * kFloat * inputs.numbers * sent.tokens + sums * 2 * (n - 1) * kFloat * info.hidden * sent.tokens / n + (n - 1) * kFloat * run * sent.logit_rows + sent.steps * (n - 1) * kStepMessage;
  return formula;
}

OrderedJson ranks_json(const engine::OpenedModel& opened, const SentInSteps& prefill, const SentInSteps& decode) {
  OrderedJson json = {{"size", opened.ranks->size()}};
  if (prefill.tokens > 0) json["prefill"] = part_json(opened, prefill);
  if (decode.tokens > 0) json["decode"] = part_json(opened, decode);
  return json;
}

std::string ranks_text(const OrderedJson& json) {
  std::string text = fmt::format("ranks     {}; the figures above are those of rank 0\n", json["size"].get<int>());
  for (const char* name : {"prefill", "decode"})
    if (json.contains(name)) text += part_text(name, json[name]);
  return text;
}

}  // namespace inflight::cli
