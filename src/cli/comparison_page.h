#pragma once
#include <string>

#include "cli/comparison.h"

namespace inflight::cli {

// HTML that needs nothing else: both perplexities, divergence and how it is spread over tokens, signal to noise after each layer, the worst tokens in their text.
std::string comparison_page(const Comparison& comparison);

}  // namespace inflight::cli
