#include "cli/html_page.h"

#include <fmt/format.h>

#include "base/file.h"

namespace inflight::cli {
namespace {

// Light and dark; hues that tell apart without red against green.
constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1c1d1f; --soft: #63666b; --line: #dedfdc; --panel: #ffffff; --heat: #2f6db5; --most: #c2500b; --tail: #1c1d1f; --flag: #fbe3cf; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --ink: #e9eaeb; --soft: #9da2a8; --line: #32363b; --panel: #1d2024; --heat: #6aa5ea; --most: #f5954a; --tail: #e9eaeb; --flag: #4a2f17; } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 64px }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere } h2 { font-size: 18px; margin: 40px 0 6px } p { margin: 4px 0 12px; max-width: 78ch; color: var(--soft) }
dl { display: flex; flex-wrap: wrap; gap: 8px 36px; margin: 16px 0 0 } dt { color: var(--soft); font-size: 13px } dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 16px }
.pair { grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)) }
figure { display: flex; flex-direction: column; justify-content: space-between; margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px 6px }
figcaption { font-weight: 600; font-size: 14px; display: flex; flex-wrap: wrap; justify-content: space-between; column-gap: 12px; overflow-wrap: anywhere } figcaption span { color: var(--soft); font-weight: 400; white-space: nowrap }
svg { display: block; width: 100%; height: auto } svg text { fill: var(--soft); font-size: 10px; font-variant-numeric: tabular-nums }
.grid { stroke: var(--line) } .cell { fill: var(--heat) } .most { stroke: var(--most); fill: none; stroke-width: 1.8 } .tail { stroke: var(--tail); fill: none; stroke-width: 1.3; stroke-dasharray: 4 2.5 }
.dot { fill: var(--most) } .hit { fill: transparent } .hit:hover { fill: var(--heat); fill-opacity: .14 }
.key { display: flex; flex-wrap: wrap; gap: 6px 24px; margin: 8px 0 14px; color: var(--soft); font-size: 13px } .key svg { display: inline-block; width: 30px; height: 10px; margin-right: 6px; vertical-align: baseline }
.scroll { overflow-x: auto; background: var(--panel); border: 1px solid var(--line); border-radius: 6px }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums } th, td { padding: 4px 12px; text-align: right; white-space: nowrap; border-top: 1px solid var(--line) }
thead th { border-top: 0; color: var(--soft); font-weight: 600; vertical-align: bottom } td:first-child, th:first-child, .left { text-align: left } td.low { background: var(--flag) } .tight th, .tight td { padding: 4px 8px } .fit { width: fit-content; max-width: 100% }
code { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; white-space: pre; background: var(--page); border-radius: 3px; padding: 1px 4px }
@media (max-width: 560px) { main { padding: 20px 12px 40px } }
)";

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

std::string html_page(std::string_view title, std::string_view body) {
  const std::string name = escaped(title);
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'><title>{}</title><style>{}</style></head><body><main>\n"
      "<h1>{}</h1>\n{}</main></body></html>\n",
      name, kStyle, name, body);
}

std::string html_fact(std::string_view name, std::string_view value) { return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value)); }

Result<void> check_writable(const std::string& path) {
  if (path.empty()) return {};
  if (is_directory(path)) return fail(Code::kInvalidArgument, "\"{}\" is a folder; name a file to write", path);
  TRY(OutputFile::create(path));
  return {};
}

Result<void> write_text_file(const std::string& path, std::string_view text) {
  OutputFile file = TRY(OutputFile::create(path));
  TRY(file.write(text.data(), text.size()));
  TRY(file.commit());
  return {};
}

}  // namespace inflight::cli
