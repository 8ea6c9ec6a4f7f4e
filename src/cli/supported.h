// What this program supports, from its own registries.
#pragma once
#include <string>

namespace inflight::cli {

std::string supported_table();  // Markdown

}  // namespace inflight::cli
