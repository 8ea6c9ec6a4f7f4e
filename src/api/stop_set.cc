#include "api/stop_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace inflight::api {
namespace {

// Tokens that close a turn in published chat templates.
constexpr std::string_view kEndOfTurn[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<end_of_turn>", "<|end_of_text|>", "<|end|>", "<|end_of_sentence|>", "<|eot|>"};

// Two turns as the template writes them; "" when it has none or refuses them.
std::string sample_conversation(const text::ChatTemplate& chat) {
  if (!chat.has_template()) return "";
  const OrderedJson messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}, {{"role", "user"}, {"content", "c"}}};
  return chat.render({.messages = messages}).value_or("");
}

}  // namespace

std::vector<StopId> stop_set(const std::vector<std::int32_t>& config_ids, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat) {
  const std::string conversation = sample_conversation(chat);
  std::vector<StopId> stops;
  const auto add = [&](std::int32_t id, std::string_view source) {
    if (id >= 0 && std::ranges::find(stops, id, &StopId::id) == stops.end()) stops.push_back({id, tokenizer.token_of(id), std::string(source)});
  };
  for (const std::int32_t id : config_ids) add(id, "config");
  for (const std::int32_t id : tokenizer.eos_ids()) add(id, "tokenizer");
  for (const std::string_view marker : kEndOfTurn) {
    const std::int32_t id = tokenizer.id_of(marker);
    if (id >= 0 && tokenizer.is_special(id) && conversation.find(marker) != std::string::npos) add(id, "chat template");
  }
  std::ranges::sort(stops, {}, &StopId::id);
  return stops;
}

std::vector<std::int32_t> ids_of(const std::vector<StopId>& stops) {
  std::vector<std::int32_t> ids;
  for (const StopId& stop : stops) ids.push_back(stop.id);
  return ids;
}

std::string describe(const std::vector<StopId>& stops) {
  if (stops.empty()) return "none";
  std::vector<std::string> parts;
  for (const StopId& stop : stops) parts.push_back(fmt::format("{} {} ({})", stop.id, stop.token.empty() ? "without text" : stop.token, stop.source));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace inflight::api
