#include "cli/comparison_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/format.h"
#include "cli/html_page.h"
#include "cli/token_text.h"

namespace inflight::cli {
namespace {

// The plot area of both charts, in units of their view box.
constexpr double kWidth = 420, kHeight = 210, kLeft = 40, kRight = 14, kTop = 10, kBottom = 34;
constexpr double kInnerWidth = kWidth - kLeft - kRight, kInnerHeight = kHeight - kTop - kBottom;

std::string layer_title(std::size_t index, std::size_t count) {
  if (index == 0) return "embedding";
  return fmt::format("layer {}{}", index - 1, index + 1 == count ? " and the final norm" : "");
}

std::string figure(std::string_view caption, std::string_view aside, std::string_view drawing, std::string_view axis) {
  return fmt::format("<figure><figcaption>{}<span>{}</span></figcaption><svg viewBox='0 0 {} {}' role='img' aria-label='{}'>{}<text x='{}' y='{}' text-anchor='middle'>{}</text></svg></figure>\n",
                     escaped(caption), escaped(aside), kWidth, kHeight, escaped(caption), drawing, kLeft + kInnerWidth / 2, kHeight - 4, axis);
}

std::string level(double y, std::string_view label) {
  return fmt::format("<line class='grid' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/><text x='{}' y='{:.1f}' text-anchor='end'>{}</text>", kLeft, kWidth - kRight, y, y, kLeft - 5, y + 3.5, label);
}

std::string layer_chart(const std::vector<Noise>& layers) {
  double low = INFINITY, high = -INFINITY;
  for (const Noise& noise : layers)
    if (const double value = noise.decibels(); std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  const std::string caption = "Signal to noise after each layer";
  if (low > high) return figure(caption, "no difference at all", "", "");
  const double lowest = low;
  low = std::floor(low / 10) * 10;
  high = std::max(std::ceil(high / 10) * 10, low + 10);
  const double grid_step = high - low > 60 ? 20 : 10;
  const double step = kInnerWidth / static_cast<double>(layers.size());
  const auto y = [&](double value) { return kTop + (high - value) / (high - low) * kInnerHeight; };
  std::string drawing, points, dots, hits;
  for (double value = low; value <= high + 0.5; value += grid_step) drawing += level(y(value), fmt::format("{:.0f}", value));
  const std::size_t every = std::max<std::size_t>(1, (layers.size() + 9) / 10);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double middle = kLeft + step * (static_cast<double>(i) + 0.5), value = layers[i].decibels();
    if (i > 0 && (i - 1) % every == 0) drawing += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>", middle, kHeight - kBottom + 13, i - 1);
    if (std::isfinite(value)) {
      points += fmt::format("{:.1f},{:.1f} ", middle, y(value));
      dots += fmt::format("<circle class='dot' cx='{:.1f}' cy='{:.1f}' r='2.4'/>", middle, y(value));
    }
    hits += fmt::format("<rect class='hit' x='{:.1f}' y='{}' width='{:.1f}' height='{}'><title>{}: {}{}</title></rect>", kLeft + step * static_cast<double>(i), kTop, step, kInnerHeight, layer_title(i, layers.size()),
                        decibels_text(value), std::isfinite(value) ? " dB" : "");
  }
  return figure(caption, fmt::format("lowest {:.1f} dB", lowest), drawing + fmt::format("<polyline class='most' points='{}'/>", points) + dots + hits, "layer");
}

std::string percent(double p) { return p > 0 && p < 5e-5 ? "&lt; 0.01 %" : fmt::format("{:.2f} %", 100 * p); }

// Tokens by the size of their KL, in thirds of a decade.
std::string divergence_chart(const std::vector<double>& kl) {
  constexpr int kPerDecade = 3, kSmallest = -10, kLargest = 3;  // decades of nats; what is smaller or larger is counted in the outermost bar
  const auto decade_of = [](double value) { return std::log10(std::max(value, 1e-300)); };
  const int begin = std::clamp(static_cast<int>(std::floor(decade_of(*std::ranges::min_element(kl)))), kSmallest, 0);
  const int end = std::clamp(static_cast<int>(std::ceil(decade_of(*std::ranges::max_element(kl)))), begin + 2, kLargest);
  const int bar_count = (end - begin) * kPerDecade;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(bar_count));
  for (const double value : kl) ++counts[static_cast<std::size_t>(std::clamp(std::floor((decade_of(value) - begin) * kPerDecade), 0.0, bar_count - 1.0))];
  const auto all = static_cast<double>(kl.size());
  const double most = static_cast<double>(*std::ranges::max_element(counts)) / all, step = kInnerWidth / bar_count;
  const double grid_step = most > 0.5 ? 0.25 : most > 0.2 ? 0.1 : 0.05, top = std::ceil(most / grid_step) * grid_step;
  const auto y = [&](double share) { return kTop + (1 - share / top) * kInnerHeight; };
  std::string drawing, bars, hits;
  for (double share = 0; share <= top + 1e-9; share += grid_step) drawing += level(y(share), fmt::format("{:.0f}&#8239;%", 100 * share));
  for (int decade = begin; decade <= end; decade += end - begin > 6 ? 2 : 1)
    drawing += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>10<tspan dy='-3' font-size='8'>{}</tspan></text>", kLeft + step * kPerDecade * (decade - begin), kHeight - kBottom + 14, decade);
  for (int bar = 0; bar < bar_count; ++bar) {
    const std::int64_t count = counts[static_cast<std::size_t>(bar)];
    if (count == 0) continue;
    const double share = static_cast<double>(count) / all, x = kLeft + step * bar;
    const double from = std::pow(10, begin + static_cast<double>(bar) / kPerDecade), to = std::pow(10, begin + static_cast<double>(bar + 1) / kPerDecade);
    const std::string range = bar == 0 ? fmt::format("under {:.2g}", to) : bar + 1 == bar_count ? fmt::format("{:.2g} and more", from) : fmt::format("{:.2g} to {:.2g}", from, to);
    bars += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'/>", x + 0.5, y(share), step - 1, y(0) - y(share));
    hits += fmt::format("<rect class='hit' x='{:.1f}' y='{}' width='{:.1f}' height='{}'><title>{}: {} tokens, {:.2f} %</title></rect>", x, kTop, step, kInnerHeight, range, grouped(count), 100 * share);
  }
  return figure("Divergence of the tokens", fmt::format("{} tokens", grouped(static_cast<std::int64_t>(kl.size()))), drawing + "<g class='cell'>" + bars + "</g>" + hits, "KL, nats");
}

std::string models_table(const ComparedModel& model, const ComparedModel& reference) {
  std::string text = "<div class='scroll fit'><table><thead><tr><th></th><th class='left'>this model</th><th class='left'>reference</th></tr></thead><tbody>";
  const auto row = [&](std::string_view name, std::string_view ours, std::string_view theirs) {
    text += fmt::format("<tr><td>{}</td><td class='left'>{}</td><td class='left'>{}</td></tr>", escaped(name), escaped(ours), escaped(theirs));
  };
  row("perplexity", perplexity_text(model.nats), perplexity_text(reference.nats));
  row("nats per token", fmt::format("{:.6f}", model.nats), fmt::format("{:.6f}", reference.nats));
  row("checkpoint", model.name, reference.name);
  for (std::size_t i = 0; i < model.facts.size(); ++i) row(model.facts[i].first, model.facts[i].second, reference.facts[i].second);
  return text + "</tbody></table></div>\n";
}

std::string layer_table(const std::vector<Noise>& layers) {
  constexpr std::size_t kPerRow = 10;
  std::string text = "<div class='scroll'><table><thead><tr><th>layer</th>";
  for (std::size_t i = 0; i < std::min(kPerRow, layers.size() - 1); ++i) text += fmt::format("<th>+{}</th>", i);
  text += "</tr></thead><tbody>";
  const std::int64_t drop = largest_drop(layers);
  for (std::size_t first = 1; first < layers.size(); first += kPerRow) {
    text += fmt::format("<tr><td>{}</td>", first - 1);
    for (std::size_t i = first; i < first + kPerRow && (i < layers.size() || first > kPerRow); ++i) {
      if (i >= layers.size()) text += "<td></td>";
      else text += fmt::format("<td{} title='{}'>{}</td>", static_cast<std::int64_t>(i) - 1 == drop ? " class='low'" : "", layer_title(i, layers.size()), decibels_text(layers[i].decibels()));
    }
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

std::string expected_cell(const NamedToken& token) { return fmt::format("<td class='left'><code>{}</code> {}</td>", escaped(one_line(token.text)), percent(token.p)); }

std::string worst_table(const std::vector<ComparedToken>& worst) {
  if (worst.empty()) return "<p>None: no token has any divergence.</p>\n";
  std::string text =
      "<div class='scroll tight'><table><thead><tr><th>window</th><th>place</th><th>KL</th><th>text before</th><th class='left'>token</th><th>p of<br>this model</th><th>p of the<br>reference</th>"
      "<th class='left'>this model<br>expects</th><th class='left'>the reference<br>expects</th></tr></thead><tbody>";
  for (const ComparedToken& token : worst)
    text += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.4g}</td><td>{}</td><td class='left'><code>{}</code></td><td>{}</td><td>{}</td>{}{}</tr>", token.window, token.position, token.kl,
                        escaped(one_line(token.before)), escaped(one_line(token.text)), percent(token.p), percent(token.reference_p), expected_cell(token.model), expected_cell(token.reference));
  return text + "</tbody></table></div>\n";
}

}  // namespace

std::string comparison_page(const Comparison& comparison) {
  std::string body = "<dl>";
  body += html_fact("Mean KL from the reference", fmt::format("{:.4g}", comparison.kl_mean()));
  body += html_fact("99th percentile", fmt::format("{:.4g}", comparison.kl_p99()));
  body += html_fact("Largest", fmt::format("{:.4g}", comparison.kl_max()));
  body += html_fact("Same first choice", fmt::format("{:.2f} %", 100 * comparison.top1()));
  body += html_fact("Tokens scored", fmt::format("{} in {} windows of {}", grouped(static_cast<std::int64_t>(comparison.kl.size())), grouped(comparison.windows), grouped(comparison.window)));
  body += html_fact("Text", comparison.data);
  body += html_fact("Tokens run as", comparison.mode == "decode" ? "generated ones" : "a prompt");
  body += "</dl>\n<h2>The two models</h2>\n" + models_table(comparison.model, comparison.reference);
  body += "<h2>Where they part</h2><p>KL in nats, from the reference's distribution to this model's, at every scored token; signal to noise in dB, the hidden state against the reference's over all tokens: 6 dB less is twice "
          "the error. Hold the pointer over a chart for numbers.</p>\n<div class='charts pair'>\n";
  if (!comparison.layers.empty()) body += layer_chart(comparison.layers);
  body += divergence_chart(comparison.kl) + "</div>\n<h2>Signal to noise after each layer</h2>";
  if (comparison.layers.size() > 1) {
    body += fmt::format("<p>In dB; the last with the final norm. Marked: the layer that loses most against the one before. After the embedding: {}.</p>\n", decibels_text(comparison.layers[0].decibels()));
    body += layer_table(comparison.layers);
  } else {
    body += "<p>Not compared: the two have other layers or sizes.</p>\n";
  }
  body += "<h2>The tokens they differ on most</h2><p>Place: of the predicted token in its window, from 0. p: what each gave to the token that is really there; then what it expected most.</p>\n";
  body += worst_table(comparison.worst);
  return html_page("Accuracy of " + comparison.model.name, body);
}

}  // namespace inflight::cli
