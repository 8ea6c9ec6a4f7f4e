#include "cli/calibration_report.h"

#include <algorithm>
#include <cmath>

#include "cli/calibration_summary.h"
#include "cli/console.h"
#include "cli/format.h"
#include "cli/html_page.h"

namespace inflight::cli {
namespace {

using engine::Bins;

std::string decibels(double value) { return std::isnan(value) ? "-" : std::isinf(value) ? "exact" : fmt::format("{:.1f}", value); }
std::string number(float value) { return fmt::format("{:.4g}", value); }

std::string layer_name(std::int64_t layer) { return layer < 0 ? "-" : std::to_string(layer); }

// What all charts share, so that heights compare.
struct Axis {
  int low = -8, high = 8;  // octaves
};

std::vector<double> octaves(const engine::PointStats& stats) {
  std::vector<double> shares(Bins::kEndExponent - Bins::kFirstExponent + 1);
  const auto all = static_cast<double>(std::max<std::int64_t>(stats.values(), 1));
  for (int bin = 1; bin < static_cast<int>(stats.histogram.size()); ++bin) shares[static_cast<std::size_t>((bin - 1) / Bins::kPerOctave)] += static_cast<double>(stats.histogram[static_cast<std::size_t>(bin)]) / all;
  return shares;
}

Axis axis_of(const CalibrationSummary& summary) {
  Axis axis{.low = Bins::kEndExponent, .high = Bins::kFirstExponent};
  for (const auto& [place, cell] : summary.cells) {
    if (cell.stats.amax > 0) axis.high = std::max(axis.high, std::ilogb(cell.stats.amax) + 1);
    const std::vector<double> shares = octaves(cell.stats);
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (shares[i] > 0.01) axis.low = std::min(axis.low, static_cast<int>(i) + Bins::kFirstExponent);
  }
  axis.high = std::clamp(axis.high, Bins::kFirstExponent + 8, Bins::kEndExponent + 8);
  axis.low = std::min(axis.low, axis.high - 8);
  return axis;
}

// Distribution, maximum and percentile of one kind over the layers.
std::string chart(const CalibrationSummary& summary, const std::string& kind, const Axis& axis) {
  constexpr double kWidth = 420, kHeight = 200, kLeft = 38, kRight = 6, kTop = 8, kBottom = 22;
  std::vector<std::int64_t> layers;
  for (const std::int64_t layer : summary.layers)
    if (summary.cell(layer, kind)) layers.push_back(layer);
  const double step = (kWidth - kLeft - kRight) / static_cast<double>(layers.size()), octave = (kHeight - kTop - kBottom) / (axis.high - axis.low);
  const auto y = [&](double value) { return kTop + (axis.high - std::clamp(std::log2(std::max(value, 1e-30)), static_cast<double>(axis.low), static_cast<double>(axis.high))) * octave; };
  // A single layer has a line as well.
  const auto trace = [&](std::string& line, double x, float value) {
    if (layers.size() > 1) line += fmt::format("{:.1f},{:.1f} ", x + step / 2, y(value));
    else line += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f}", x, y(value), x + step, y(value));
  };
  float largest = 0;
  double least = INFINITY;
  std::string cells, hits, most, tail, dots;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const PointSummary& cell = *summary.cell(layers[i], kind);
    largest = std::max(largest, cell.stats.amax);
    if (cell.sqnr < least) least = cell.sqnr;
    const double x = kLeft + step * static_cast<double>(i), middle = x + step / 2;
    if (!cell.stats.histogram.empty()) {
      const std::vector<double> shares = octaves(cell.stats);
      for (int exponent = axis.low; exponent < std::min<int>(axis.high, Bins::kEndExponent); ++exponent) {
        const double share = shares[static_cast<std::size_t>(exponent - Bins::kFirstExponent)];
        if (share < 1e-6) continue;
        // Darkness by the logarithm, so that one value in a million still shows.
        cells += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill-opacity='{:.2f}'/>", x + 0.5, y(std::exp2(exponent + 1)), std::max(step - 1, 0.8), octave,
                             0.05 + 0.85 * std::pow((6 + std::log10(share)) / 6, 2.5));
      }
      trace(tail, x, cell.stats.percentile(99.99));
    }
    trace(most, x, cell.stats.amax);
    dots += fmt::format("<circle class='dot' cx='{:.1f}' cy='{:.1f}' r='2.2'/>", middle, y(cell.stats.amax));
    hits += fmt::format("<rect class='hit' x='{:.1f}' y='{}' width='{:.1f}' height='{}'><title>{}largest {}, 99.99 % up to {}, median {}, {} dB{}</title></rect>", x, kTop, step, kHeight - kTop - kBottom,
                        layers[i] < 0 ? "" : fmt::format("layer {}: ", layers[i]), number(cell.stats.amax), number(cell.stats.percentile(99.99)), number(cell.stats.percentile(50)), decibels(cell.sqnr),
                        cell.points > 1 ? fmt::format(" (the lowest of {} experts)", cell.points) : "");
  }
  std::string grid;
  for (int exponent = axis.low; exponent <= axis.high; ++exponent) {
    if (exponent % 4 != 0) continue;
    const double at = y(std::exp2(exponent));
    grid += fmt::format("<line class='grid' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/><text x='{}' y='{:.1f}' text-anchor='end'>2<tspan dy='-3' font-size='8'>{}</tspan></text>", kLeft, kWidth - kRight, at, at,
                        kLeft - 5, at + 4, exponent);
  }
  const std::size_t every = std::max<std::size_t>(1, (layers.size() + 7) / 8);
  for (std::size_t i = 0; i < layers.size(); i += every)
    if (layers[i] >= 0) grid += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>", kLeft + step * (static_cast<double>(i) + 0.5), kHeight - 8, layers[i]);
  return fmt::format(
      "<figure><figcaption>{}<span>up to {}, {} dB</span></figcaption><svg viewBox='0 0 {} {}' role='img' aria-label='{} over the layers'>{}<g class='cell'>{}</g><polyline class='tail' points='{}'/>"
      "<polyline class='most' points='{}'/>{}{}</svg></figure>\n",
      escaped(kind), number(largest), std::isinf(least) ? "-" : decibels(least), kWidth, kHeight, escaped(kind), grid, cells, tail, most, dots, hits);
}

std::string facts(const engine::Calibration& calibration, float bound) {
  std::string text = "<dl>";
  const auto fact = [&](std::string_view name, std::string_view value) { text += html_fact(name, value); };
  for (const auto& [key, name] : {std::pair{"model", "Model"}, {"data", "Data"}, {"prefill_tokens", "Prompt tokens"}, {"decode_tokens", "Generated tokens"}, {"compute", "Arithmetic"}, {"weights", "Weights"}}) {
    const auto at = calibration.metadata.find(key);
    if (at != calibration.metadata.end() && at->second != "0") fact(name, at->second);
  }
  fact("Points", grouped(static_cast<std::int64_t>(calibration.points.size())));
  fact("Largest E4M3 number", number(bound));
  return text + "</dl>\n";
}

std::string signal_table(const CalibrationSummary& summary) {
  constexpr double kLow = 25;  // dB; E4M3 alone, well scaled, gives about 31
  std::string text = "<div class='scroll'><table><thead><tr><th>layer</th>";
  for (const std::string& kind : summary.kinds) {
    const std::size_t dot = kind.rfind('.');
    text += dot == std::string::npos ? fmt::format("<th>{}</th>", escaped(kind)) : fmt::format("<th>{}<br>{}</th>", escaped(kind.substr(0, dot)), escaped(kind.substr(dot + 1)));
  }
  text += "</tr></thead><tbody>";
  for (const std::int64_t layer : summary.layers) {
    text += fmt::format("<tr><td>{}</td>", layer_name(layer));
    for (const std::string& kind : summary.kinds) {
      const PointSummary* cell = summary.cell(layer, kind);
      if (!cell) text += "<td></td>";
      else text += fmt::format("<td{} title='{} dB over all values; largest {}, the clip that loses least is {}'>{}</td>", cell->sqnr < kLow ? " class='low'" : "", decibels(cell->sqnr_of_all), number(cell->stats.amax), number(cell->clip), decibels(cell->sqnr));
    }
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

std::string outlier_table(const CalibrationSummary& summary) {
  if (summary.outliers.empty()) return "<p>None, or the channels are not known.</p>\n";
  std::string text = "<div class='scroll'><table><thead><tr><th>point</th><th>channel</th><th>largest</th><th>median channel</th><th>times</th></tr></thead><tbody>";
  for (const Outlier& outlier : summary.outliers)
    text += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0f}</td></tr>", escaped(outlier.point), outlier.channel, number(outlier.amax), number(outlier.median), outlier.amax / outlier.median);
  return text + "</tbody></table></div>\n";
}

std::string coverage_table(const CalibrationSummary& summary) {
  std::string rows;
  for (const auto& [place, cell] : summary.cells)
    if (cell.points > 1) rows += fmt::format("<tr><td>{}</td><td>{} of {}</td><td>{}</td><td>{}</td></tr>", layer_name(place.first), cell.points - cell.forced - cell.filled, cell.points, cell.forced, cell.filled);
  if (rows.empty()) return "";
  return "<h2>Experts that tokens were routed to</h2><p>An expert that no token reached was shown all of them in a second pass, or has the numbers of its layer's other experts.</p>"
         "<div class='scroll'><table><thead><tr><th>layer</th><th>seen</th><th>shown all tokens</th><th>with the others' numbers</th></tr></thead><tbody>" +
         rows + "</tbody></table></div>\n";
}

}  // namespace

std::string calibration_table(const engine::Calibration& calibration, float bound) {
  const CalibrationSummary summary = summarize(calibration, bound);
  std::size_t width = 2;
  for (const std::string& kind : summary.kinds) width = std::max(width, kind.size());
  std::string text = fmt::format("layer  {:>10}  {:<{}}  {:>10}  {:>7}  {}\n", "largest", "at", width, "99.99 %", "SQNR dB", "lowest at");
  for (const std::int64_t layer : summary.layers) {
    std::string largest_kind, lowest_kind;
    const PointSummary *largest = nullptr, *lowest = nullptr;
    for (const std::string& kind : summary.kinds) {
      const PointSummary* cell = summary.cell(layer, kind);
      if (!cell) continue;
      if (!largest || cell->stats.amax > largest->stats.amax) largest = cell, largest_kind = kind;
      if (!std::isnan(cell->sqnr) && (!lowest || cell->sqnr < lowest->sqnr)) lowest = cell, lowest_kind = kind;
    }
    text += fmt::format("{:>5}  {:>10}  {:<{}}  {:>10}  {:>7}  {}\n", layer_name(layer), number(largest->stats.amax), largest_kind, width,
                        largest->stats.histogram.empty() ? "-" : number(largest->stats.percentile(99.99)), lowest ? decibels(lowest->sqnr) : "-", lowest_kind);
  }
  return text;
}

std::string calibration_page(const engine::Calibration& calibration, float bound) {
  const CalibrationSummary summary = summarize(calibration, bound);
  const Axis axis = axis_of(summary);
  const auto model = calibration.metadata.find("model");
  const std::string title = "Calibration" + (model == calibration.metadata.end() ? "" : " of " + model->second);
  std::string page = facts(calibration, bound);
  page += "<h2>Activations over the layers</h2><p>A column is a layer, its darkness the share of values in that octave of |x|. A maximum far above the 99.99 percentile is a few values that decide the scale of all.</p>\n"
          "<div class='key'><span><svg viewBox='0 0 30 10'><g class='cell'><rect x='0' width='10' height='10' fill-opacity='.15'/><rect x='10' width='10' height='10' fill-opacity='.5'/><rect x='20' width='10' height='10' "
          "fill-opacity='.9'/></g></svg>share of values</span><span><svg viewBox='0 0 30 10'><line class='most' x1='0' x2='30' y1='5' y2='5'/><circle class='dot' cx='15' cy='5' r='3'/></svg>largest |x|</span>"
          "<span><svg viewBox='0 0 30 10'><line class='tail' x1='0' x2='30' y1='5' y2='5'/></svg>99.99 percentile</span></div>\n<div class='charts'>\n";
  for (const std::string& kind : summary.kinds) page += chart(summary, kind, axis);
  page += "</div>\n<h2>Signal to noise of FP8</h2><p>Estimated from the histograms, in dB: values rounded to E4M3, scaled by the maximum. Values beyond the 99.99 percentile set the scale and are left out of the sums, "
          "which they would outweigh. About 31 is what E4M3 can do; under 25 is marked. Of experts, the lowest. Hold the pointer over a number for more.</p>\n";
  page += signal_table(summary);
  page += "<h2>Channels that stand out</h2><p>Inputs whose maximum is more than eight times that of their point's median channel, the most prominent first.</p>\n";
  page += outlier_table(summary);
  page += coverage_table(summary);
  return html_page(title, page);
}

}  // namespace inflight::cli
