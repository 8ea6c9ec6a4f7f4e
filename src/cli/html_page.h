// The frame that reports share: one HTML file that needs nothing else, light and dark as the reader's system is.
//
// Classes for the body: dl of facts; .charts of figures with svg (.pair: two that share the width); .scroll around a table (.fit: no wider than it; .tight: many columns; td.low: marked; .left: text);
// .key: a legend.
// In an svg: .grid lines, .most (line), .tail (dashed line), .dot, .cell (area), .hit (shows its <title> under the pointer).
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace inflight::cli {

std::string escaped(std::string_view text);  // for text and attribute values
// title: plain text, also the heading. body: HTML.
std::string html_page(std::string_view title, std::string_view body);
// <div><dt>name</dt><dd>value</dd></div>, of a dl; both plain text.
std::string html_fact(std::string_view name, std::string_view value);

// Whether a file can be written at `path`, known before minutes of work; leaves nothing. "" is fine: no file is wanted.
Result<void> check_writable(const std::string& path);
// All of it, or nothing.
Result<void> write_text_file(const std::string& path, std::string_view text);

}  // namespace inflight::cli
