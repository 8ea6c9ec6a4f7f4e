// What `inflight --version` prints.
#pragma once
#include <string>

namespace inflight::cli {

std::string version_text();

}  // namespace inflight::cli
