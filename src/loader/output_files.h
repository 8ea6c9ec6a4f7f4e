// What lies beside the weights of a folder that is written.
#pragma once
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace inflight::loader {

// Files that belong to a model besides weights and configuration: tokenizer, template, generation defaults, licence.
Result<void> copy_companions(const std::string& from, const std::string& to);
Result<void> write_text(const std::string& path, const std::string& text);
Result<void> write_json(const std::string& path, const Json& json);

}  // namespace inflight::loader
