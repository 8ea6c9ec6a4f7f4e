#include "cli/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/format.h"
#include "cli/token_text.h"

namespace inflight::cli {
namespace {

OrderedJson named(const NamedToken& token) { return {{"id", token.id}, {"text", token.text}, {"p", token.p}}; }

std::string quoted(const std::string& text, std::size_t width) {
  const std::string line = one_line(text);
  if (display_width(line) + 2 <= width) return fitted("\"" + line + "\"", width);
  return "\"" + fitted(line, width - 2) + "\"";
}

std::string layer_lines(const Comparison& comparison) {
  constexpr std::size_t kPerLine = 10;
  const std::vector<Noise>& layers = comparison.layers;
  if (layers.empty()) return "Signal to noise of hidden states: not compared, the two have other layers or sizes.\n";
  std::string text = fmt::format("Signal to noise of the hidden state after each layer, dB (embedding: {}):\n", decibels_text(layers[0].decibels()));
  for (std::size_t first = 1; first < layers.size(); first += kPerLine) {
    text += fmt::format("{:>5} ", first - 1);
    for (std::size_t i = first; i < std::min(first + kPerLine, layers.size()); ++i) text += fmt::format(" {:>6}", decibels_text(layers[i].decibels()));
    text += "\n";
  }
  if (const std::int64_t drop = largest_drop(layers); drop >= 0) {
    const auto at = static_cast<std::size_t>(drop);
    text += fmt::format("Most is lost in layer {}: {:.1f} dB.\n", drop, layers[at].decibels() - layers[at + 1].decibels());
  }
  return text;
}

}  // namespace

double Comparison::kl_mean() const { return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size()); }
double Comparison::kl_p99() const { return percentile(kl, 0.99); }
double Comparison::kl_max() const { return *std::ranges::max_element(kl); }
double Comparison::top1() const { return static_cast<double>(same_top) / static_cast<double>(kl.size()); }

std::string decibels_text(double value) { return std::isinf(value) && value > 0 ? "exact" : fmt::format("{:.1f}", value); }

std::string perplexity_text(double nats) {
  const double perplexity = std::exp(nats);
  return perplexity < 1e6 ? fmt::format("{:.4f}", perplexity) : fmt::format("{:.4g}", perplexity);
}

std::int64_t largest_drop(const std::vector<Noise>& layers) {
  std::int64_t at = -1;
  double most = 0;
  for (std::size_t i = 1; i < layers.size(); ++i) {
    const double drop = layers[i - 1].decibels() - layers[i].decibels();
    if (std::isfinite(drop) && drop > most) most = drop, at = static_cast<std::int64_t>(i) - 1;
  }
  return at;
}

OrderedJson comparison_json(const Comparison& comparison) {
  OrderedJson json = {{"kl_mean", comparison.kl_mean()}, {"kl_p99", comparison.kl_p99()}, {"kl_max", comparison.kl_max()}, {"top1", comparison.top1()},
                      {"reference_nats_per_token", comparison.reference.nats}, {"reference_perplexity", std::exp(comparison.reference.nats)}, {"tokens", comparison.kl.size()}};
  if (!comparison.layers.empty()) {
    OrderedJson layers = OrderedJson::array();
    for (const Noise& noise : comparison.layers) {
      const double value = noise.decibels();
      layers.push_back(std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr));
    }
    json["layer_sqnr_db"] = std::move(layers);
  }
  OrderedJson worst = OrderedJson::array();
  for (const ComparedToken& token : comparison.worst)
    worst.push_back({{"window", token.window}, {"position", token.position}, {"kl", token.kl}, {"before", token.before}, {"id", token.id}, {"text", token.text}, {"p", token.p},
                     {"reference_p", token.reference_p}, {"expected", named(token.model)}, {"reference_expected", named(token.reference)}});
  json["worst"] = std::move(worst);
  return json;
}

std::string comparison_text(const Comparison& comparison) {
  const ComparedModel &model = comparison.model, &reference = comparison.reference;
  std::string text = fmt::format("{:<20}{:>14}{:>14}\n{:<20}{:>14.6f}{:>14.6f}\n{:<20}{:>14}{:>14}\n", fmt::format("{} x {} tokens", comparison.windows, comparison.window), "this model", "reference",
                                 "nats per token", model.nats, reference.nats, "perplexity", perplexity_text(model.nats), perplexity_text(reference.nats));
  text += fmt::format("KL from the reference: mean {:.4g}, 99th percentile {:.4g}, largest {:.4g}\n", comparison.kl_mean(), comparison.kl_p99(), comparison.kl_max());
  text += fmt::format("same first choice: {:.2f} % of {} tokens\n\n", 100 * comparison.top1(), grouped(static_cast<std::int64_t>(comparison.kl.size())));
  text += layer_lines(comparison);
  if (comparison.worst.empty()) return text;
  text += fmt::format("\nThe tokens they differ on most, and what each expected there:\n{:>6} {:>6}  {:>7}  {:<13}  {:<19}  {}\n", "window", "place", "KL", "token", "this model", "reference");
  for (const ComparedToken& token : comparison.worst)
    text += fmt::format("{:>6} {:>6}  {:>7.3g}  {}  {}{:>4.0f} %  {}{:>4.0f} %\n", token.window, token.position, token.kl, quoted(token.text, 13), quoted(token.model.text, 13), 100 * token.model.p,
                        quoted(token.reference.text, 13), 100 * token.reference.p);
  return text;
}

}  // namespace inflight::cli
